import type { Hex } from 'viem'
import type { HeldReason, Order, RefundReason } from '../../db/Order'
import type { Payment } from '../../db/Payment'
import * as Address from '../protocol/Address'
import { disputesMax, type Sight } from '../settlement/witnesses'
import { type Context, tokenOf } from './context'
import {
  askAgain,
  deliveredBy,
  findRefund,
  isNews,
  isOver,
  isRefundedBy,
  isWithoutEffect,
  returnedBy,
} from './evidence'
import { refundOf, swapOf } from './jobs'
import { refundId, swapId } from './Order'

/**
 * One step of an order, decided only from what the database and the chain say now, so that it may be
 * made again at any time: after a crash, twice, or in vain.
 */

/**
 * `again`: the state has changed. `wait`: an event of the settlement wakes the order. `later`: nothing
 * else will, so it is tried again after a while.
 */
export type Next = 'again' | 'wait' | 'later'

/** Money that could not be swapped for so long goes back. */
const lateMs = 15 * 60 * 1000
const runWaitMs = 2_000

/** Moves an order on by one step. Throws what the node or the settlement throws: try again. */
export function step(context: Context, order: Order): Promise<Next> | Next {
  switch (order.state) {
    case 'settling':
      return settling(context, order)
    case 'settled':
      return settled(context, order)
    case 'swapping':
      return swapping(context, order)
    case 'delivered':
      return delivered(context, order)
    case 'refunding':
      return order.refundTx === undefined ? beginRefund(context, order) : refunding(context, order)
    case 'refunded':
      return refunded(context, order)
    case 'held':
      return held(context, order)
    case 'failed':
      return 'wait'
  }
}

async function settling(context: Context, order: Order): Promise<Next> {
  const { store, now, unseen } = context
  const { id } = order
  const payment = paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') {
    unseen.delete(id)
    if (payment.state === 'expired') context.change(() => store.fail(id, now()))
    return 'wait'
  }
  // What no node has shown is looked for here: the state must not go back and forth meanwhile.
  if (unseen.has(id) && (await sightOf(context, order, payment)) === 'unseen') return 'later'
  return turn(context.change(() => store.settle(id, payment.transaction, now())))
}

async function settled(context: Context, order: Order): Promise<Next> {
  const { store, now, market } = context
  const { id, usdgAtomic, recipient } = order
  const payment = paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') return turn(context.change(() => store.unsettle(id, now())))
  if (!isOurs(context, payment)) return 'later'
  const isLate = order.settledAt !== undefined && now() > order.settledAt + lateMs
  const token = tokenOf(context, order)
  // Asked together: the answers are as old as each other when the swap is written.
  const [shown, sight] = await Promise.all([
    sightOf(context, order, payment),
    // Money that is late goes back, also when the market gives no answer at all.
    isLate || !token
      ? undefined
      : market.see(token, usdgAtomic, [recipient, context.settlement.desk]),
  ])
  if (shown === 'disputed') return holdDisputed(context, order)
  if (shown === 'unseen') {
    context.change(() => store.unsettle(id, now()))
    return 'later'
  }
  const refuse = (reason: RefundReason, detail: unknown) => {
    context.log('order-refused', { order: id, reason, detail })
    return turn(context.change(() => store.refund(id, reason, now())))
  }
  if (isLate) return refuse('too-late', undefined)
  if (sight === undefined) return refuse('check-failed', 'the token is not listed any more')
  const { verdict, sharesAtomic } = sight
  if (sharesAtomic === undefined) return refuse('no-quote', undefined)
  if (sharesAtomic < order.floorAtomic) return refuse('below-floor', sharesAtomic)
  if (!verdict.ok) return refuse('check-failed', verdict.code)
  const ended = await context.settlement.run(swapOf(context, order), {
    waitMs: runWaitMs,
    write(hash) {
      // Check the payment again, because a reorganisation may have come while this waited.
      must(paymentOf(context, order.paymentId).state === 'confirmed')
      must(context.change(() => store.swap(id, hash, now())))
    },
  })
  return turn(ended.kind !== 'unavailable' && store.find(id)?.state === 'swapping')
}

async function swapping(context: Context, order: Order): Promise<Next> {
  const { store, now, settlement } = context
  const { id } = order
  const job = settlement.job(swapId(order))
  if (job === undefined) throw new Error(`order ${id} has no swap`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed' || job.state === 'replaced') {
    const reason = job.state === 'failed' ? 'swap-failed' : 'swap-replaced'
    return turn(context.change(() => store.refund(id, reason, now())))
  }
  const ended = await settlement.run(swapOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { transaction: hash } = ended
  const isLogged = deliveredBy(order, ended.receipt) > 0n
  const receipt = isLogged ? ended.receipt : await askAgain(context, order, hash)
  const amountAtomic = deliveredBy(order, receipt)
  const returnedAtomic = returnedBy(context, order, receipt)
  // The swap succeeded: whatever its receipt says, the money is spent and nothing is refunded.
  return turn(
    context.change(() =>
      amountAtomic > 0n
        ? store.deliver(id, { hash, amountAtomic, returnedAtomic }, now())
        : store.hold(id, 'delivery-not-found', now()),
    ),
  )
}

function delivered(context: Context, order: Order): Next {
  if (paymentOf(context, order.paymentId).state === 'expired') {
    context.log('order-unpaid', { order: order.id })
  }
  if (context.settlement.job(swapId(order))?.state === 'confirmed') return 'wait'
  return turn(context.change(() => context.store.undeliver(order.id, context.now())))
}

/** Writes the refund, once everything is proven that it rests on. */
async function beginRefund(context: Context, order: Order): Promise<Next> {
  const { store, now, settlement } = context
  const { id, refundAttempts: attempts } = order
  const payment = paymentOf(context, order.paymentId)
  if (payment.state === 'expired') {
    return turn(context.change(() => store.hold(id, 'settlement-lost', now())))
  }
  if (payment.state !== 'confirmed') return 'wait'
  if (!isOurs(context, payment)) return 'later'
  const last = attempts > 0 ? refundId(order) : undefined
  const lastTx = last && settlement.job(last)?.transaction
  if (last && lastTx && !isWithoutEffect(context, last)) {
    // A reorganisation brought the refund back that had failed.
    return turn(context.change(() => store.resumeAttempt(id, attempts, lastTx, now())))
  }
  if (order.swapTx !== undefined && !isWithoutEffect(context, swapId(order))) {
    // A reorganisation took the failed swap away.
    return turn(context.change(() => store.reswap(id, undefined, now())))
  }
  if (last && !(await isOver(context, last))) return 'later'
  const shown = await sightOf(context, order, payment)
  if (shown === 'disputed') return holdDisputed(context, order)
  if (shown === 'unseen') return 'later'
  const next = { ...order, refundAttempts: attempts + 1 }
  const ended = await settlement.run(refundOf(context, next), {
    waitMs: runWaitMs,
    write(hash) {
      // A reorganisation may have come while it waited: all that it rests on is looked at again.
      must(paymentOf(context, order.paymentId).state === 'confirmed')
      must(order.swapTx === undefined || isWithoutEffect(context, swapId(order)))
      must(last === undefined || isWithoutEffect(context, last))
      must(context.change(() => store.attemptRefund(id, attempts, hash, now())))
    },
  })
  return turn(ended.kind !== 'unavailable' && store.find(id)?.refundTx !== undefined)
}

async function refunding(context: Context, order: Order): Promise<Next> {
  const { store, now, settlement } = context
  const { id } = order
  const job = settlement.job(refundId(order))
  if (job === undefined) throw new Error(`order ${id} has no refund`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed') return unrefunded(context, order, 'refund-failed')
  if (job.state === 'replaced') {
    return turn(context.change(() => store.abandonRefund(id, order.refundAttempts, now())))
  }
  const ended = await settlement.run(refundOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { receipt, transaction: hash } = ended
  // Success proves nothing: for a used nonce USDG only logs an event and does not revert.
  const isPaid =
    isRefundedBy(context, order, receipt) ||
    isRefundedBy(context, order, await askAgain(context, order, hash))
  if (!isPaid) return unrefunded(context, order, 'refund-not-found')
  return turn(context.change(() => store.refunded(id, hash, now())))
}

/** Handles a refund that was included and paid nothing: the use of the nonce tells why. */
async function unrefunded(context: Context, order: Order, reason: HeldReason): Promise<Next> {
  const { store, now } = context
  const { id } = order
  if (isSwapped(context, order)) {
    // A reorganisation included the failed swap again, before the refund.
    return turn(context.change(() => store.reswap(id, order.refundTx, now())))
  }
  const hash = await findRefund(context, order)
  return turn(
    context.change(() => (hash ? store.refunded(id, hash, now()) : store.hold(id, reason, now()))),
  )
}

async function refunded(context: Context, order: Order): Promise<Next> {
  const { store, now, settlement, log } = context
  const { id, refundTx } = order
  const refund = settlement.job(refundId(order))
  const isSame = refund?.state === 'confirmed' && refund.transaction === refundTx
  if (isSame && !isSwapped(context, order)) return 'wait'
  const isUnderWay = refund?.state === 'broadcast' || refundTx === undefined
  if (isUnderWay || !isRefundedBy(context, order, await askAgain(context, order, refundTx))) {
    return turn(context.change(() => store.unrefund(id, now())))
  }
  // Orders of an earlier version: swap and refund share no nonce.
  if (isSwapped(context, order)) log('order-paid-twice', { order: id })
  return 'wait'
}

/** Whether the chain has the swap now, as far as nodes show. */
function isSwapped({ settlement }: Context, order: Order): boolean {
  return settlement.job(swapId(order))?.state === 'confirmed'
}

/** Goes on when an operator asks for it and it is of use, or when the chain has changed by itself. */
async function held(context: Context, order: Order): Promise<Next> {
  const { store, now, settlement, log } = context
  const { id, refundTx, retryAt, heldReason } = order
  const stateOf = (job: string) => settlement.job(job)?.state
  const resumeSwap = () => turn(context.change(() => store.resumeSwap(id, now())))
  const resumeRefund = (transaction: Hex | undefined) =>
    turn(context.change(() => store.resumeRefund(id, transaction, now())))
  const isRefund = heldReason === 'refund-failed' || heldReason === 'refund-not-found'
  // A reorganisation included the swap again.
  if (isRefund && isSwapped(context, order)) return resumeRefund(refundTx)
  if (heldReason === 'refund-failed') {
    // Under way again by itself, or for good without effect: only then may another one be written.
    if (stateOf(refundId(order)) !== 'failed') return resumeRefund(refundTx)
    return retryAt === undefined ? 'wait' : resumeRefund(undefined)
  }
  const isSwap = heldReason === 'delivery-not-found'
  const isSame = stateOf(isSwap ? swapId(order) : refundId(order)) === 'confirmed'
  if (isSwap && !isSame) return resumeSwap()
  if (heldReason === 'refund-not-found' && !isSame) return resumeRefund(refundTx)
  if (retryAt === undefined) return 'wait'
  if (await isNews(context, order)) {
    if (heldReason === 'settlement-disputed' && order.refundReason === undefined) {
      return turn(context.change(() => store.resumeSettled(id, now())))
    }
    return isSwap ? resumeSwap() : resumeRefund(refundTx)
  }
  log('order-held-still', { order: id, heldReason })
  context.change(() => store.dismissRetry(id, retryAt, now()))
  return 'wait'
}

/** First time that an operator is told of a settlement without receipt. Then after twice the time. */
const tellAfterMs = 60_000

/** What the nodes show of the payment. Remembers an unseen payment and logs it after a while. */
async function sightOf(context: Context, { id }: Order, payment: Payment): Promise<Sight> {
  const { unseen, now, log } = context
  const sight = await context.settlement.sightOf(payment)
  if (sight === 'shown') {
    unseen.delete(id)
    return sight
  }
  const known = unseen.get(id) ?? { since: now(), tellAt: now() + tellAfterMs, disputes: 0 }
  unseen.set(id, known)
  known.disputes = sight === 'disputed' ? known.disputes + 1 : 0
  if (now() < known.tellAt) return sight
  const seconds = Math.round((now() - known.since) / 1000)
  known.tellAt = now() + (now() - known.since)
  log('order-settlement-unseen', { order: id, transaction: payment.transaction, seconds })
  return sight
}

/** No rule tells which node lies: send nothing and hold the order for an operator. */
function holdDisputed(context: Context, { id, settlementTx }: Order): Next {
  const { unseen, store, now, log } = context
  if ((unseen.get(id)?.disputes ?? 0) < disputesMax) return 'later'
  unseen.delete(id)
  log('settlement-disputed', { order: id, transaction: settlementTx })
  return turn(context.change(() => store.hold(id, 'settlement-disputed', now())))
}

/**
 * Whether this desk was paid. Another one, whose key or network the operator has replaced, holds the
 * money of its orders: what this one has belongs to others.
 */
export function isOurs(
  { settlement, stock }: Pick<Context, 'settlement' | 'stock'>,
  { transfer }: Payment,
): boolean {
  return transfer.network === stock.network && Address.equal(transfer.payee, settlement.desk)
}

function paymentOf({ settlement }: Context, id: string): Payment {
  const payment = settlement.findById(id)
  if (payment === undefined) throw new Error(`no payment ${id}`)
  return payment
}

/** Inside a write: what does not belong together is rolled back, and nothing was sent. */
function must(isDone: boolean): void {
  if (!isDone) throw new Error('the order has changed meanwhile')
}

/** What was overtaken is looked at again, but never in a tight loop. */
function turn(isDone: boolean): Next {
  return isDone ? 'again' : 'later'
}
