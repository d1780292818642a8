import type { Address } from 'viem'
import { type Order, type State, unfinished } from '../../db/Order'
import type { Db } from '../../db/sqlite/open'
import { write } from '../../db/sqlite/write'
import type { NetworkConfig, Stock } from '../config/Config'
import type { Context, DeskMarket, DeskSettlement, Log } from './context'
import { createDriver } from './driver'
import { idSince, refundId, swapId } from './Order'
import { isOurs, step } from './steps'
import { createStore, type HistoryQuery, type Store } from './store'
import { createWaiters, type Waiters } from './waiters'

/** The stock desk: takes orders and drives each to its end, whatever happens in between. */
export type Desk = {
  /** The account that is paid, swaps and refunds. */
  address: Address
  /** The order with the transactions that are under way for it now. */
  find(id: string): Order | undefined
  findByPayment(paymentId: string): Order | undefined
  /** Newest first; only what the chain knows. */
  history(query: HistoryQuery): Order[]
  /** Orders of a payer since then (unix ms) that were refunded or will be. */
  refundsOf(payer: Address, since: number): number
  /** Orders of a payer that are at no end and not to be refunded. */
  underWay(payer: Address): number
  /** How many orders are in each state that is no end. */
  counts(): ReadonlyMap<State, number>
  /** How many orders are under way. */
  open(): number
  /** Orders that wait for an operator, oldest first. */
  held(): Order[]
  /** Looks at an order now. Safe at any time. */
  drive(id: string): void
  /** Resolves with the order as soon as it is as wanted, or as it is after the time. */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
  /** Takes up what an earlier process left, and looks from now on for what nothing drives. */
  recover(): void
  /** Begins nothing new; resolves when no step runs. What is unfinished is in the database. */
  stop(): Promise<void>
}

export type DeskOptions = {
  db: Db
  settlement: DeskSettlement
  market: DeskMarket
  stock: Stock
  network: Pick<NetworkConfig, 'chainId' | 'asset' | 'reorgDepth'>
  now: () => number
  log: Log
  /** Between two searches for orders that nothing drives, and for retries that operators requested. */
  sweepMs?: number
  /** First wait before a step is tried again; doubles up to thirty times that. */
  laterMs?: number | undefined
}

/** Makes the desk; nothing is driven before `recover`. */
export function createDesk(options: DeskOptions): Desk {
  const { db, settlement, sweepMs = 1_000, laterMs = 250 } = options
  const store = createStore(db)
  const view = (order: Order | undefined) => order && withNewest(settlement, order)
  const waiters = createWaiters((id) => view(store.find(id)))
  const context = createContext(options, store, waiters)
  const { find, toDrive } = store
  const { drive, start, stop } = createDriver({
    find,
    step: (order) => step(context, order),
    toDrive,
    laterMs,
    sweepMs,
    log: options.log,
  })
  settlement.onJob((id) => {
    const [kind, order] = id.split(':')
    // An earlier version also approved the router.
    if (order !== undefined && (kind === 'swap' || kind === 'refund')) drive(order)
  })
  settlement.onPayment((id) => {
    const order = store.findByPayment(id)
    if (order !== undefined) drive(order.id)
  })
  return {
    address: settlement.desk,
    find: (id) => view(store.find(id)),
    findByPayment: (id) => view(store.findByPayment(id)),
    history: (query) => store.history(query).flatMap((order) => view(order) ?? []),
    refundsOf: (payer, since) => store.countRefunds(payer, idSince(since)),
    underWay: store.countUnderWay,
    counts() {
      const counts = new Map<State, number>(
        [...unfinished, 'held' as const].map((each) => [each, 0]),
      )
      for (const { state } of store.open()) counts.set(state, (counts.get(state) ?? 0) + 1)
      return counts
    },
    open: store.countOpen,
    held: () => store.open().filter(({ state }) => state === 'held'),
    drive,
    wait: waiters.wait,
    recover() {
      warnOfOthers(context)
      // A process may die between the end of a transaction and what its order makes of it.
      const held = store.open().flatMap(({ id, state }) => (state === 'held' ? id : []))
      start([...store.toRecheck(), ...held])
    },
    stop,
  }
}

function createContext(options: DeskOptions, store: Store, { tell }: Waiters): Context {
  const { db, settlement, market, stock, now, log } = options
  const { asset, reorgDepth, chainId } = options.network
  return {
    ...{ db, store, settlement, market, stock, asset, chainId, reorgDepth, now, log },
    endedAt: new Map(),
    logSpans: new Map(),
    unseen: new Map(),
    change(make) {
      const changed = write(db, () => make() ?? null)
      if (changed === null) return false
      const { id, state, refundReason, heldReason } = changed
      // Inside a write of the settlement the change is told when that is done.
      queueMicrotask(() => tell(id))
      log('order', { order: id, state, refundReason, heldReason })
      return true
    },
  }
}

/** Logs the orders whose money another desk has. */
function warnOfOthers(context: Context): void {
  const { store, settlement, log } = context
  for (const order of store.toDrive()) {
    const payment = settlement.findById(order.paymentId)
    if (payment === undefined || isOurs(context, payment)) continue
    const { payee, network: paidOn } = payment.transfer
    log('order-of-another-desk', { order: order.id, desk: payee, network: paidOn })
  }
}

/** The order with the newest transactions: fees may have been raised since one was written. */
function withNewest(settlement: DeskSettlement, order: Order): Order {
  const { state, swapTx, refundTx, settlementTx, paymentId } = order
  switch (state) {
    case 'settling':
      return {
        ...order,
        settlementTx: settlement.findById(paymentId)?.transaction ?? settlementTx,
      }
    case 'swapping':
      return { ...order, swapTx: settlement.job(swapId(order))?.transaction ?? swapTx }
    case 'refunding':
      if (refundTx === undefined) return order
      return { ...order, refundTx: settlement.job(refundId(order))?.transaction ?? refundTx }
    default:
      return order
  }
}
