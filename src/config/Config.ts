import type * as Network from '../protocol/Network'
import type * as keys from './keys'
import type { TableValues } from './kinds'

export type { Logo, Method } from './keys'

/** merchants.toml after parsing, defaults and cross-checks. Prices and limits are atomic. */
export type Config = {
  service: Service
  networks: readonly NetworkConfig[]
  merchants: readonly Merchant[]
  facilitator: Facilitator
  stock: Stock | undefined
  webhooks: readonly Webhook[]
  alerts: readonly Alert[]
  /** sha256 of the file's text, hex. */
  hash: string
}

export type Service = TableValues<typeof keys.service>

export type NetworkConfig = Omit<Network.Network, keyof NetworkKeys> & NetworkKeys

type NetworkKeys = TableValues<typeof keys.network>

export type Sponsor = TableValues<typeof keys.sponsor>

/** Payment channels of a network. */
export type Channels = TableValues<typeof keys.channels>

export type Merchant = TableValues<typeof keys.merchant> & {
  /** Values of this merchant that came from the environment and are sent upstream; never shown. */
  secrets: readonly string[]
  /** sha256 of the merchant's configuration before `${NAME}` is replaced, hex. */
  hash: string
  /** Set when the merchant is out of service: the environment name that is not set. */
  outOfService: string | undefined
}

export type Route = Merchant['routes'][number]

export type Param = TableValues<typeof keys.param>

export type Facilitator = TableValues<typeof keys.facilitator>

export type Stock = TableValues<typeof keys.stock>

export type StockToken = TableValues<typeof keys.token>

/** An endpoint to which events are sent. */
export type Webhook = Omit<TableValues<typeof keys.webhook>, 'url'> & {
  /** 16 hex digits, made from the URL: its path may be a secret. */
  id: string
  /** Never shown beyond its origin. */
  url: URL
}

type Places = typeof keys.places

/** A place where operators are told what needs them. */
export type Alert = {
  [K in keyof Places]: Omit<TableValues<Places[K]>, 'kind'> & {
    kind: K
    /** 16 hex digits, made from the place. */
    id: string
  }
}[keyof Places]
