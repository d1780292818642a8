import type { Hex } from 'viem'
import { storageCode } from '../../../db/fault'
import type { Assignment } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { Node } from '../../chain/client'
import { lagBlocks } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import { assertConfirmed, readMoney, readReceipt, readTop } from '../read/reads'
import * as Refusals from '../read/refusals'
import * as External from '../repair/external'
import { about, type ChainState, type Context, chainOf, storeInclusion } from '../state/state'
import { pause } from '../state/wait'
import type { Outcome, Reason, Underway } from './Outcome'

/**
 * Receipts and logs of a provider may lag behind its state or be hidden. For this long after the
 * payment's time its used nonce may still be from our own transaction. Until then the same
 * credential is answered.
 */
const unseenSeconds = 86_400n

/** After this time a configured URL that does not answer at all keeps no payment open. */
const unansweredSeconds = 600n

/**
 * The outcome of a payment whose transaction did not pay. Reads the chain: an external transaction
 * may have settled it, it may be over, or it may still pay.
 */
export async function decide(
  context: Context,
  { payment: { id }, requestId }: Subject,
  reason: Reason,
): Promise<Outcome> {
  const { payments } = context.ledger
  const payment = await payments.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return current(context, payment)
  }
  try {
    return await judge(context, { payment, requestId }, reason)
  } catch (error) {
    // An unknown result is not a failure: the same credential may be sent again.
    context.log('settlement-undecided', { ...about({ id, requestId }), error })
    const state = (await payments.findById(id).catch(() => undefined)) ?? payment
    // On a storage fault the money may have moved unrecorded, so do not answer `reverted`.
    return state.state === 'reverted' && storageCode(error) === undefined
      ? { kind: 'reverted', payment: state, reason }
      : { kind: 'pending', payment: state }
  }
}

type Subject = Pick<Underway, 'payment' | 'requestId'>

/** Throws when the chain does not decide. */
async function judge(context: Context, subject: Subject, reason: Reason): Promise<Outcome> {
  const { payment } = subject
  const chain = chainOf(context, payment.transfer.network)
  const own = await confirmOwn(context, chain, payment)
  if (own) return own
  const money = await readMoney(chain, payment.transfer)
  const external = money.used ? await findExternal(context, chain, payment) : undefined
  if (external?.counts) return confirmExternal(context, subject, external.found)
  // While a transaction of ours may still be included, that may be what used the nonce.
  if (payment.state === 'broadcast' && (money.used || !money.isFinal)) {
    return { kind: 'pending', payment }
  }
  if (!money.used && !money.isFinal) return { kind: 'reverted', payment, reason }
  const sinceSeconds = money.timestamp - payment.transfer.validBefore
  // A transaction of ours was sent and shows no receipt: a node probably hides the receipt.
  const isHidden =
    money.used && sinceSeconds <= unseenSeconds && !(await isFateKnown(context, payment))
  const others = await askOthers(context, chain, payment)
  if (others.kind === 'paid') return confirmExternal(context, subject, others.assignment)
  if (isHidden) return { kind: 'reverted', payment, reason }
  if (others.kind === 'doubtful' && sinceSeconds <= graceSecondsOf(others)) {
    return { kind: payment.state === 'broadcast' ? 'pending' : 'reverted', payment, reason }
  }
  // A reorganisation may remove that use, and then what we have sent can still pay. Another look may
  // have confirmed the payment during this one, which then found its log taken.
  if (!money.isFinal) {
    const outcome = await current(context, payment)
    return outcome.kind === 'confirmed'
      ? outcome
      : withExternal(deadOf(payment, true), external?.found)
  }
  return expire(context, subject, { isUsed: money.used, found: external?.found })
}

/** Confirms a transaction of ours that paid after it was abandoned. */
async function confirmOwn(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<Outcome | undefined> {
  const own = await findOwn(context, chain, payment)
  if (!own) return undefined
  await assertConfirmed(context, chain, own.transaction)
  await context.ledger.settling.confirm(payment.id, own, context.now())
  return current(context, payment)
}

/**
 * A transaction of ours that paid after it was abandoned, as a node shows it. Throws RpcFault or
 * RpcError.
 */
async function findOwn(
  context: Context,
  chain: PaidBy,
  payment: Payment,
): Promise<Assignment | undefined> {
  for (const { hash, state } of await context.ledger.transactions.ofPayment(payment.id)) {
    const found = state === 'failed' ? undefined : await findPaid(context, chain, payment, hash)
    if (found) return found
  }
  return undefined
}

type PaidBy = Pick<ChainState, 'network' | 'watch'> & { client: Pick<Node, 'call'> }

/** The log of a transaction that pays, if a node shows it. Throws RpcFault or RpcError. */
export async function findPaid(
  { ledger: { payments } }: Context,
  chain: PaidBy,
  { transfer }: Payment,
  hash: Hex,
): Promise<Assignment | undefined> {
  const receipt = await readReceipt(chain, hash)
  if (!receipt?.success) return undefined
  const taken = await payments.takenLogs(chain.network.id, hash)
  const [found] = Receipt.findTransfers(receipt.logs, [transfer])
  const logIndex = found?.find((each) => !taken.has(each))
  if (logIndex === undefined) return undefined
  storeInclusion(chain, receipt)
  return { transaction: hash, logIndex, blockNumber: receipt.blockNumber }
}

async function expire(
  context: Context,
  { payment, requestId }: Subject,
  { isUsed, found }: { isUsed: boolean; found: External.Found | undefined },
): Promise<Outcome> {
  const { id } = payment
  await context.ledger.settling.expire(id, isUsed)
  const outcome = withExternal(await current(context, payment), found)
  context.log('payment-expired', {
    ...about({ id, requestId }),
    reason: outcome.kind === 'dead' ? outcome.reason : undefined,
    settledBy: found?.transaction,
  })
  return outcome
}

/**
 * Ends a payment when the chain proves that it did not pay and is over, though its transaction may
 * still be open. Never rejects.
 */
export async function endIfOver(context: Context, payment: Payment): Promise<void> {
  const { id, transfer } = payment
  const chain = chainOf(context, transfer.network)
  try {
    const money = await readMoney(chain, transfer)
    if (money.used || !money.isFinal) return
    const others = await askOthers(context, chain, payment)
    const sinceSeconds = money.timestamp - transfer.validBefore
    if (others.kind === 'paid') return
    if (others.kind === 'doubtful' && sinceSeconds <= graceSecondsOf(others)) return
    await context.ledger.settling.expire(id, false)
  } catch (error) {
    context.log('settlement-undecided', { ...about({ id }), error })
  }
}

/** The outcome that a payment's stored state means. */
export async function current({ ledger }: Context, { id }: Pick<Payment, 'id'>): Promise<Outcome> {
  const payment = await ledger.payments.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  switch (payment.state) {
    case 'confirmed':
      return { kind: 'confirmed', payment }
    case 'broadcast':
      return { kind: 'pending', payment }
    case 'reverted':
      return { kind: 'reverted', payment, reason: 'invalid_exact_evm_transaction_failed' }
    case 'expired':
      return deadOf(payment, payment.nonceUsed)
  }
}

function deadOf(payment: Payment, isUsed: boolean): Outcome {
  const reasonOf = isUsed ? Refusals.usedReason : Refusals.expiredReason
  return {
    kind: 'dead',
    payment,
    reason: reasonOf(payment.transfer),
    detail: 'The authorization did not pay and no longer can: sign a new one.',
  }
}

/** Whether the chain has shown the result of each account nonce that we sent the payment at. */
async function isFateKnown({ ledger }: Context, { id }: Payment): Promise<boolean> {
  const sent = await ledger.transactions.ofPayment(id)
  const nonceOf = ({ relayer, nonce }: (typeof sent)[number]) => `${relayer} ${nonce}`
  const seen = new Set(
    sent.filter(({ state }) => state === 'mined' || state === 'failed').map(nonceOf),
  )
  return sent.every((each) => seen.has(nonceOf(each)))
}

/** The result of the other URLs for a payment that is about to end unpaid. */
type Others =
  /** One of them shows the transfer. */
  | { kind: 'paid'; assignment: Assignment }
  /** All of them agree that it is over, or there is none. */
  | { kind: 'over' }
  /** One of them disagrees, or does not answer. */
  | { kind: 'doubtful'; isSilent: boolean }

/**
 * Calls every other URL before a payment ends. The one in use may hide a receipt, because its index
 * lags or because it is malicious. Rejects only when the ledger cannot be read.
 */
async function askOthers(context: Context, chain: ChainState, payment: Payment): Promise<Others> {
  const fromBlock = await searchedFrom(context, payment)
  const answers = await Promise.all(
    chain.client.others().map((node) =>
      askOne(context, chain, payment, { node, fromBlock }).catch((error: unknown): Others => {
        context.log('settlement-undecided', { payment: payment.id, host: node.host, error })
        return { kind: 'doubtful', isSilent: true }
      }),
    ),
  )
  const paid = answers.find(({ kind }) => kind === 'paid')
  if (paid) return paid
  const doubtful = answers.filter((answer) => answer.kind === 'doubtful')
  const loud = doubtful.find(({ isSilent }) => !isSilent)
  return loud ?? doubtful[0] ?? { kind: 'over' }
}

async function askOne(
  context: Context,
  chain: ChainState,
  payment: Payment,
  { node, fromBlock }: { node: Node; fromBlock: bigint },
): Promise<Others> {
  const { transfer } = payment
  const own = await findOwn(context, { ...chain, client: node }, payment)
  if (own) return settled(chain, node, own)
  const money = await readMoney({ ...chain, client: node }, transfer)
  if (!money.used) return money.isFinal ? { kind: 'over' } : { kind: 'doubtful', isSilent: false }
  const found = await External.find(context, chain, transfer, { fromBlock, node })
  const arrival = await context.ledger.payments.arrivalOf(payment.id)
  if (!found || !External.counts(context, chain, payment, { found, arrival }))
    return { kind: 'over' }
  return settled(chain, node, found)
}

/** A settlement that is not deep enough yet keeps the payment open. */
async function settled(
  { network }: ChainState,
  node: Node,
  { transaction, logIndex, blockNumber }: Assignment,
): Promise<Others> {
  const top = network.confirmations > 1 ? await readTop({ client: node }) : blockNumber
  const isDeep = top - blockNumber + 1n >= BigInt(network.confirmations)
  return isDeep
    ? { kind: 'paid', assignment: { transaction, logIndex, blockNumber } }
    : { kind: 'doubtful', isSilent: false }
}

/**
 * Seconds after its expiry for which a payment stays open because URLs disagree or do not answer.
 */
function graceSecondsOf({ isSilent }: { isSilent: boolean }): bigint {
  return isSilent ? unansweredSeconds : unseenSeconds
}

async function searchedFrom({ ledger }: Context, { id }: Payment): Promise<bigint> {
  const { knownBlock } = await ledger.payments.arrivalOf(id)
  // The node that passed the simulation may have lagged behind.
  return knownBlock > lagBlocks ? knownBlock - lagBlocks : 0n
}

async function confirmExternal(
  context: Context,
  { payment, requestId }: Subject,
  { transaction, logIndex, blockNumber }: Assignment,
): Promise<Outcome> {
  const { id } = payment
  const { settling, transactions } = context.ledger
  await settling.confirm(id, { transaction, logIndex, blockNumber }, context.now())
  if (!(await transactions.hasPayment(transaction, id))) {
    context.log('payment-settled-externally', { ...about({ id, requestId }), transaction })
  }
  return current(context, payment)
}

/** Adds the transaction that used the nonce: its payee has the money. */
function withExternal(outcome: Outcome, found: External.Found | undefined): Outcome {
  if (!found || outcome.kind !== 'dead') return outcome
  const isTold = outcome.payment?.purpose.product === 'facilitator'
  const why = isTold
    ? 'another facilitator may have answered success for it'
    : 'no record proves that it was unspent when it arrived here'
  const detail = `transaction ${found.transaction}, which is not ours, settled the authorization: ${why}`
  return { ...outcome, detail }
}

/**
 * An external settlement, and whether it pays for this request. Throws when that cannot be
 * determined.
 */
async function findExternal(context: Context, chain: ChainState, payment: Payment) {
  const { transfer, purpose } = payment
  const arrival = await context.ledger.payments.arrivalOf(payment.id)
  const fromBlock = await searchedFrom(context, payment)
  let found = await External.find(context, chain, transfer, { fromBlock })
  if (!found) {
    // A node may have the state of a block before its logs, so search again before concluding.
    await pause(Math.max(250, chain.head.blockTimeMs), context.progress.signal)
    found = await External.find(context, chain, transfer, { fromBlock })
  }
  // The desk refunds what it does not swap, so it must not keep a buyer's unreadable settlement.
  if (!found && purpose.product === 'desk' && transfer.method === 'permit2') {
    const above = arrival.knownBlock + 1n
    const search = { fromBlock: above, isOursAlone: true }
    found = await External.find(context, chain, transfer, search)
  }
  if (!found) return undefined
  const counts = External.counts(context, chain, payment, { found, arrival })
  if (counts) await assertConfirmed(context, chain, found.transaction)
  return { found, counts }
}
