import type { Address, Hex } from 'viem'
import type { Meter } from '../meter/Meter'
import type * as Network from '../protocol/Network'
import type { Pattern } from '../protocol/Webhook'

/** merchants.toml after parsing, defaults and cross-checks. Prices and limits are atomic. */
export type Config = {
  service: Service
  networks: readonly NetworkConfig[]
  merchants: readonly Merchant[]
  facilitator: Facilitator
  stock: Stock | undefined
  webhooks: readonly Webhook[]
  /** sha256 of the file's text, hex. */
  hash: string
}

export type Service = {
  title: string
  /** What is sold, in one sentence, on the first page; undefined: a sentence of ours. */
  lead: string | undefined
  logo: Logo | undefined
  /** Colour of the pages, `#rrggbb` in lower case; undefined: ours. */
  accent: string | undefined
  /** Absolute, without a trailing slash. */
  baseUrl: string
  listen: { hostname: string; port: number }
  /** Most open connections of clients. */
  connectionsMax: number
  /** Absolute, without a trailing slash. Its path is served besides `/` and `/facilitator`. */
  facilitatorUrl: string
  /** Absolute, without a trailing slash. Its path is served in addition to `/`. */
  stockBaseUrl: string
  /** Published in documents; undefined: nowhere. */
  contact: string | undefined
  guidance: string
  payout: Address
  /** Number of reverse proxies in front that may set X-Forwarded-For. */
  trustProxy: number
  discoveryNetwork: Network.Id
  /** Every network once, the MPP challenges first to last. Networks without an order come last. */
  mppOrder: readonly Network.Id[]
  stopSeconds: number
  settleWaitSeconds: number
  /** Payments above this count only when a second node shows them; undefined: off. */
  confirmTwiceAboveAtomic: bigint | undefined
  /** Most that one payer may have used and not settled, by the scheme `upto`. */
  unsettledMaxAtomic: bigint
  /**
   * Whether no other service uses the payouts, so that an external settlement of an MPP credential
   * counts.
   */
  payoutExclusive: boolean
  bodyMaxBytes: number
  unpaidBodyMaxBytes: number
  bufferedMaxBytes: number
  paidPerMinute: number
  quotePerMinute: number
  /** Most sales in progress, of all merchants. */
  concurrencyMax: number
  /** Who may read `/metrics`. */
  metrics: 'public' | 'token' | 'off'
  /** Most streams that their buyers may leave unread at once, 2 to 4 MB each. */
  stalledStreamsMax: number
}

/** An image that was read with the file. Its own size is in pixels. */
export type Logo = {
  bytes: Uint8Array
  type: 'image/png' | 'image/svg+xml'
  width: number
  height: number
}

export type NetworkConfig = Network.Network & {
  rpcUrls: readonly string[]
  wsUrl: string
  confirmations: number
  reorgDepth: number
  batchMax: number
  batchGasMax: number
  feeCapWei: bigint
  replaceAfterSeconds: number
  /**
   * The network is omitted from a 402 while gas costs more than this multiple of the price; 0:
   * never.
   */
  gasRatioMax: number
  /** Price of the native coin in USD. */
  ethPriceUsd: number
  gasPerDayWei: { gateway: bigint; facilitator: bigint; desk: bigint; sponsor: bigint }
  sponsor: Sponsor | undefined
}

export type Sponsor = {
  minBalanceAtomic: bigint
  minBalanceAgeBlocks: number
  grantsPerDay: number
  maxGrantWei: bigint
  ethPriceUsd: number
}

export type Merchant = {
  slug: string
  title: string
  tag: string
  description: string
  /**
   * Scheme, host and port. A path in the file is part of each `upstreamPath`. Undefined for
   * merchants that the binary serves itself (`builtin`), or whose every route has an upstream of
   * its own.
   */
  upstream: URL | undefined
  builtin: 'catjoke' | 'chain-stocks' | undefined
  allowPrivate: boolean
  /** Added to upstream requests; they replace the buyer's. May contain secrets: never logged. */
  headers: Readonly<Record<string, string>>
  /** Values of this merchant that came from the environment and are sent upstream; never shown. */
  secrets: readonly string[]
  timeoutMs: number
  idleMs: number
  /** `keep_alive = false`: each request to the upstream has a connection of its own. */
  ownConnections: boolean
  /** Most sales in progress. */
  concurrencyMax: number
  /** What a payer may have open by `upto` beyond what it has paid to the merchant, atomic. */
  payerCreditAtomic: bigint
  /** What all payers may owe the merchant by `upto` within a day, atomic. */
  lossesPerDayAtomic: bigint
  /** Whether streams to payers that never paid to the merchant wait for their charge. */
  newStreams: 'held' | 'passed'
  /** Zero when the merchant is out of service because this address is not set. */
  payout: Address
  networks: readonly Network.Id[]
  routes: readonly Route[]
  /** sha256 of the merchant's configuration before `${NAME}` is replaced, hex. */
  hash: string
  /** Set when the merchant is out of service: the environment name that is not set. */
  outOfService: string | undefined
}

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

export type Route = {
  /** Below the merchant, e.g. `/forecast`; literal segments only. Empty: the merchant itself. */
  path: string
  methods: readonly Method[]
  priceAtomic: bigint
  summary: string
  description: string
  /**
   * Whole path at the upstream. `{tail}` marks the place of the extra segments, without a slash of
   * its own. Without it they are appended after a slash.
   */
  upstreamPath: string
  /** Parts of that path that came from the environment: buyers must not see them. */
  pathSecrets: readonly string[]
  /** Scheme, host and port, if not the merchant's. */
  upstream: URL | undefined
  tail: 'optional' | 'required' | 'none'
  /** Defaults: the buyer's value takes precedence. */
  query: Readonly<Record<string, string>>
  /** Fixed: these values replace the buyer's. */
  fixedQuery: Readonly<Record<string, string>>
  bodyMaxBytes: number
  /** Lower-case names of response headers that are forwarded besides the allowlist. */
  passHeaders: readonly string[]
  /** Body member -> buyer's value -> upstream's value. */
  rewrite: Readonly<Record<string, Readonly<Record<string, string>>>>
  params: readonly Param[]
  /** JSON Schema of the request body. */
  body: Readonly<Record<string, unknown>> | undefined
  /** Whether requests without a body are refused. */
  bodyRequired: boolean
  /** JSON Schema of the upstream's answer, for documents only; undefined means an object. */
  answer: Readonly<Record<string, unknown>> | undefined
  /** How use is counted; undefined for a fixed price. */
  meter: Meter | undefined
}

export type Param = {
  name: string
  /** A query parameter, or the next segment of the tail (gateway/Tail.ts). */
  in: 'query' | 'tail'
  required: boolean
  description: string
  schema: Readonly<Record<string, unknown>>
  example: string | number | boolean | undefined
}

export type Facilitator = {
  verifyPerMinute: number
  settlePerMinute: number
  settleWaitSeconds: number
  payTo: 'own' | 'any' | readonly Address[]
  assets: readonly Address[]
  minAmountAtomic: bigint
  /** sha256 of each key. */
  apiKeyHashes: readonly Hex[]
  /** Whether callers may settle the scheme `upto` where no API key is listed. */
  uptoWithoutKeys: boolean
}

export type Stock = {
  network: Network.Id
  minAtomic: bigint
  maxAtomic: bigint
  feeBps: number
  feedDistanceBps: number
  feedMaxAgeSeconds: number
  factory: Address
  router: Address
  quoter: Address
  registry: Address
  /**
   * The issuer's public API and a Blockscout explorer, without a trailing slash; undefined: not
   * used.
   */
  issuerUrl: string | undefined
  explorerUrl: string | undefined
  tokens: readonly StockToken[]
}

export type StockToken = {
  symbol: string
  name: string
  address: Address
  pool: Address
  fee: number
  slippageBps: number
  feed: Address | undefined
}

/** An endpoint to which events are sent. */
export type Webhook = {
  /** 16 hex digits, made from the URL: its path may be a secret. */
  id: string
  /** Never shown beyond its origin. */
  url: URL
  events: readonly Pattern[]
  /** Keys of the signatures, the newest first. */
  secrets: readonly Uint8Array[]
  allowPrivate: boolean
}
