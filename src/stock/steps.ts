import type { Hex } from 'viem'
import type { HeldReason, Order, RefundReason } from '../../db/Order'
import type { OrderLedger, OrderMove } from '../../db/orders'
import type { Payment } from '../../db/Payment'
import * as Creation from '../chain/creation'
import type * as Logs from '../chain/logs'
import * as Receipt from '../chain/receipt'
import type { NetworkConfig, Stock, StockToken } from '../config/Config'
import type { WriteEvent } from '../log'
import * as Address from '../protocol/Address'
import * as Transfer from '../protocol/Transfer'
import { disputesMax, type Observation } from '../settlement/read/cross-check'
import { findUse, readSuccess, transferGas, transferSeconds } from '../settlement/read/own-transfer'
import type { Job, JobEnd } from '../settlement/send/Job'
import type { Settlement } from '../settlement/settlement'
import type { Market } from './market'
import { nonceOf, refundId, swapId } from './Order'

/** The parts of settlement that the desk uses. */
export type DeskSettlement = Pick<
  Settlement,
  | 'desk'
  | 'hasDesk'
  | 'deskEpoch'
  | 'isShared'
  | 'run'
  | 'job'
  | 'onJob'
  | 'onPayment'
  | 'findById'
  | 'read'
  | 'rpc'
  | 'observationOf'
>

/** The parts that the steps of an order share. */
export type DeskContext = {
  orders: OrderLedger
  settlement: DeskSettlement
  /** The market in which the desk buys. */
  market: Pick<Market, 'snapshotOf' | 'judge' | 'swap'>
  stock: Stock
  network: Pick<NetworkConfig, 'chainId' | 'asset' | 'reorgDepth'>
  now: () => number
  log: WriteEvent
  /** Block at which a job was first observed to have ended without effect, by its id. */
  endedAt: Map<string, bigint>
  /** Blocks that a node searches at once for logs. */
  logSpans: Logs.Spans
  /**
   * Orders with a confirmed payment that too few nodes show: the start (unix ms), the time of the
   * next log event, and the number of contradictions in a row.
   */
  unseen: Map<string, { since: number; logAt: number; disputes: number }>
  /** Logs an order that was moved, and resumes the requests that wait for it. */
  notify(order: Order): void
}

/**
 * One step of an order. It depends only on the current database and chain, so it may be repeated at
 * any time: after a crash, twice, or without effect.
 */

/**
 * `again`: the state has changed. `wait`: an event of the settlement continues the order. `later`:
 * there is no such event, so the step is tried again after a while.
 */
export type Next = 'again' | 'wait' | 'later'

/** Money that could not be swapped for so long is refunded, ms. */
const lateMs = 15 * 60 * 1000
const runWaitMs = 2_000

/** Moves an order on by one step. Throws the errors of the node or the settlement: try again. */
export async function step(context: DeskContext, order: Order): Promise<Next> {
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
      return failed(context, order)
  }
}

async function settling(context: DeskContext, order: Order): Promise<Next> {
  const { unseen } = context
  const { id } = order
  const payment = await paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') {
    unseen.delete(id)
    if (payment.state === 'expired') await move(context, order, { kind: 'fail' })
    return 'wait'
  }
  // Check a payment here that no node has shown, so that the state does not alternate meanwhile.
  if (unseen.has(id) && (await observationOf(context, order, payment)) === 'unseen') return 'later'
  return move(context, order, { kind: 'settle', hash: payment.transaction })
}

/** A reorganisation that is deeper than `reorg_depth` may mine a payment that had expired. */
async function failed(context: DeskContext, order: Order): Promise<Next> {
  if ((await paymentOf(context, order.paymentId)).state !== 'confirmed') return 'wait'
  return move(context, order, { kind: 'revive' })
}

async function settled(context: DeskContext, order: Order): Promise<Next> {
  const { now, market } = context
  const { id, usdgAtomic, recipient } = order
  const payment = await paymentOf(context, order.paymentId)
  if (payment.state !== 'confirmed') return move(context, order, { kind: 'unsettle' })
  if (!isOurs(context, payment)) return 'later'
  const isLate = order.settledAt !== undefined && now() > order.settledAt + lateMs
  const token = tokenOf(context, order)
  // Read both together, so that the answers have the same age when the swap is written.
  const [shown, snapshot] = await Promise.all([
    observationOf(context, order, payment),
    // Late money is refunded, even when the market gives no answer.
    isLate || !token
      ? undefined
      : market.snapshotOf(token, usdgAtomic, {
          people: [recipient, context.settlement.desk],
          fresh: true,
        }),
  ])
  if (shown === 'disputed') return holdDisputed(context, order)
  if (shown === 'unseen') {
    await move(context, order, { kind: 'unsettle' })
    return 'later'
  }
  const refuse = async (reason: RefundReason, detail: unknown) => {
    context.log('order-refused', { order: id, reason, detail })
    return move(context, order, { kind: 'refund', reason })
  }
  if (isLate) return refuse('too-late', undefined)
  if (snapshot === undefined) return refuse('check-failed', 'the token is no longer listed')
  const { sharesAtomic } = snapshot
  const verdict = market.judge(snapshot)
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
  return notifyWritten(context, id, ended, ({ state }) => state === 'swapping')
}

async function swapping(context: DeskContext, order: Order): Promise<Next> {
  const { settlement } = context
  const job = await settlement.job(swapId(order))
  if (job === undefined) throw new Error(`order ${order.id} has no swap`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed' || job.state === 'replaced') {
    const reason = job.state === 'failed' ? 'swap-failed' : 'swap-replaced'
    return move(context, order, { kind: 'refund', reason })
  }
  const ended = await settlement.run(swapOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { transaction: hash } = ended
  const isLogged = deliveredBy(order, ended.receipt) > 0n
  const receipt = isLogged ? ended.receipt : await askAgain(context, order, hash)
  const amountAtomic = deliveredBy(order, receipt)
  const returnedAtomic = returnedBy(context, order, receipt)
  // The swap succeeded: the money is spent and nothing is refunded, whatever its receipt contains.
  if (amountAtomic === 0n) return hold(context, order, 'delivery-not-found')
  return move(context, order, { kind: 'deliver', hash, amountAtomic, returnedAtomic })
}

async function delivered(context: DeskContext, order: Order): Promise<Next> {
  if ((await paymentOf(context, order.paymentId)).state === 'expired') {
    context.log('order-unpaid', { order: order.id })
  }
  if (await isSwapped(context, order)) return 'wait'
  return move(context, order, { kind: 'undeliver' })
}

/** Writes the refund, once its preconditions are proven. */
async function beginRefund(context: DeskContext, order: Order): Promise<Next> {
  const { now, settlement } = context
  const { id, paymentId, refundAttempts: attempts } = order
  const payment = await paymentOf(context, paymentId)
  if (payment.state === 'expired') return hold(context, order, 'settlement-lost')
  if (payment.state !== 'confirmed') return 'wait'
  if (!isOurs(context, payment)) return 'later'
  const last = attempts > 0 ? refundId(order) : undefined
  const hash = last && (await settlement.job(last))?.transaction
  if (last && hash && !(await isWithoutEffect(context, last))) {
    // A reorganisation reopened the refund that had failed.
    return move(context, order, { kind: 'resume-attempt', attempts, hash })
  }
  const swap = order.swapTx && swapId(order)
  if (swap && !(await isWithoutEffect(context, swap))) {
    // A reorganisation removed the failed swap.
    return move(context, order, { kind: 'reswap', refundTx: undefined })
  }
  if (last && !(await isOver(context, last))) return 'later'
  const shown = await observationOf(context, order, payment)
  if (shown === 'disputed') return holdDisputed(context, order)
  if (shown === 'unseen') return 'later'
  const next = { ...order, refundAttempts: attempts + 1 }
  const ended = await settlement.run(refundOf(context, next), {
    waitMs: runWaitMs,
    // A reorganisation may have come while it waited, so all preconditions are checked again.
    rider: {
      kind: 'order',
      ride: { kind: 'attempt-refund', id, at: now(), attempts },
      confirmed: paymentId,
      withoutEffect: [swap, last].filter((each) => each !== undefined),
    },
  })
  return notifyWritten(context, id, ended, ({ refundTx }) => refundTx !== undefined)
}

async function refunding(context: DeskContext, order: Order): Promise<Next> {
  const { settlement } = context
  const job = await settlement.job(refundId(order))
  if (job === undefined) throw new Error(`order ${order.id} has no refund`)
  if (job.state === 'broadcast') return 'wait'
  if (job.state === 'failed') return unrefunded(context, order, 'refund-failed')
  if (job.state === 'replaced') {
    return move(context, order, { kind: 'abandon-refund', attempts: order.refundAttempts })
  }
  const ended = await settlement.run(refundOf(context, order), { waitMs: 0 })
  if (ended.kind !== 'confirmed') return 'later'
  const { receipt, transaction: hash } = ended
  // Success is no proof: for a used nonce USDG only logs an event and does not revert.
  const isPaid =
    (await isRefundedBy(context, order, receipt)) ||
    (await isRefundedBy(context, order, await askAgain(context, order, hash)))
  if (!isPaid) return unrefunded(context, order, 'refund-not-found')
  return move(context, order, { kind: 'refunded', hash })
}

/** Handles a refund that was included and paid nothing: the use of the nonce shows the cause. */
async function unrefunded(context: DeskContext, order: Order, reason: HeldReason): Promise<Next> {
  if (await isSwapped(context, order)) {
    // A reorganisation included the failed swap again, before the refund.
    return move(context, order, { kind: 'reswap', refundTx: order.refundTx })
  }
  const hash = await findRefund(context, order)
  return hash ? move(context, order, { kind: 'refunded', hash }) : hold(context, order, reason)
}

async function refunded(context: DeskContext, order: Order): Promise<Next> {
  const { settlement, log } = context
  const { id, refundTx } = order
  const refund = await settlement.job(refundId(order))
  const isSame = refund?.state === 'confirmed' && refund.transaction === refundTx
  if (isSame && !(await isSwapped(context, order))) return 'wait'
  const isUnderWay = refund?.state === 'broadcast' || refundTx === undefined
  if (
    isUnderWay ||
    !(await isRefundedBy(context, order, await askAgain(context, order, refundTx)))
  ) {
    return move(context, order, { kind: 'unrefund' })
  }
  // In orders of an earlier version, swap and refund share no nonce.
  if (await isSwapped(context, order)) log('order-paid-twice', { order: id })
  return 'wait'
}

/** Whether the chain has the swap now, as far as nodes show. */
async function isSwapped({ settlement }: DeskContext, order: Order): Promise<boolean> {
  return (await settlement.job(swapId(order)))?.state === 'confirmed'
}

/** Resumes on an operator's request that has an effect, or when the chain has changed by itself. */
async function held(context: DeskContext, order: Order): Promise<Next> {
  const { settlement, log } = context
  const { id, refundTx, retryAt, heldReason } = order
  const stateOf = async (job: string) => (await settlement.job(job))?.state
  const resumeSwap = () => move(context, order, { kind: 'resume-swap' })
  const resumeRefund = (transaction: Hex | undefined) =>
    move(context, order, { kind: 'resume-refund', refundTx: transaction })
  const isRefund = heldReason === 'refund-failed' || heldReason === 'refund-not-found'
  // A reorganisation included the swap again.
  if (isRefund && (await isSwapped(context, order))) return resumeRefund(refundTx)
  if (heldReason === 'refund-failed') {
    // Open again by itself, or finally without effect: only then may another one be written.
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
      return move(context, order, { kind: 'resume-settled' })
    }
    return isSwap ? resumeSwap() : resumeRefund(refundTx)
  }
  log('order-held-still', { order: id, heldReason })
  await move(context, order, { kind: 'dismiss-retry', retryAt })
  return 'wait'
}

/** Ms until the first log event for a settlement without receipt. The interval then doubles. */
const logAfterMs = 60_000

/** What the nodes show of the payment. Logs a payment that is missing for a while. */
async function observationOf(
  context: DeskContext,
  { id }: Order,
  payment: Payment,
): Promise<Observation> {
  const { unseen, now, log } = context
  const observation = await context.settlement.observationOf(payment)
  if (observation === 'shown') {
    unseen.delete(id)
    return observation
  }
  const known = unseen.get(id) ?? { since: now(), logAt: now() + logAfterMs, disputes: 0 }
  unseen.set(id, known)
  known.disputes = observation === 'disputed' ? known.disputes + 1 : 0
  if (now() < known.logAt) return observation
  const seconds = Math.round((now() - known.since) / 1000)
  known.logAt = now() + (now() - known.since)
  log('order-settlement-unseen', { order: id, transaction: payment.transaction, seconds })
  return observation
}

/** No rule decides which node is wrong: send nothing and hold the order for an operator. */
async function holdDisputed(context: DeskContext, order: Order): Promise<Next> {
  const { unseen, log } = context
  const { id, settlementTx } = order
  if ((unseen.get(id)?.disputes ?? 0) < disputesMax) return 'later'
  unseen.delete(id)
  log('settlement-disputed', { order: id, transaction: settlementTx })
  return hold(context, order, 'settlement-disputed')
}

async function paymentOf({ settlement }: DeskContext, id: string): Promise<Payment> {
  const payment = await settlement.findById(id)
  if (payment === undefined) throw new Error(`no payment ${id}`)
  return payment
}

/** A move, of the order and at the time that `move` adds. */
type Change<Move = OrderMove> = Move extends OrderMove ? Omit<Move, 'id' | 'at'> : never

/**
 * Makes one move of an order. One that another change preceded is tried again later, to avoid a
 * tight loop.
 */
async function move(context: DeskContext, { id }: Order, change: Change): Promise<Next> {
  const moved = await context.orders.move({ ...change, id, at: context.now() })
  if (moved === undefined) return 'later'
  context.notify(moved)
  return 'again'
}

function hold(context: DeskContext, order: Order, reason: HeldReason): Promise<Next> {
  return move(context, order, { kind: 'hold', reason })
}

/** After the write of a job, which moved its order. Throws when the order could not be moved. */
async function notifyWritten(
  context: DeskContext,
  id: string,
  ended: JobEnd,
  isMoved: (order: Order) => boolean,
): Promise<Next> {
  if (ended.kind === 'unavailable') return 'later'
  if (ended.kind === 'refused') {
    throw new Error(`the order has changed meanwhile: ${ended.reason}`)
  }
  const order = await context.orders.find(id)
  if (order === undefined || !isMoved(order)) return 'later'
  context.notify(order)
  return 'again'
}

type Shown = Pick<Receipt.Receipt, 'logs'>

/**
 * Whether this desk was paid. Another desk account, whose key or network the operator has replaced,
 * holds the money of its orders. The money of this one belongs to other orders.
 */
export function isOurs(
  { settlement, stock }: Pick<DeskContext, 'settlement' | 'stock'>,
  { transfer }: Payment,
): boolean {
  return transfer.network === stock.network && Address.equal(transfer.payee, settlement.desk)
}

/** Shares that a successful swap brought to the recipient of its order. */
function deliveredBy({ token, pool, recipient }: Order, { logs }: Shown): bigint {
  return sum(Receipt.transfersOf(logs, { token, from: pool, to: recipient }))
}

/** Amount that a successful swap returned to the payer, because the pool did not take it. */
function returnedBy({ stock, network }: DeskContext, { payer }: Order, { logs }: Shown): bigint {
  return sum(
    Receipt.transfersOf(logs, { token: network.asset.address, from: stock.router, to: payer }),
  )
}

/** Whether a successful refund has paid the whole amount to the payer of record. */
async function isRefundedBy(
  { settlement, network: { asset } }: DeskContext,
  order: Order,
  { logs }: Shown,
): Promise<boolean> {
  const from = (await settlement.findById(order.paymentId))?.transfer.payee
  if (from === undefined) throw new Error(`no payment ${order.paymentId}`)
  const terms = { token: asset.address, from, to: order.payer }
  return Receipt.transfersOf(logs, terms).includes(order.totalAtomic)
}

/** The logs of a successful transaction, as a node shows them now. Throws RpcFault or RpcError. */
async function askAgain(
  { settlement }: DeskContext,
  { network }: Order,
  hash: Hex,
): Promise<Shown> {
  return (await readSuccess(settlement, network, hash)) ?? { logs: [] }
}

/**
 * Whether resuming a held order would have an effect although its transactions are as before.
 * Throws RpcFault or RpcError.
 */
async function isNews(context: DeskContext, order: Order): Promise<boolean> {
  const { settlement } = context
  switch (order.heldReason) {
    case 'delivery-not-found': {
      const swap = await settlement.job(swapId(order))
      return (
        swap !== undefined &&
        deliveredBy(order, await askAgain(context, order, swap.transaction)) > 0n
      )
    }
    case 'refund-not-found': {
      const refund = await settlement.job(refundId(order))
      if (refund === undefined) return false
      const again = await askAgain(context, order, refund.transaction)
      if (await isRefundedBy(context, order, again)) return true
      return (await findRefund(context, order)) !== undefined
    }
    case 'settlement-disputed': {
      const payment = await settlement.findById(order.paymentId)
      if (payment?.state !== 'confirmed') return payment !== undefined
      return (await settlement.observationOf(payment)) === 'shown'
    }
    case 'settlement-lost':
      return (await settlement.findById(order.paymentId))?.state !== 'expired'
    default:
      return true
  }
}

/**
 * The external transaction that paid a refund, when ours had no effect: any account can send a
 * refund once its signature is public. Undefined when the nonce is unused or no node shows its use.
 * Throws RpcFault.
 */
async function findRefund(context: DeskContext, order: Order): Promise<Hex | undefined> {
  const { settlement, logSpans } = context
  const around = (await settlement.job(refundId(order)))?.blockNumber ?? 0n
  const { network } = order
  const asset = context.network.asset.address
  const use = { network, asset, account: settlement.desk, nonce: nonceOf(order), around }
  const isIt = (receipt: Shown) => isRefundedBy(context, order, receipt)
  return (await findUse(settlement, logSpans, use, isIt))?.hash
}

/** Whether a job is included and failed, or can never be included. */
async function isWithoutEffect({ settlement }: DeskContext, id: string): Promise<boolean> {
  const state = (await settlement.job(id))?.state
  return state === 'failed' || state === 'replaced'
}

/** Whether no reorganisation can include a job that ended without effect. */
async function isOver(context: DeskContext, id: string): Promise<boolean> {
  const { settlement, stock, endedAt, network } = context
  const job = await settlement.job(id)
  if (job?.state !== 'failed' && job?.state !== 'replaced') return false
  const answer = await settlement.rpc(stock.network, 'eth_blockNumber', [])
  if (!Receipt.isHex(answer)) return false
  const head = BigInt(answer)
  const since = job?.blockNumber ?? endedAt.get(id) ?? head
  endedAt.set(id, since)
  return head >= since + BigInt(network.reorgDepth)
}

function sum(amounts: readonly bigint[]): bigint {
  return amounts.reduce((total, each) => total + each, 0n)
}

/**
 * Swap and refund, the two transactions that move an order's money out of the desk. Both use one
 * EIP-3009 nonce, so at most one of them moves money on any fork of the chain, in any order of
 * inclusion. A reorganisation may include a failed swap after the refund.
 *
 * A signature is public once it is sent, and stays valid when its transaction fails. The refund
 * names the payer, so another sender can only make the same refund. The swap names the address of
 * the swap's own contract creation (`receiveWithAuthorization`, see creation.ts). With a signature
 * for the router or for Multicall3 any account could take the money.
 */

/** The swap reverts after this time, and then the money is refunded. */
const swapSeconds = 120n
export const swapGas = 1_600_000n

/** The job of the swap: one transaction takes the money, pays the router and swaps, or reverts. */
function swapOf(context: DeskContext, order: Order): Job {
  const { market } = context
  const validBefore = secondsOf(context) + swapSeconds
  return {
    ...jobOf(context, order),
    id: swapId(order),
    kind: 'swap',
    gasLimit: swapGas,
    compose(sender) {
      const token = tokenOf(context, order)
      if (token === undefined) throw new Error(`${order.token} is no longer listed`)
      const { to: payee } = Creation.create(sender, [])
      const terms = termsOf(context, order, { payee, amountAtomic: order.usdgAtomic, validBefore })
      const signature = sender.sign(Transfer.receiveDigest(terms, context.network.asset))
      return Creation.create(sender, [
        Transfer.receiveCall({ ...terms, signature }),
        ...market.swap({ ...order, token, deadline: validBefore }),
      ])
    },
  }
}

/** Returns the whole payment to the payer of record. */
function refundOf(context: DeskContext, order: Order): Job {
  const { payer: payee, totalAtomic: amountAtomic } = order
  const validBefore = secondsOf(context) + transferSeconds
  return {
    ...jobOf(context, order),
    id: refundId(order),
    kind: 'refund',
    gasLimit: transferGas,
    compose(sender) {
      const terms = termsOf(context, order, { payee, amountAtomic, validBefore })
      const signature = sender.sign(Transfer.digest(terms, context.network.asset))
      return Transfer.call({ ...terms, signature })
    },
  }
}

type Terms = Omit<Transfer.Transfer, 'signature'>

function termsOf(
  { settlement, network: { asset, chainId } }: DeskContext,
  order: Order,
  terms: Pick<Terms, 'payee' | 'amountAtomic' | 'validBefore'>,
): Terms {
  const nonce = nonceOf(order)
  const payer = settlement.desk
  const at = { network: order.network, chainId, asset: asset.address }
  return { ...terms, ...at, method: 'eip3009', payer, nonce, validAfter: 0n }
}

function jobOf({ settlement }: DeskContext, { network }: Order) {
  return { product: 'desk', network, relayer: settlement.desk, valueWei: 0n } as const
}

function secondsOf({ now }: DeskContext): bigint {
  return BigInt(Math.floor(now() / 1000))
}

/** The listed token of an order, with the pool and fee that the order has pinned. */
function tokenOf({ stock }: DeskContext, order: Order): StockToken | undefined {
  return stock.tokens.find(
    ({ address, pool, fee }) =>
      address === order.token && pool === order.pool && fee === order.poolFee,
  )
}
