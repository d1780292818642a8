import type { Hex } from 'viem'
import type { HeldReason, Order, RefundReason } from '../../db/Order'
import type { Payment } from '../../db/Payment'
import type { JobEnd } from '../settlement/Job'
import { disputesMax, type Sight } from '../settlement/witnesses'
import { type Context, tokenOf } from './context'
import {
  askAgain,
  deliveredBy,
  findRefund,
  isNews,
  isOurs,
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
export async function step(context: Context, order: Order): Promise<Next> {
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
  const { now, unseen } = context
  const { id } = order
  const payment = await paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') {
    unseen.delete(id)
    if (payment.state === 'expired') await context.move({ kind: 'fail', id, at: now() })
    return 'wait'
  }
  // What no node has shown is looked for here: the state must not go back and forth meanwhile.
  if (unseen.has(id) && (await sightOf(context, order, payment)) === 'unseen') return 'later'
  const { transaction: hash } = payment
  return turn(await context.move({ kind: 'settle', id, at: now(), hash }))
}

async function settled(context: Context, order: Order): Promise<Next> {
  const { now, market } = context
  const { id, usdgAtomic, recipient } = order
  const unsettle = () => context.move({ kind: 'unsettle', id, at: now() })
  const payment = await paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') return turn(await unsettle())
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
    await unsettle()
    return 'later'
  }
  const refuse = async (reason: RefundReason, detail: unknown) => {
    context.log('order-refused', { order: id, reason, detail })
    return turn(await context.move({ kind: 'refund', id, at: now(), reason }))
  }
  if (isLate) return refuse('too-late', undefined)
  if (sight === undefined) return refuse('check-failed', 'the token is not listed any more')
  const { verdict, sharesAtomic } = sight
  if (sharesAtomic === undefined) return refuse('no-quote', undefined)
  if (sharesAtomic < order.floorAtomic) return refuse('below-floor', sharesAtomic)
  if (!verdict.ok) return refuse('check-failed', verdict.code)
  const ended = await context.settlement.run(swapOf(context, order), {
    waitMs: runWaitMs,
    // Check the payment again, because a reorganisation may have come while this waited.
    rider: {
      kind: 'order',
      ride: { kind: 'swap', id, at: now() },
      confirmed: order.paymentId,
    },
  })
  return turn(await isWritten(context, id, ended, ({ state }) => state === 'swapping'))
}

async function swapping(context: Context, order: Order): Promise<Next> {
  const { now, settlement } = context
  const { id } = order
  const job = await settlement.job(swapId(order))
  if (job === undefined) throw new Error(`order ${id} has no swap`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed' || job.state === 'replaced') {
    const reason = job.state === 'failed' ? 'swap-failed' : 'swap-replaced'
    return turn(await context.move({ kind: 'refund', id, at: now(), reason }))
  }
  const ended = await settlement.run(swapOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { transaction: hash } = ended
  const isLogged = deliveredBy(order, ended.receipt) > 0n
  const receipt = isLogged ? ended.receipt : await askAgain(context, order, hash)
  const amountAtomic = deliveredBy(order, receipt)
  const returnedAtomic = returnedBy(context, order, receipt)
  // The swap succeeded: whatever its receipt says, the money is spent and nothing is refunded.
  const at = now()
  return turn(
    await context.move(
      amountAtomic > 0n
        ? { kind: 'deliver', id, at, hash, amountAtomic, returnedAtomic }
        : { kind: 'hold', id, at, reason: 'delivery-not-found' },
    ),
  )
}

async function delivered(context: Context, order: Order): Promise<Next> {
  const { id } = order
  if ((await paymentOf(context, order.paymentId)).state === 'expired') {
    context.log('order-unpaid', { order: id })
  }
  if (await isSwapped(context, order)) return 'wait'
  return turn(await context.move({ kind: 'undeliver', id, at: context.now() }))
}

/** Writes the refund, once everything is proven that it rests on. */
async function beginRefund(context: Context, order: Order): Promise<Next> {
  const { now, settlement } = context
  const { id, paymentId, refundAttempts: attempts } = order
  const payment = await paymentOf(context, paymentId)
  if (payment.state === 'expired') {
    return turn(await context.move({ kind: 'hold', id, at: now(), reason: 'settlement-lost' }))
  }
  if (payment.state !== 'confirmed') return 'wait'
  if (!isOurs(context, payment)) return 'later'
  const last = attempts > 0 ? refundId(order) : undefined
  const hash = last && (await settlement.job(last))?.transaction
  if (last && hash && !(await isWithoutEffect(context, last))) {
    // A reorganisation brought the refund back that had failed.
    return turn(await context.move({ kind: 'resume-attempt', id, at: now(), attempts, hash }))
  }
  const swap = order.swapTx && swapId(order)
  if (swap && !(await isWithoutEffect(context, swap))) {
    // A reorganisation took the failed swap away.
    return turn(await context.move({ kind: 'reswap', id, at: now(), refundTx: undefined }))
  }
  if (last && !(await isOver(context, last))) return 'later'
  const shown = await sightOf(context, order, payment)
  if (shown === 'disputed') return holdDisputed(context, order)
  if (shown === 'unseen') return 'later'
  const next = { ...order, refundAttempts: attempts + 1 }
  const ended = await settlement.run(refundOf(context, next), {
    waitMs: runWaitMs,
    // A reorganisation may have come while it waited: all that it rests on is looked at again.
    rider: {
      kind: 'order',
      ride: { kind: 'attempt-refund', id, at: now(), attempts },
      confirmed: paymentId,
      withoutEffect: [swap, last].filter((each) => each !== undefined),
    },
  })
  return turn(await isWritten(context, id, ended, ({ refundTx }) => refundTx !== undefined))
}

async function refunding(context: Context, order: Order): Promise<Next> {
  const { now, settlement } = context
  const { id, refundAttempts: attempts } = order
  const job = await settlement.job(refundId(order))
  if (job === undefined) throw new Error(`order ${id} has no refund`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed') return unrefunded(context, order, 'refund-failed')
  if (job.state === 'replaced') {
    return turn(await context.move({ kind: 'abandon-refund', id, at: now(), attempts }))
  }
  const ended = await settlement.run(refundOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { receipt, transaction: hash } = ended
  // Success proves nothing: for a used nonce USDG only logs an event and does not revert.
  const isPaid =
    (await isRefundedBy(context, order, receipt)) ||
    (await isRefundedBy(context, order, await askAgain(context, order, hash)))
  if (!isPaid) return unrefunded(context, order, 'refund-not-found')
  return turn(await context.move({ kind: 'refunded', id, at: now(), hash }))
}

/** Handles a refund that was included and paid nothing: the use of the nonce tells why. */
async function unrefunded(context: Context, order: Order, reason: HeldReason): Promise<Next> {
  const { now } = context
  const { id, refundTx } = order
  if (await isSwapped(context, order)) {
    // A reorganisation included the failed swap again, before the refund.
    return turn(await context.move({ kind: 'reswap', id, at: now(), refundTx }))
  }
  const hash = await findRefund(context, order)
  const at = now()
  return turn(
    await context.move(
      hash ? { kind: 'refunded', id, at, hash } : { kind: 'hold', id, at, reason },
    ),
  )
}

async function refunded(context: Context, order: Order): Promise<Next> {
  const { now, settlement, log } = context
  const { id, refundTx } = order
  const refund = await settlement.job(refundId(order))
  const isSame = refund?.state === 'confirmed' && refund.transaction === refundTx
  if (isSame && !(await isSwapped(context, order))) return 'wait'
  const isUnderWay = refund?.state === 'broadcast' || refundTx === undefined
  if (
    isUnderWay ||
    !(await isRefundedBy(context, order, await askAgain(context, order, refundTx)))
  ) {
    return turn(await context.move({ kind: 'unrefund', id, at: now() }))
  }
  // Orders of an earlier version: swap and refund share no nonce.
  if (await isSwapped(context, order)) log('order-paid-twice', { order: id })
  return 'wait'
}

/** Whether the chain has the swap now, as far as nodes show. */
async function isSwapped({ settlement }: Context, order: Order): Promise<boolean> {
  return (await settlement.job(swapId(order)))?.state === 'confirmed'
}

/** Goes on when an operator asks for it and it is of use, or when the chain has changed by itself. */
async function held(context: Context, order: Order): Promise<Next> {
  const { now, settlement, log } = context
  const { id, refundTx, retryAt, heldReason } = order
  const stateOf = async (job: string) => (await settlement.job(job))?.state
  const resumeSwap = async () => turn(await context.move({ kind: 'resume-swap', id, at: now() }))
  const resumeRefund = async (transaction: Hex | undefined) =>
    turn(await context.move({ kind: 'resume-refund', id, at: now(), refundTx: transaction }))
  const isRefund = heldReason === 'refund-failed' || heldReason === 'refund-not-found'
  // A reorganisation included the swap again.
  if (isRefund && (await isSwapped(context, order))) return resumeRefund(refundTx)
  if (heldReason === 'refund-failed') {
    // Under way again by itself, or for good without effect: only then may another one be written.
    if ((await stateOf(refundId(order))) !== 'failed') return resumeRefund(refundTx)
    return retryAt === undefined ? 'wait' : resumeRefund(undefined)
  }
  const isSwap = heldReason === 'delivery-not-found'
  const isSame = (await stateOf(isSwap ? swapId(order) : refundId(order))) === 'confirmed'
  if (isSwap && !isSame) return resumeSwap()
  if (heldReason === 'refund-not-found' && !isSame) return resumeRefund(refundTx)
  if (retryAt === undefined) return 'wait'
  if (await isNews(context, order)) {
    if (heldReason === 'settlement-disputed' && order.refundReason === undefined) {
      return turn(await context.move({ kind: 'resume-settled', id, at: now() }))
    }
    return isSwap ? resumeSwap() : resumeRefund(refundTx)
  }
  log('order-held-still', { order: id, heldReason })
  await context.move({ kind: 'dismiss-retry', id, at: now(), retryAt })
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
async function holdDisputed(context: Context, { id, settlementTx }: Order): Promise<Next> {
  const { unseen, now, log } = context
  if ((unseen.get(id)?.disputes ?? 0) < disputesMax) return 'later'
  unseen.delete(id)
  log('settlement-disputed', { order: id, transaction: settlementTx })
  return turn(await context.move({ kind: 'hold', id, at: now(), reason: 'settlement-disputed' }))
}

async function paymentOf({ settlement }: Context, id: string): Promise<Payment> {
  const payment = await settlement.findById(id)
  if (payment === undefined) throw new Error(`no payment ${id}`)
  return payment
}

/** Whether the order was moved with its job. Throws when the order could not be moved. */
async function isWritten(
  context: Context,
  id: string,
  ended: JobEnd,
  isMoved: (order: Order) => boolean,
): Promise<boolean> {
  if (ended.kind === 'unavailable') return false
  if (ended.kind === 'refused') {
    throw new Error(`the order has changed meanwhile: ${ended.reason}`)
  }
  const order = await context.orders.find(id)
  if (order === undefined || !isMoved(order)) return false
  context.tell(order)
  return true
}

/** What was overtaken is looked at again, but never in a tight loop. */
function turn(isDone: boolean): Next {
  return isDone ? 'again' : 'later'
}
