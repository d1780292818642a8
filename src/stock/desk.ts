import type { Address } from 'viem'
import { type Order, type State, unfinished } from '../../db/Order'
import type { HistoryQuery } from '../../db/orders'
import { refundId, swapId } from './Order'
import { type DeskContext, type DeskSettlement, isOurs, type Next, step } from './steps'

/** The stock desk: takes orders and drives each to its end, across faults and restarts. */
export type Desk = {
  /** The account that is paid, swaps and refunds. */
  address: Address
  /** The order with its current transactions. */
  find(id: string): Promise<Order | undefined>
  findByPayment(paymentId: string): Promise<Order | undefined>
  /** Newest first; only orders that are on the chain. */
  history(query: HistoryQuery): Promise<readonly Order[]>
  /** Number of orders in each state that is not final. */
  counts(): Promise<ReadonlyMap<State, number>>
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

export type DeskOptions = Omit<DeskContext, 'endedAt' | 'logSpans' | 'unseen' | 'notify'> & {
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
  const context: DeskContext = {
    ...options,
    endedAt: new Map(),
    logSpans: new Map(),
    unseen: new Map(),
    notify({ id, state, refundReason, heldReason }) {
      log('order', { order: id, state, refundReason, heldReason })
      waits.notify(id)
    },
  }
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
    counts: async () => countsOf(await orders.open()),
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

/** Logs the orders that were paid to another desk account. */
async function warnOfOthers(context: DeskContext, orders: readonly Order[]): Promise<void> {
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

type DriverOptions = {
  find(id: string): Promise<Order | undefined>
  /** Takes the next step of an order. */
  step(order: Order): Promise<Next>
  /** Whether this process takes steps: it has the desk's account. */
  isOurs(): boolean
  /** Ids of orders that need a step. */
  toDrive(): Promise<readonly string[]>
  /** First wait (ms) before a step is tried again; doubles up to thirty times that. */
  laterMs: number
  /** Ms between two searches for orders that are not driven. */
  sweepMs: number
  log: DeskContext['log']
}

/** More steps than any order needs at once: a looping order must not stop the others. */
const stepsMax = 20

/** Drives orders to their ends, each with one step at a time. */
export function createDriver(options: DriverOptions) {
  const { find, laterMs, log } = options
  const running = new Map<string, Promise<void>>()
  /** Orders that changed while they run. */
  const changed = new Set<string>()
  /** Ids of calls before `start`. */
  const queued = new Set<string>()
  const timers = new Map<string, { timer: ReturnType<typeof setTimeout>; delayMs: number }>()
  let sweeping: ReturnType<typeof setInterval> | undefined
  /** The running search for orders. */
  let search: Promise<void> | undefined
  let isStarted = false
  let isStopping = false

  /** Drives an order now. Safe at any time; before `start` the id is stored. */
  function drive(id: string): void {
    if (isStopping) return
    if (!isStarted) {
      queued.add(id)
      return
    }
    if (running.has(id)) {
      // The running step may have read the order before the change.
      changed.add(id)
      return
    }
    const scheduled = timers.get(id)
    clearTimeout(scheduled?.timer)
    timers.delete(id)
    const work = run(id, scheduled?.delayMs ?? 0).finally(() => {
      running.delete(id)
      if (changed.delete(id)) drive(id)
    })
    running.set(id, work)
  }

  /** Takes steps until there is nothing to do now. Never rejects. */
  async function run(id: string, delayMs: number): Promise<void> {
    let isFirst = true
    try {
      for (let steps = 0; steps < stepsMax; steps++) {
        const order = await find(id)
        if (order === undefined || isStopping || !options.isOurs()) return
        const next = await options.step(order)
        if (next === 'wait') return
        if (next === 'later') return later(id, isFirst ? delayMs : 0)
        isFirst = false
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

  /** Drives orders that are not driven. Never rejects. */
  async function sweep(): Promise<void> {
    try {
      for (const id of await options.toDrive()) {
        if (!running.has(id) && !timers.has(id)) drive(id)
      }
    } catch (error) {
      if (!isStopping) log('order-fault', { error })
    }
  }

  /** One search at a time: a ledger may answer after the next one is due. */
  function startSweep(): void {
    search ??= sweep().finally(() => {
      search = undefined
    })
  }

  return {
    drive,
    /** Drives these ids and the stored ones, and from now on orders that are not driven. */
    start(ids: readonly string[]): void {
      if (isStopping) return
      isStarted = true
      for (const id of new Set([...queued, ...ids])) drive(id)
      startSweep()
      sweeping ??= setInterval(startSweep, options.sweepMs)
    },
    /** Starts nothing new; resolves when no step runs. */
    async stop(): Promise<void> {
      isStopping = true
      clearInterval(sweeping)
      for (const { timer } of timers.values()) clearTimeout(timer)
      timers.clear()
      await Promise.all([search, ...running.values()])
    },
  }
}

/**
 * Requests that wait for orders to change. `find` reads the current order. `lookMs`: how often it is
 * read without a notification, where another process may change it.
 */
export function createOrderWaits(
  find: (id: string) => Promise<Order | undefined>,
  lookMs?: number,
) {
  const waits = new Map<string, Set<() => void>>()
  return {
    /** Notifies that an order has changed. */
    notify(id: string): void {
      for (const wake of waits.get(id) ?? []) wake()
    },
    /** Resolves with the order as soon as `isWanted` accepts it, or after the time (ms). */
    wait: (id: string, isWanted: (order: Order) => boolean, ms: number) =>
      new Promise<Order>((resolve, reject) => {
        const waiting = waits.get(id) ?? new Set()
        waits.set(id, waiting)
        const leave = () => {
          clearTimeout(timer)
          clearInterval(looking)
          waiting.delete(check)
          if (waiting.size === 0 && waits.get(id) === waiting) waits.delete(id)
        }
        /** Reads the order; a later call may answer first. */
        const read = async (isLate: boolean) => {
          try {
            const order = await find(id)
            if (order === undefined) throw new Error(`no order ${id}`)
            if (!isLate && !isWanted(order)) return
            resolve(order)
          } catch (error) {
            reject(error)
          }
          leave()
        }
        const check = () => void read(false)
        const timer = setTimeout(() => void read(true), ms)
        const looking = lookMs && setInterval(check, lookMs)
        // Registered before the first read, so that a later change is not missed.
        waiting.add(check)
        check()
      }),
  }
}
