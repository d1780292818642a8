import type { Address } from 'viem'
import type { Db } from '../../db/open'
import type { Quoter } from '../paywall/quote'
import * as Crypto from '../protocol/Crypto'
import type { Meter } from '../settlement/metrics'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { type Log, viewOf } from './context'
import { createDesk, type Desk } from './desk'
import type { OpenMarket } from './open'
import { createPurchase, type Purchase } from './purchase'
import { createTeller, type Teller } from './teller'

/** Where orders are taken. Outlives a reload: orders are under way in it. */
export type Counter = { desk: Desk; purchase: Purchase; teller: Teller }

export type CounterOptions = {
  db: Db
  settlement: Settlement
  quoter: Quoter
  exchange: OpenMarket
  stockBaseUrl: string
  refundsMax: number | undefined
  /** First wait before a step of an order is tried again. */
  laterMs: number | undefined
  sponsor: ApprovalSponsor | undefined
  /** Longest wait of a buyer. */
  waitMs: () => number
  challengeSecrets: readonly Uint8Array[]
  receiptKey: Uint8Array
  receiptAddress: Address
  relayerKeys: readonly Uint8Array[]
  realm: string
  meter: Pick<Meter, 'gauge' | 'onRender'>
  now: () => number
  log: Log
}

/** Makes the desk and what leads to it; nothing is driven before `desk.recover`. */
export function createCounter(options: CounterOptions): Counter {
  const { exchange, stockBaseUrl: baseUrl, now } = options
  const { deskMarket, stock, network } = exchange
  const desk = createDesk({ ...options, market: viewOf(deskMarket), stock, network })
  const teller = createTeller({
    baseUrl,
    assetDecimals: network.asset.decimals,
    issuer: { key: options.receiptKey, address: options.receiptAddress },
    now,
  })
  const own = [...options.relayerKeys.map(Crypto.addressOf), desk.address]
  const purchase = createPurchase({ ...options, ...exchange, desk, teller, own, baseUrl })
  const gauge = options.meter.gauge('stock_orders', 'Stock orders that are at no end.', ['state'])
  options.meter.onRender(() => {
    for (const [state, count] of desk.counts()) gauge.set(count, { state })
  })
  return { desk, purchase, teller }
}
