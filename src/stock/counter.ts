import type { Db } from '../../db/open'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import type { RateLimit } from '../http/ratelimit'
import type { Quoter } from '../paywall/quote'
import * as Crypto from '../protocol/Crypto'
import type { Settlement } from '../settlement/settle'
import { type Log, viewOf } from './context'
import { createDesk, type Desk } from './desk'
import { createMarket, type Market } from './market'
import { createPurchase } from './purchase'
import { orderRoutes } from './routes'
import { createTeller } from './teller'

/** Where orders are taken: the desk and the routes to it. */
export type Counter = {
  desk: Desk
  routes: ReturnType<typeof orderRoutes>
  /** Buyers who wait for an answer. */
  inFlight(): number
}

export type CounterOptions = {
  db: Db
  settlement: Settlement
  quoter: Quoter
  /** Of the free routes. */
  market: Market
  stock: Stock
  network: NetworkConfig
  service: Config['service']
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  relayerKeys: readonly Uint8Array[]
  realm: string
  rateLimit: RateLimit
  now: () => number
  log: Log
  requestId: () => string
  peerOf: (request: Request) => string | undefined
  accepts: () => boolean
}

/** Makes the desk and what leads to it; nothing is driven before `desk.recover`. */
export function createCounter(options: CounterOptions): Counter {
  const { db, settlement, stock, network, service, receiptKey, now, log } = options
  const { read } = settlement
  // A market of its own: what is read for money does not wait behind free requests.
  const deskMarket = createMarket({ stock, asset: network.asset, read, now })
  const desk = createDesk({
    db,
    settlement,
    market: viewOf(deskMarket),
    stock,
    network,
    now,
    log,
  })
  const teller = createTeller({
    baseUrl: service.stockBaseUrl,
    assetDecimals: network.asset.decimals,
    issuer: { key: receiptKey, address: Crypto.addressOf(receiptKey) },
    now,
  })
  const purchase = createPurchase({
    ...options,
    desk,
    deskMarket,
    teller,
    own: [...options.relayerKeys.map(Crypto.addressOf), desk.address],
    baseUrl: service.stockBaseUrl,
    waitMs: service.settleWaitSeconds * 1000,
  })
  return {
    desk,
    routes: orderRoutes({ ...options, desk, teller, purchase }),
    inFlight: purchase.inFlight,
  }
}
