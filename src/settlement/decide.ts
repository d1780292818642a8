import { storageCode } from '../../db/storage'
import { write } from '../../db/write'
import * as Assign from './assign'
import { about, type Context, pause, type Rail, railOf } from './context'
import * as Elsewhere from './elsewhere'
import * as Lane from './lane'
import type { Outcome, Payment, Reason } from './Payment'
import * as Verify from './verify'

/** How far behind a node may have been when it passed the simulation. */
const lagBlocks = 300n

/**
 * A provider's receipts and logs may lag behind its state: for so long after the time of a payment
 * its used nonce may still turn out to be our own work.
 */
const proofSeconds = 60n

/** Registers work on a payment, whose faults leave it to the next sweep. */
export function run(
  context: Context,
  payment: Payment,
  work: () => Promise<Outcome>,
): Promise<Outcome> {
  const outcome = work()
    .catch((error: unknown): Outcome => {
      context.log('settlement-fault', { ...about(context, payment.id), error })
      return { kind: 'pending', payment: context.store.findById(payment.id) ?? payment }
    })
    .finally(() => {
      if (context.running.get(payment.id) !== outcome) return
      context.running.delete(payment.id)
      context.requestIds.delete(payment.id)
    })
  context.running.set(payment.id, outcome)
  return outcome
}

/**
 * What is to be said of a payment whose transaction did not pay. Asks the chain: somebody else may
 * have settled it, it may be over, or it may still pay.
 */
export async function decide(context: Context, id: string, reason: Reason): Promise<Outcome> {
  const { store, now } = context
  const payment = store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return current(context, payment)
  }
  const rail = railOf(context, payment.transfer.network)
  try {
    const own = await findOwn(context, rail, payment)
    if (own) {
      write(context.db, () => store.confirm(id, own, now()))
      return current(context, payment)
    }
    const money = await Verify.readMoney(rail, payment.transfer)
    const found = money.used ? await findElsewhere(context, rail, payment) : undefined
    if (found) {
      write(context.db, () => store.confirm(id, found, now()))
      context.log('payment-settled-elsewhere', {
        ...about(context, id),
        transaction: found.transaction,
      })
      return current(context, payment)
    }
    const isOver = money.timestamp > payment.transfer.validBefore
    // While a transaction of ours may still be included, a used nonce may well be its own work.
    if (payment.state === 'broadcast' && (money.used || !isOver))
      return { kind: 'pending', payment }
    if (!money.used && !isOver) return { kind: 'reverted', payment, reason }
    const proofAt = payment.transfer.validBefore + proofSeconds
    if (money.used && money.timestamp <= proofAt && !isFateKnown(context, id)) {
      return { kind: 'reverted', payment, reason }
    }
    write(context.db, () => store.expire(id, money.used))
    const outcome = current(context, payment)
    context.log('payment-expired', {
      ...about(context, id),
      reason: outcome.kind === 'dead' ? outcome.reason : undefined,
    })
    return outcome
  } catch (error) {
    // Not known is not lost: the same credential may ask again.
    context.log('settlement-undecided', { ...about(context, id), error })
    const state = store.findById(id) ?? payment
    // The money may be found to have moved, which could not be written.
    return state.state === 'reverted' && storageCode(error) === undefined
      ? { kind: 'reverted', payment: state, reason }
      : { kind: 'pending', payment: state }
  }
}

/**
 * Sends a reverted payment again, alone, when the simulation says that it would pay. Only a consumed
 * nonce leads to one more: what fails alone is not sent again by itself.
 */
export async function again(context: Context, payment: Payment): Promise<Outcome> {
  const { now } = context
  const rail = railOf(context, payment.transfer.network)
  const signed = await Verify.checkSignature(rail, payment.transfer, now())
  if (signed.kind !== 'signed') {
    return signed.kind === 'refused' ? decide(context, payment.id, signed.reason) : signed
  }
  const { payer } = payment.transfer
  const isNew = signed.hasCode === true && !context.store.hasPaid(payment.transfer)
  const waitSeconds = context.failures.waitSeconds({ address: payer, code: undefined, isNew })
  if (waitSeconds > 0) return Verify.lockedOut(waitSeconds)
  const admission = await context.submit(rail, {
    id: payment.id,
    requestId: context.requestIds.get(payment.id),
    transfer: signed.transfer,
    hasCode: signed.hasCode,
    purpose: payment.purpose,
    receivedAt: now(),
    payment,
    isAlone: true,
    isProven: undefined,
    write: undefined,
  }).admission
  switch (admission.kind) {
    case 'sent':
      return admission.outcome
    case 'known':
      return current(context, admission.payment)
    case 'used':
      return decide(context, payment.id, Verify.usedReason(payment.transfer))
    case 'refused':
      return decide(context, payment.id, admission.reason)
    case 'unavailable':
      return admission
    case 'unsigned':
      throw new Error('the signature of a payment was proven before')
    case 'thrown':
      throw admission.error
  }
}

/**
 * Ends a payment when one block proves that it did not pay and is over, whatever its transaction is
 * doing. Never rejects.
 */
export async function endIfOver(context: Context, rail: Rail, payment: Payment): Promise<void> {
  try {
    const money = await Verify.readMoney(rail, payment.transfer)
    if (money.used || money.timestamp <= payment.transfer.validBefore) return
    write(context.db, () => context.store.expire(payment.id, false))
  } catch (error) {
    context.log('settlement-undecided', { ...about(context, payment.id), error })
  }
}

/** The outcome that a payment's stored state stands for. */
export function current(context: Context, { id }: Pick<Payment, 'id'>): Outcome {
  const payment = context.store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  switch (payment.state) {
    case 'confirmed':
      return { kind: 'confirmed', payment }
    case 'broadcast':
      return { kind: 'pending', payment }
    case 'reverted':
      return { kind: 'reverted', payment, reason: 'invalid_exact_evm_transaction_failed' }
    case 'expired':
      return dead(
        payment,
        (payment.nonceUsed ? Verify.usedReason : Verify.expiredReason)(payment.transfer),
      )
  }
}

function dead(payment: Payment | undefined, reason: Reason): Outcome {
  return { kind: 'dead', payment, reason, detail: 'the authorization did not pay and cannot' }
}

/** Whether the chain has shown what became of each account nonce that we sent the payment at. */
function isFateKnown({ store }: Context, id: string): boolean {
  const sent = store.transactionsOf(id).filter(({ firstSentAt }) => firstSentAt !== null)
  const nonceOf = ({ relayer, nonce }: (typeof sent)[number]) => `${relayer} ${nonce}`
  const seen = new Set(
    sent.filter(({ state }) => state === 'mined' || state === 'failed').map(nonceOf),
  )
  return sent.every((each) => seen.has(nonceOf(each)))
}

/** A transaction of ours that was given up and paid all the same. */
async function findOwn(context: Context, rail: Rail, payment: Payment) {
  for (const { hash, state } of context.store.transactionsOf(payment.id)) {
    if (state === 'failed') continue
    const receipt = await Lane.readReceipt(rail, hash)
    if (!receipt?.success) continue
    const taken = context.store.takenLogs(rail.network.id, hash)
    const logIndex = Assign.assign(receipt.logs, [payment.transfer], taken)[0]
    if (logIndex !== undefined) {
      await Lane.assertConfirmed(context, rail, hash)
      return { transaction: hash, logIndex, blockNumber: receipt.blockNumber }
    }
  }
  return undefined
}

/** A settlement by somebody else that pays for this request. Throws when it cannot be known. */
async function findElsewhere(context: Context, rail: Rail, payment: Payment) {
  const { transfer, purpose } = payment
  // A facilitator tells its caller that the money came because of this call, which it did not.
  if (purpose.product === 'facilitator') return undefined
  const evidence = context.store.evidenceOf(payment.id)
  const first = evidence.knownBlock > lagBlocks ? evidence.knownBlock - lagBlocks : 0n
  let found = await Elsewhere.find(context, rail, transfer, first)
  if (!found) {
    // The node may know the state of a block before its logs: look again before that is a verdict.
    await pause(Math.max(250, rail.head.blockTimeMs), context.signal)
    found = await Elsewhere.find(context, rail, transfer, first)
  }
  // The desk gives back what it does not swap: its buyer's money must not be kept for being unreadable.
  const isOursAlone = purpose.product === 'desk' && transfer.method === 'permit2'
  if (!found && isOursAlone) {
    found = await Elsewhere.find(context, rail, transfer, evidence.knownBlock + 1n, true)
  }
  if (!found || !Elsewhere.counts(found, purpose.bound, evidence)) return undefined
  await Lane.assertConfirmed(context, rail, found.transaction)
  return found
}
