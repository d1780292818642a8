import type { Address } from 'viem'
import { type Order, type State, unfinished } from '../../db/Order'
import type { HistoryQuery, OrderLedger } from '../../db/OrderLedger'
import type { NetworkConfig, Stock } from '../config/Config'
import type { WriteEvent } from '../log'
import type { Context, DeskMarket, DeskSettlement } from './context'
import { createDriver } from './driver'
import { idSince, refundId, swapId } from './Order'
import { isOurs } from './on-chain'
import { createOrderWaits, type OrderWaits } from './order-waits'
import { step } from './steps'

/** The stock desk: takes orders and drives each to its end, across faults and restarts. */
export type Desk = {
  /** The account that is paid, swaps and refunds. */
  address: Address
  /** The order with its current transactions. */
  find(id: string): Promise<Order | undefined>
  findByPayment(paymentId: string): Promise<Order | undefined>
  /** Newest first; only orders that are on the chain. */
  history(query: HistoryQuery): Promise<readonly Order[]>
  /** Orders of a payer since then (unix ms) that were refunded or will be. */
  refundsOf(payer: Address, since: number): Promise<number>
  /** Orders of a payer that have not ended and are not to be refunded. */
  underWay(payer: Address): Promise<number>
  /** Orders of all payers under way, and those since then that were refunded or will be. */
  refundable(since: number): Promise<number>
  /** Number of orders in each state that is not final. */
  counts(): Promise<ReadonlyMap<State, number>>
  /** Number of open orders. */
  open(): Promise<number>
  /** Orders that wait for an operator, oldest first. */
  held(): Promise<readonly Order[]>
  /** Drives an order now. Safe at any time. */
  drive(id: string): void
  /** Resolves with the order as soon as `isWanted` accepts it, or after the time (ms). */
  wait(id: string, isWanted: (order: Order) => boolean, ms: number): Promise<Order>
  /** Resumes what an earlier process left, and from now on finds orders that are not driven. */
  recover(): Promise<void>
  /** Starts nothing new; resolves when no step runs. What is unfinished is in the database. */
  stop(): Promise<void>
}

export type DeskOptions = {
  orders: OrderLedger
  settlement: DeskSettlement
  market: DeskMarket
  stock: Stock
  network: Pick<NetworkConfig, 'chainId' | 'asset' | 'reorgDepth'>
  now: () => number
  log: WriteEvent
  /**
   * Ms between two searches for orders that are not driven, and for retries that operators
   * requested.
   */
  sweepMs?: number
  /** First wait (ms) before a step is tried again; doubles up to thirty times that. */
  laterMs?: number | undefined
}

/** Creates the desk; it drives nothing before `recover`. */
export function createDesk(options: DeskOptions): Desk {
  const { orders, settlement, log, sweepMs = 1_000, laterMs = 250 } = options
  const view = async (order: Order | undefined) => order && withNewest(settlement, order)
  const find = async (id: string) => view(await orders.find(id))
  const waits = createOrderWaits(find, settlement.isShared ? lookMs : undefined)
  const context = createContext(options, waits)
  const { drive, start, stop } = createDriver({
    find: orders.find,
    step: (order) => step(context, order),
    isOurs: settlement.hasDesk,
    toDrive: createSearch(options),
    laterMs,
    sweepMs,
    log,
  })
  settlement.onJob((id) => {
    const [kind, order] = id.split(':')
    // An earlier version also approved the router.
    if (order !== undefined && (kind === 'swap' || kind === 'refund')) drive(order)
  })
  settlement.onPayment((id) => {
    orders.findByPayment(id).then(
      (order) => order && drive(order.id),
      (error: unknown) => log('order-fault', { payment: id, error }),
    )
  })
  return {
    address: settlement.desk,
    find,
    findByPayment: async (id) => view(await orders.findByPayment(id)),
    async history(query) {
      const found = await Promise.all((await orders.history(query)).map(view))
      return found.filter((order) => order !== undefined)
    },
    refundsOf: (payer, since) => orders.countRefunds(payer, idSince(since)),
    underWay: orders.countUnderWay,
    refundable: (since) => orders.countRefundable(idSince(since)),
    counts: async () => countsOf(await orders.open()),
    open: orders.countOpen,
    held: async () => (await orders.open()).filter(({ state }) => state === 'held'),
    drive,
    wait: waits.wait,
    async recover() {
      const open = await orders.open()
      await warnOfOthers(context, open.filter(isToDrive))
      // A process may stop between the end of a transaction and the move of its order.
      const held = open.flatMap(({ id, state }) => (state === 'held' ? id : []))
      start([...(await orders.toRecheck()), ...held])
    },
    stop,
  }
}

/** How often a waiting request reads an order that another process may drive, ms. */
const lookMs = 500

/**
 * Finds the orders to drive. When the process has taken the desk's account since the last search, these
 * are all open orders. The first search follows `recover`, which looks at them.
 */
function createSearch({
  orders,
  settlement,
}: Pick<DeskOptions, 'orders' | 'settlement'>): () => Promise<readonly string[]> {
  let isFirst = true
  let last: string | undefined
  return async () => {
    const epoch = settlement.deskEpoch()
    const isTaken = !isFirst && epoch !== last
    isFirst = false
    last = epoch
    if (epoch === undefined) return []
    const open = await orders.open()
    const doubtful = isTaken ? await orders.toRecheck() : []
    const found = open.filter((order) => isTaken || isToDrive(order))
    return [...doubtful, ...found.map(({ id }) => id)]
  }
}

/** Whether the desk drives the order: a held one only when an operator requests it. */
function isToDrive({ state, retryAt }: Order): boolean {
  return unfinished.includes(state) || retryAt !== undefined
}

function countsOf(open: readonly Order[]): ReadonlyMap<State, number> {
  const counts = new Map<State, number>([...unfinished, 'held' as const].map((each) => [each, 0]))
  for (const { state } of open) counts.set(state, (counts.get(state) ?? 0) + 1)
  return counts
}

function createContext(options: DeskOptions, waits: OrderWaits): Context {
  const { orders, settlement, market, stock, now, log } = options
  const { asset, reorgDepth, chainId } = options.network
  const notify: Context['notify'] = ({ id, state, refundReason, heldReason }) => {
    log('order', { order: id, state, refundReason, heldReason })
    waits.notify(id)
  }
  return {
    ...{ orders, settlement, market, stock, asset, chainId, reorgDepth, now, log },
    endedAt: new Map(),
    logSpans: new Map(),
    unseen: new Map(),
    notify,
    async move(move) {
      const order = await orders.move(move)
      if (order === undefined) return false
      notify(order)
      return true
    },
  }
}

/** Logs the orders that were paid to another desk account. */
async function warnOfOthers(context: Context, orders: readonly Order[]): Promise<void> {
  const { settlement, log } = context
  for (const order of orders) {
    const payment = await settlement.findById(order.paymentId)
    if (payment === undefined || isOurs(context, payment)) continue
    const { payee, network: paidOn } = payment.transfer
    log('order-of-another-desk', { order: order.id, desk: payee, network: paidOn })
  }
}

/** The order with its newest transactions: fees may have been raised since one was written. */
async function withNewest(settlement: DeskSettlement, order: Order): Promise<Order> {
  const { state, swapTx, refundTx, settlementTx, paymentId } = order
  const newestOf = async (job: string) => (await settlement.job(job))?.transaction
  switch (state) {
    case 'settling': {
      const payment = await settlement.findById(paymentId)
      return { ...order, settlementTx: payment?.transaction ?? settlementTx }
    }
    case 'swapping':
      return { ...order, swapTx: (await newestOf(swapId(order))) ?? swapTx }
    case 'refunding':
      if (refundTx === undefined) return order
      return { ...order, refundTx: (await newestOf(refundId(order))) ?? refundTx }
    default:
      return order
  }
}
