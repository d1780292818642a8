import { storageCode } from '../../db/storage'
import { write } from '../../db/write'
import { about, type ChainState, type Context, chainOf, pause } from './context'
import * as Elsewhere from './elsewhere'
import * as Others from './others'
import type { Outcome, Payment, Reason } from './Payment'
import * as Relayers from './relayer'
import type { Assignment } from './store'
import * as Verify from './verify'

/** How far behind a node may have been when it passed the simulation. */
const lagBlocks = 300n

/**
 * Receipts and logs of a provider may lag behind its state or be hidden. For this long after the
 * payment's time its used nonce may still be our own transaction, and the same credential is
 * answered.
 */
const unseenSeconds = 86_400n
/** After that a configured URL that does not answer at all keeps no payment open. */
const silenceSeconds = 600n

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
  const chain = chainOf(context, payment.transfer.network)
  try {
    const own = await Others.findOwn(context, chain, payment)
    if (own) {
      await Relayers.assertConfirmed(context, chain, own.transaction)
      write(context.db, () => store.confirm(id, own, now()))
      return current(context, payment)
    }
    const money = await Verify.readMoney(chain, payment.transfer)
    const foreign = money.used ? await findElsewhere(context, chain, payment) : undefined
    if (foreign?.counts) return confirmElsewhere(context, payment, foreign.found)
    const isOver = money.timestamp > payment.transfer.validBefore
    // While a transaction of ours may still be included, a used nonce may well be its own work.
    if (payment.state === 'broadcast' && (money.used || !isOver))
      return { kind: 'pending', payment }
    if (!money.used && !isOver) return { kind: 'reverted', payment, reason }
    const isKnown = isFateKnown(context, id)
    const sinceSeconds = money.timestamp - payment.transfer.validBefore
    // A transaction of ours was sent and shows no receipt: a node probably hides the receipt.
    if (money.used && !isKnown && sinceSeconds <= unseenSeconds) {
      const paid = await askOthers(context, chain, payment)
      if (paid.kind !== 'paid') return { kind: 'reverted', payment, reason }
      return confirmElsewhere(context, payment, paid.assignment)
    }
    const others = await askOthers(context, chain, payment)
    if (others.kind === 'paid') return confirmElsewhere(context, payment, others.assignment)
    if (others.kind === 'doubtful' && sinceSeconds <= patienceOf(others)) {
      return { kind: payment.state === 'broadcast' ? 'pending' : 'reverted', payment, reason }
    }
    write(context.db, () => store.expire(id, money.used))
    const outcome = withForeign(current(context, payment), foreign?.found)
    context.log('payment-expired', {
      ...about(context, id),
      reason: outcome.kind === 'dead' ? outcome.reason : undefined,
      settledBy: foreign?.found.transaction,
    })
    return outcome
  } catch (error) {
    // Not known is not lost: the same credential may ask again.
    context.log('settlement-undecided', { ...about(context, id), error })
    const state = store.findById(id) ?? payment
    // On a storage fault the money may have moved unrecorded, so do not answer `reverted`.
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
  const chain = chainOf(context, payment.transfer.network)
  const signed = await Verify.checkSignature(chain, payment.transfer, now())
  if (signed.kind !== 'signed') {
    return signed.kind === 'refused' ? decide(context, payment.id, signed.reason) : signed
  }
  const { payer } = payment.transfer
  const isNew = signed.hasCode === true && !context.store.hasPaid(payment.transfer)
  const waitSeconds = context.failures.waitSeconds({ address: payer, code: undefined, isNew })
  if (waitSeconds > 0) return Verify.lockedOut(waitSeconds)
  const admission = await context.submit(chain, {
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
export async function endIfOver(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<void> {
  try {
    const money = await Verify.readMoney(chain, payment.transfer)
    if (money.used || money.timestamp <= payment.transfer.validBefore) return
    const others = await askOthers(context, chain, payment)
    const sinceSeconds = money.timestamp - payment.transfer.validBefore
    if (others.kind === 'paid') return
    if (others.kind === 'doubtful' && sinceSeconds <= patienceOf(others)) return
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

/** Asks every URL that is not in use; with a single URL there is none. */
function askOthers(context: Context, chain: ChainState, payment: Payment): Promise<Others.Answer> {
  return Others.ask(context, chain, payment, searchedFrom(context, payment))
}

/** For how long after its time a payment stays open because URLs do not agree, or do not answer. */
function patienceOf({ isSilent }: { isSilent: boolean }): bigint {
  return isSilent ? silenceSeconds : unseenSeconds
}

function searchedFrom({ store }: Context, { id }: Payment): bigint {
  const { knownBlock } = store.evidenceOf(id)
  return knownBlock > lagBlocks ? knownBlock - lagBlocks : 0n
}

function confirmElsewhere(context: Context, payment: Payment, assignment: Assignment): Outcome {
  const { id } = payment
  const { transaction, logIndex, blockNumber } = assignment
  write(context.db, () =>
    context.store.confirm(id, { transaction, logIndex, blockNumber }, context.now()),
  )
  const isOurs = context.store.membersOf(transaction).includes(id)
  if (!isOurs) context.log('payment-settled-elsewhere', { ...about(context, id), transaction })
  return current(context, payment)
}

/** Says which transaction used the nonce: its payee has the money. */
function withForeign(outcome: Outcome, found: Elsewhere.Found | undefined): Outcome {
  if (!found || outcome.kind !== 'dead') return outcome
  const isTold = outcome.payment?.purpose.product === 'facilitator'
  const why = isTold
    ? 'another facilitator may have answered success for it'
    : 'nothing shows that it was unspent when it came here'
  const detail = `transaction ${found.transaction}, which is not ours, settled the authorization: ${why}`
  return { ...outcome, detail }
}

/** A settlement by somebody else, and whether it pays for this request. Throws when it cannot be known. */
async function findElsewhere(context: Context, chain: ChainState, payment: Payment) {
  const { transfer, purpose } = payment
  const evidence = context.store.evidenceOf(payment.id)
  const fromBlock = searchedFrom(context, payment)
  let found = await Elsewhere.find(context, chain, transfer, { fromBlock })
  if (!found) {
    // The node may know the state of a block before its logs: look again before that is a verdict.
    await pause(Math.max(250, chain.head.blockTimeMs), context.signal)
    found = await Elsewhere.find(context, chain, transfer, { fromBlock })
  }
  // The desk gives back what it does not swap: its buyer's money must not be kept for being unreadable.
  if (!found && purpose.product === 'desk' && transfer.method === 'permit2') {
    const above = evidence.knownBlock + 1n
    const search = { fromBlock: above, isOursAlone: true }
    found = await Elsewhere.find(context, chain, transfer, search)
  }
  if (!found) return undefined
  const counts = Elsewhere.counts(context, chain, payment, found, evidence)
  if (counts) await Relayers.assertConfirmed(context, chain, found.transaction)
  return { found, counts }
}
