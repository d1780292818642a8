import type { Address } from 'viem'
import type { Db } from '../../db/open'
import { write } from '../../db/write'
import type { NetworkConfig, Stock } from '../config/Config'
import type { Context, DeskMarket, DeskSettlement, Log } from './context'
import { idSince, type Order, refundId, type State, swapId, unfinished } from './Order'
import { isOurs, step } from './steps'
import { createStore, type HistoryQuery } from './store'

/** The stock desk: takes orders and drives each to its end, whatever happens in between. */
export type Desk = {
  /** Who is paid, swaps and refunds. */
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
  /** Orders that an operator must look at, oldest first. */
  held(): Order[]
  /** Looks at an order now. Safe at any time. */
  drive(id: string): void
  /** Resolves with the order as soon as it is as wanted, or as it is after the time. */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
  /** Takes up what an earlier process left, and looks from now on what nobody drives. */
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
  /** Between two looks for orders that nobody drives, and for the wishes of operators. */
  sweepMs?: number
  /** First wait before a step is tried again; doubles up to thirty times that. */
  laterMs?: number
}

/** More than any order needs at once: one that goes in circles must not stop all others. */
const stepsMax = 20

/** Makes the desk; nothing is driven before `recover`. */
export function createDesk(options: DeskOptions): Desk {
  const { db, settlement, stock, now, log } = options
  const { sweepMs = 1_000, laterMs = 250 } = options
  const { asset, reorgDepth, chainId } = options.network
  const store = createStore(db)
  const waiters = new Map<string, Set<() => void>>()
  const running = new Map<string, Promise<void>>()
  const woken = new Set<string>()
  /** What happened before `recover`. */
  const early = new Set<string>()
  const timers = new Map<string, { timer: ReturnType<typeof setTimeout>; delayMs: number }>()
  let sweeping: ReturnType<typeof setInterval> | undefined
  let isStarted = false
  let isStopping = false

  const context: Context = {
    db,
    store,
    settlement,
    market: options.market,
    stock,
    asset,
    chainId,
    reorgDepth,
    now,
    log,
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

  settlement.onErrand((id) => {
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
    wait,
    recover() {
      for (const order of store.toDrive()) {
        const payment = settlement.findById(order.paymentId)
        if (payment === undefined || isOurs(context, payment)) continue
        const { payee, network: paidOn } = payment.transfer
        log('order-of-another-desk', { order: order.id, desk: payee, network: paidOn })
      }
      isStarted = true
      // A process may die between the end of a transaction and what its order makes of it.
      const held = store.open().flatMap(({ id, state }) => (state === 'held' ? id : []))
      for (const id of new Set([...early, ...store.toRecheck(), ...held])) drive(id)
      sweep()
      sweeping ??= setInterval(sweep, sweepMs)
    },
    async stop() {
      isStopping = true
      clearInterval(sweeping)
      for (const { timer } of timers.values()) clearTimeout(timer)
      timers.clear()
      await Promise.all(running.values())
    },
  }

  function drive(id: string): void {
    if (isStopping) return
    if (!isStarted) {
      early.add(id)
      return
    }
    if (running.has(id)) {
      // What is being decided may be older than the news.
      woken.add(id)
      return
    }
    const scheduled = timers.get(id)
    clearTimeout(scheduled?.timer)
    timers.delete(id)
    const work = run(id, scheduled?.delayMs ?? 0).finally(() => {
      running.delete(id)
      if (woken.delete(id)) drive(id)
    })
    running.set(id, work)
  }

  /** Steps until there is nothing to do now. Never rejects. */
  async function run(id: string, delayMs: number): Promise<void> {
    let last: Order['state'] | undefined
    try {
      for (let steps = 0; steps < stepsMax; steps++) {
        const order = store.find(id)
        if (order === undefined || isStopping) return
        const next = await step(context, order)
        if (next === 'wait') return
        if (next === 'later') return later(id, last === undefined ? delayMs : 0)
        last = order.state
      }
      later(id, delayMs)
    } catch (error) {
      if (isStopping) return
      log('order-fault', { order: id, error })
      later(id, delayMs)
    }
  }

  function later(id: string, delayMs: number): void {
    if (isStopping) return
    const next = Math.min(Math.max(laterMs, delayMs * 2), laterMs * 30)
    timers.set(id, { timer: setTimeout(() => drive(id), next), delayMs: next })
  }

  function sweep(): void {
    try {
      for (const { id } of store.toDrive()) if (!running.has(id) && !timers.has(id)) drive(id)
    } catch (error) {
      log('order-fault', { error })
    }
  }

  function tell(id: string): void {
    for (const wake of waiters.get(id) ?? []) wake()
  }

  function wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order> {
    return new Promise((resolve, reject) => {
      const waiting = waiters.get(id) ?? new Set()
      waiters.set(id, waiting)
      const end = (order: Order | undefined) => {
        clearTimeout(timer)
        waiting.delete(look)
        if (waiting.size === 0 && waiters.get(id) === waiting) waiters.delete(id)
        if (order === undefined) reject(new Error(`no order ${id}`))
        else resolve(order)
      }
      const look = () => {
        const order = view(store.find(id))
        if (order === undefined || isWanted(order)) end(order)
      }
      const late = () => {
        try {
          end(view(store.find(id)))
        } catch (error) {
          // The database is closed: the process stops.
          reject(error)
        }
      }
      const timer = setTimeout(late, ms)
      waiting.add(look)
      look()
    })
  }

  /** Fees may have been raised since the transaction was written. */
  function view(order: Order | undefined): Order | undefined {
    if (order === undefined) return undefined
    const { state, swapTx, refundTx, settlementTx, paymentId } = order
    switch (state) {
      case 'settling':
        return {
          ...order,
          settlementTx: settlement.findById(paymentId)?.transaction ?? settlementTx,
        }
      case 'swapping':
        return { ...order, swapTx: settlement.errand(swapId(order))?.transaction ?? swapTx }
      case 'refunding':
        if (refundTx === undefined) return order
        return { ...order, refundTx: settlement.errand(refundId(order))?.transaction ?? refundTx }
      default:
        return order
    }
  }
}
