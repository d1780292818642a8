import { fees } from '../chain/head'
import * as Assign from './assign'
import * as Batch from './batch'
import * as Burnt from './burnt'
import { findPlain, plainKeptMs } from './code'
import type { ChainState, Context, Order, Relayer, Submitted } from './context'
import { callOf } from './deploy'
import * as Gas from './gas'
import { dispatch } from './jobs'
import * as Relayers from './relayer'
import * as Verify from './verify'

/** Longest time that payments collect behind a transaction that is under way. */
const collectMs = 15

/** Puts an order in the queue of its network. Its admission never rejects. */
export function submit(
  context: Context,
  chain: ChainState,
  input: Parameters<Context['submit']>[1],
): Submitted {
  const { promise, resolve } = Promise.withResolvers<Parameters<Order['done']>[0]>()
  const { transfer } = input
  const order: Order = {
    ...input,
    hasCode: input.hasCode ?? (isPlain(context, chain, transfer.payer) ? false : undefined),
    isUrgent: input.isAlone || input.hasCode === true,
    logKey: Assign.keyOf(transfer),
    call: callOf(transfer),
    isGivenUp: false,
    code: undefined,
    fees: undefined,
    done: resolve,
  }
  chain.queue.push(order)
  // What comes in the same turn of the event loop leaves together.
  chain.arrival ??= setImmediate(() => {
    chain.arrival = undefined
    pump(context, chain)
  })
  return {
    admission: promise,
    cancel() {
      const index = chain.queue.indexOf(order)
      if (index >= 0) chain.queue.splice(index, 1)
      order.isGivenUp = true
      return index >= 0
    },
  }
}

/** Gives what waits to the relayers that are free. When no relayer can send, nothing waits. */
export function pump(context: Context, chain: ChainState): void {
  dispatch(context, chain)
  while (chain.queue.length > 0) {
    if (context.signal.aborted || !Relayers.isReady(chain)) {
      for (const order of chain.queue.splice(0)) order.done(Verify.unavailable(undefined))
      return
    }
    const relayer = freeRelayer(chain)
    if (!relayer) break
    const orders = take(context, chain, relayer)
    if (orders.length === 0) break
    chain.isDue = false
    relayer.isPreparing = true
    void Batch.dispatch(context, chain, relayer, orders).then((returned) => {
      relayer.isPreparing = false
      for (const order of returned) if (order.isGivenUp) order.done(Verify.busy)
      chain.queue.unshift(...returned.filter(({ isGivenUp }) => !isGivenUp))
      pump(context, chain)
    })
  }
  if (chain.queue.length === 0) return
  probe(context, chain)
  if (chain.isDue || chain.collecting !== undefined) return
  chain.collecting = setTimeout(() => {
    chain.collecting = undefined
    chain.isDue = true
    pump(context, chain)
  }, collectMs)
}

/**
 * The relayer with the least under way, if it may take something now. A lone payment leaves at once when
 * a relayer has nothing under way; else what comes collects, but not for longer than the time, and not
 * when it is enough for a batch or gains nothing by waiting.
 */
function freeRelayer(chain: ChainState): Relayer | undefined {
  let best: Relayer | undefined
  for (const relayer of chain.relayers) {
    if (
      relayer.isReserved ||
      relayer.isPreparing ||
      relayer.open >= Relayers.openMax ||
      Relayers.pausedBy(relayer) !== undefined
    )
      continue
    if (!best || relayer.open < best.open) best = relayer
  }
  if (!best || best.open === 0) return best
  const { queue, network } = chain
  const mayLeave = chain.isDue || queue.length >= network.batchMax || queue[0]?.isUrgent === true
  return mayLeave ? best : undefined
}

/**
 * The oldest order and what may share its transaction: payers without code, the same product, logs
 * that can be told apart, within the limits. In the order of arrival.
 */
function take(context: Context, chain: ChainState, relayer: Relayer): Order[] {
  const { queue, network } = chain
  const gasMax = gasMaxOf(chain, relayer)
  const room = roomFor(context)
  // Orders of a payer at its limit wait; orders of others go first.
  const start = queue.findIndex((order) => room(order) > 0)
  const first = queue[start]
  if (!first) return []
  if (!mayShare(context, chain, first)) return queue.splice(start, 1)
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
    const more = gas + Gas.limitOf(chain, order.transfer)
    const isRoom =
      taken.length < Math.max(1, network.batchMax) &&
      (taken.length === 0 || Gas.limitOfBatch(more) <= gasMax)
    const fits =
      isRoom && order.purpose.product === first.purpose.product && mayShare(context, chain, order)
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
  chain.queue = left
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

/** Nodes want the whole limit paid for in advance: half of what the relayer has, for one batch. */
function gasMaxOf({ network, head }: ChainState, { balanceWei }: Relayer): bigint {
  const most = BigInt(network.batchGasMax)
  const { maxFeeWei } = fees(head, network.feeCapWei)
  if (balanceWei === undefined || maxFeeWei === 0n) return most
  const affordable = balanceWei / maxFeeWei / 2n
  return affordable < most ? affordable : most
}

function mayShare(context: Context, chain: ChainState, order: Order): boolean {
  if (order.isAlone || order.hasCode === true) return false
  if (chain.unshared.has(order.transfer.payer)) return false
  if (!Burnt.mayShare(context, chain, order.purpose.product)) return false
  if (order.hasCode === undefined && isPlain(context, chain, order.transfer.payer)) {
    order.hasCode = false
  }
  return order.hasCode === false
}

function isPlain(context: Context, chain: ChainState, payer: string): boolean {
  return (chain.plain.get(payer) ?? 0) > context.now()
}

/** Looks which waiting payers have code, all in one call, while they wait anyway. */
function probe(context: Context, chain: ChainState): void {
  if (chain.isProbing) return
  const unknown = chain.queue.filter((order) => order.hasCode === undefined && !order.isAlone)
  if (unknown.length === 0) return
  chain.isProbing = true
  const payers = [...new Set(unknown.map(({ transfer }) => transfer.payer))]
  void findPlain(chain, payers).then((plain) => {
    chain.isProbing = false
    const until = context.now() + plainKeptMs
    for (const order of unknown) {
      const { payer } = order.transfer
      if (plain.has(payer)) chain.plain.set(payer, until)
      // Unknown is treated as code: alone it harms nobody.
      order.hasCode = plain.has(payer) ? false : undefined
      if (order.hasCode === undefined) order.isAlone = true
      order.isUrgent ||= order.isAlone
    }
    pump(context, chain)
  })
}
