import { fees } from '../chain/head'
import * as Assign from './assign'
import * as Batch from './batch'
import * as Burnt from './burnt'
import { findPlain, plainKeptMs } from './code'
import type { Context, Lane as LaneState, Order, Rail, Submitted } from './context'
import { callOf } from './deploy'
import { dispatch } from './errands'
import * as Gas from './gas'
import * as Lane from './lane'
import * as Verify from './verify'

/** Longest time that payments collect behind a transaction that is under way. */
const collectMs = 15

/** Puts an order in the queue of its network. Its admission never rejects. */
export function submit(
  context: Context,
  rail: Rail,
  input: Parameters<Context['submit']>[1],
): Submitted {
  const { promise, resolve } = Promise.withResolvers<Parameters<Order['done']>[0]>()
  const { transfer } = input
  const order: Order = {
    ...input,
    hasCode: input.hasCode ?? (isPlain(context, rail, transfer.payer) ? false : undefined),
    isUrgent: input.isAlone || input.hasCode === true,
    logKey: Assign.keyOf(transfer),
    call: callOf(transfer),
    isGivenUp: false,
    code: undefined,
    fees: undefined,
    done: resolve,
  }
  rail.queue.push(order)
  // What comes in the same turn of the event loop leaves together.
  rail.arrival ??= setImmediate(() => {
    rail.arrival = undefined
    pump(context, rail)
  })
  return {
    admission: promise,
    cancel() {
      const index = rail.queue.indexOf(order)
      if (index >= 0) rail.queue.splice(index, 1)
      order.isGivenUp = true
      return index >= 0
    },
  }
}

/** Gives what waits to the lanes that are free. When no lane can send, nothing waits. */
export function pump(context: Context, rail: Rail): void {
  dispatch(context, rail)
  while (rail.queue.length > 0) {
    if (context.signal.aborted || !Lane.isReady(rail)) {
      for (const order of rail.queue.splice(0)) order.done(Verify.unavailable(undefined))
      return
    }
    const lane = freeLane(rail)
    if (!lane) break
    const orders = take(context, rail, lane)
    if (orders.length === 0) break
    rail.isDue = false
    lane.isPreparing = true
    void Batch.dispatch(context, rail, lane, orders).then((returned) => {
      lane.isPreparing = false
      for (const order of returned) if (order.isGivenUp) order.done(Verify.busy)
      rail.queue.unshift(...returned.filter(({ isGivenUp }) => !isGivenUp))
      pump(context, rail)
    })
  }
  if (rail.queue.length === 0) return
  probe(context, rail)
  if (rail.isDue || rail.collecting !== undefined) return
  rail.collecting = setTimeout(() => {
    rail.collecting = undefined
    rail.isDue = true
    pump(context, rail)
  }, collectMs)
}

/**
 * The lane with the least under way, if it may take something now. A lone payment leaves at once when
 * a lane has nothing under way; else what comes collects, but not for longer than the time, and not
 * when it is enough for a batch or gains nothing by waiting.
 */
function freeLane(rail: Rail): LaneState | undefined {
  let best: LaneState | undefined
  for (const lane of rail.lanes) {
    if (
      lane.isReserved ||
      lane.isPreparing ||
      lane.open >= Lane.openMax ||
      Lane.pausedBy(lane) !== undefined
    )
      continue
    if (!best || lane.open < best.open) best = lane
  }
  if (!best || best.open === 0) return best
  const { queue, network } = rail
  const mayLeave = rail.isDue || queue.length >= network.batchMax || queue[0]?.isUrgent === true
  return mayLeave ? best : undefined
}

/**
 * The oldest order and what may share its transaction: payers without code, the same product, logs
 * that can be told apart, within the limits. In the order of arrival.
 */
function take(context: Context, rail: Rail, lane: LaneState): Order[] {
  const { queue, network } = rail
  const gasMax = gasMaxOf(rail, lane)
  const room = roomFor(context)
  // Orders of a payer at its limit wait; orders of others go first.
  const start = queue.findIndex((order) => room(order) > 0)
  const first = queue[start]
  if (!first) return []
  if (!mayShare(context, rail, first)) return queue.splice(start, 1)
  const keys = new Set<string>()
  const taken: Order[] = []
  const left: Order[] = []
  let gas = 0n
  const mine = new Map<string, number>()
  for (const order of queue) {
    const { payer } = order.transfer
    const count = mine.get(payer) ?? 0
    if (room(order) <= count) {
      left.push(order)
      continue
    }
    const more = gas + Gas.limitOf(rail, order.transfer)
    const isRoom =
      taken.length < Math.max(1, network.batchMax) &&
      (taken.length === 0 || Gas.limitOfBatch(more) <= gasMax)
    const fits =
      isRoom && order.purpose.product === first.purpose.product && mayShare(context, rail, order)
    if (fits && !keys.has(order.logKey)) {
      keys.add(order.logKey)
      taken.push(order)
      mine.set(payer, count + 1)
      gas = more
      continue
    }
    // Two that cannot leave together gain nothing by waiting for each other.
    if (fits) order.isUrgent = true
    left.push(order)
  }
  rail.queue = left
  return taken
}

/** How many more payments of an order's payer may be under way. */
function roomFor({ failures }: Context): (order: Order) => number {
  const rooms = new Map<string, number>()
  return ({ transfer: { payer } }) => {
    const known = rooms.get(payer) ?? failures.roomOf(payer)
    rooms.set(payer, known)
    return known
  }
}

/** Nodes want the whole limit paid for in advance: half of what the lane has, for one batch. */
function gasMaxOf({ network, head }: Rail, { balanceWei }: LaneState): bigint {
  const most = BigInt(network.batchGasMax)
  const { maxFeeWei } = fees(head, network.feeCapWei)
  if (balanceWei === undefined || maxFeeWei === 0n) return most
  const affordable = balanceWei / maxFeeWei / 2n
  return affordable < most ? affordable : most
}

function mayShare(context: Context, rail: Rail, order: Order): boolean {
  if (order.isAlone || order.hasCode === true) return false
  if (rail.unshared.has(order.transfer.payer)) return false
  if (!Burnt.mayShare(context, rail, order.purpose.product)) return false
  if (order.hasCode === undefined && isPlain(context, rail, order.transfer.payer)) {
    order.hasCode = false
  }
  return order.hasCode === false
}

function isPlain(context: Context, rail: Rail, payer: string): boolean {
  return (rail.plain.get(payer) ?? 0) > context.now()
}

/** Looks which waiting payers have code, all in one call, while they wait anyway. */
function probe(context: Context, rail: Rail): void {
  if (rail.isProbing) return
  const unknown = rail.queue.filter((order) => order.hasCode === undefined && !order.isAlone)
  if (unknown.length === 0) return
  rail.isProbing = true
  const payers = [...new Set(unknown.map(({ transfer }) => transfer.payer))]
  void findPlain(rail, payers).then((plain) => {
    rail.isProbing = false
    const until = context.now() + plainKeptMs
    for (const order of unknown) {
      const { payer } = order.transfer
      if (plain.has(payer)) rail.plain.set(payer, until)
      // Unknown is treated as code: alone it harms nobody.
      order.hasCode = plain.has(payer) ? false : undefined
      if (order.hasCode === undefined) order.isAlone = true
      order.isUrgent ||= order.isAlone
    }
    pump(context, rail)
  })
}
