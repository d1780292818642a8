import type { Address } from 'viem'
import type { OrderLedger } from '../../db/OrderLedger'
import type { Tally } from '../books/tally'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import type { Registry } from '../http/metrics'
import type { WriteEvent } from '../log'
import type { Claims } from '../paywall/checkout'
import type { Quoter } from '../paywall/offer/quote'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { createDesk, type Desk } from './desk'
import {
  createHistory,
  createMarket,
  type History,
  type Market,
  type MarketOptions,
} from './market'
import { createMarketData, type MarketData } from './market-data'
import { createExplorer, createIssuer } from './public-sources'
import { createOrderResponse, createPurchase, type OrderResponse, type Purchase } from './purchase'
import { viewOf } from './steps'

/** The parts that take orders. They are kept over a reload, because they have open orders. */
export type StartedStock = { desk: Desk; purchase: Purchase; orderResponse: OrderResponse }

export type StartOptions = {
  orders: OrderLedger
  settlement: Settlement
  claims: Claims
  quoter: Quoter
  exchange: OpenMarket
  stockBaseUrl: string
  refundsMax: number | undefined
  /** First wait (ms) before a step of an order is tried again. */
  laterMs: number | undefined
  sponsor: ApprovalSponsor | undefined
  /** Longest wait of a buyer, ms. */
  waitMs: () => number
  tally: Tally
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  receiptAddress: Address
  relayerKeys: readonly Uint8Array[]
  realm: string
  meter: Pick<Registry, 'gauge' | 'onRender'>
  now: () => number
  log: WriteEvent
}

/** Creates the desk and its routes; nothing is driven before `desk.recover`. */
export function startStock(options: StartOptions): StartedStock {
  const { exchange, stockBaseUrl: baseUrl, now } = options
  const { deskMarket, stock, network } = exchange
  const desk = createDesk({ ...options, market: viewOf(deskMarket), stock, network })
  const orderResponse = createOrderResponse({
    baseUrl,
    assetDecimals: network.asset.decimals,
    issuer: { key: options.receiptKey, address: options.receiptAddress },
    now,
  })
  const own = [...options.relayerKeys.map(Crypto.addressOf), desk.address]
  const purchase = createPurchase({ ...options, ...exchange, desk, orderResponse, own, baseUrl })
  const gauge = options.meter.gauge('stock_orders', 'Stock orders that are at no end.', ['state'])
  options.meter.onRender(async () => {
    for (const [state, count] of await desk.counts()) gauge.set(count, { state })
  })
  return { desk, purchase, orderResponse }
}

/** The parts of `[stock]` that the products share. */
export type OpenMarket = {
  market: Market
  /** For requests with a credential, which do not wait behind free requests. */
  paidMarket: Market
  /** For paid orders: any client can sign credentials without money, which would fill the queue. */
  deskMarket: Market
  data: MarketData
  /** Prices of the last day, from reads of the list. */
  history: History
  stock: Stock
  network: NetworkConfig
  asset: Asset
}

/** The market of a configuration with its sources; undefined without `[stock]`. */
export function openMarket(
  { stock, networks, service }: Pick<Config, 'stock' | 'networks' | 'service'>,
  { read, now, timeoutMs }: Pick<MarketOptions, 'read' | 'now' | 'timeoutMs'>,
): OpenMarket | undefined {
  const network = networks.find(({ id }) => id === stock?.network)
  if (stock === undefined || network === undefined) return undefined
  const { asset, chainId } = network
  const { issuerUrl, explorerUrl } = stock
  const common = {
    userAgent: service.contact === undefined ? 'Turnpike/1.0' : `Turnpike/1.0 (${service.contact})`,
    now,
  }
  const issuer = issuerUrl ? createIssuer({ ...common, url: issuerUrl, chainId }) : undefined
  const explorer = explorerUrl ? createExplorer({ ...common, url: explorerUrl }) : undefined
  const options = {
    ...{ stock, asset, read, now, timeoutMs },
    ...(issuer && { isHalted: issuer.isHalted }),
  }
  const history = createHistory(now)
  const market = createMarket({ ...options, history })
  const data = createMarketData({ market, asset, issuer, explorer, now })
  const [paidMarket, deskMarket] = [createMarket(options), createMarket(options)]
  return { market, paidMarket, deskMarket, data, history, stock, network, asset }
}
