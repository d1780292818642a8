import type { Address } from 'viem'
import type { OrderLedger } from '../../db/OrderLedger'
import type { Tally } from '../books/tally'
import type { Registry } from '../http/metrics'
import type { WriteEvent } from '../log'
import type { Claims } from '../paywall/claims'
import type { Quoter } from '../paywall/offer/quote'
import * as Crypto from '../protocol/Crypto'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { viewOf } from './context'
import { createDesk, type Desk } from './desk'
import type { OpenMarket } from './open'
import { createOrderResponse, type OrderResponse } from './order-response'
import { createPurchase, type Purchase } from './purchase'

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
