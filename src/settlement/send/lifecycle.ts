import type { Payment } from '../../../db/Payment'
import * as Crypto from '../../protocol/Crypto'
import { checkWindow, type Transfer } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import * as Simulate from '../read/simulate'
import { acceptExternal } from '../repair/accept-external'
import * as Gas from '../state/gas-budget'
import { isPaymentOfAnother, waitForOther } from '../state/ownership'
import { payerOf } from '../state/payers'
import {
  type Admission,
  about,
  type ChainState,
  type Context,
  chainOf,
  type QueuedPayment,
  type Relayer,
  type Requested,
  type Sent,
  type Signer,
  type Slot,
  type Verdict,
} from '../state/state'
import { within } from '../state/wait'
import { refuseBehind } from '../upto/ceilings'
import { type DeliverOnConfirm, type Outcome, RowsRefusedError, type Underway } from './Outcome'
import { enqueue } from './queue'
import { isReady } from './relayer'
import * as Resolve from './resolve'
import { resumeSlot } from './transaction'

/**
 * The life of a payment whose money is not known yet:
 *
 * 1. check: refuses what needs no simulation.
 * 2. queue.ts: waits for a relayer of its network, with the jobs. Is simulated with the others, and accepted
 *    or refused.
 * 3. transaction.ts: is signed, and written with its transaction: that insert decides whose money it is. Then
 *    broadcast.ts sends it, polls, and replaces it until its account nonce is decided. Gets its Transfer log
 *    in one commit, or the failure is attributed to members.
 * 4. conclude: is paid by that log, or resolve.ts reads from the chain that it is paid otherwise, or over. Or it
 *    is sent again.
 *
 * Rejects with RowsRefusedError.
 */
export async function settle(
  context: Context,
  request: Requested,
  waitMs: number,
): Promise<Outcome> {
  const { deliverOnConfirm: isWanted } = request
  const onConfirm: DeliverOnConfirm | undefined = isWanted && {
    isWanted,
    isOpen: true,
    commit: undefined,
    isStarted: false,
  }
  try {
    const outcome = await attempt(context, request, onConfirm, waitMs)
    const isStarted = outcome.kind === 'confirmed' && onConfirm?.isStarted
    return isStarted ? { ...outcome, deliveryStarted: true } : outcome
  } finally {
    if (onConfirm) onConfirm.isOpen = false
  }
}

async function attempt(
  context: Context,
  request: Requested,
  deliverOnConfirm: DeliverOnConfirm | undefined,
  waitMs: number,
): Promise<Outcome> {
  const until = context.now() + waitMs
  const chain = chainOf(context, request.transfer.network)
  const checked = await check(context, chain, request)
  if (checked.kind !== 'signed') return checked
  const { admission, cancel } = submit(context, chain, {
    ...checked,
    request,
    deliverOnConfirm,
    payment: undefined,
  })
  const ended = admission.then(async (result): Promise<Admission | Outcome> => {
    if (result.kind !== 'sent') return result
    request.onSent?.(result.payment)
    return result.outcome
  })
  const outcome = await within(ended, waitMs)
  if (outcome === undefined) {
    if (cancel()) return Refusals.busy
    if (deliverOnConfirm) deliverOnConfirm.isOpen = false
    // The running commit may start the delivery of this caller.
    await deliverOnConfirm?.commit
  }
  // It can no longer be cancelled: it is being simulated or has been written.
  const result = outcome ?? (await admission)
  switch (result.kind) {
    case 'sent':
      return latest(context, result.payment)
    case 'known':
      return joinKnown(context, result.payment, request, waitMs)
    case 'used': {
      const written = await context.ledger.payments.find(request.transfer)
      return written
        ? joinKnown(context, written, request, waitMs)
        : acceptExternal(context, chain, request)
    }
    case 'unsigned': {
      const leftMs = Math.min(waitMs, Math.max(0, until - context.now()))
      return attempt(context, { ...request, isKeySigned: false }, deliverOnConfirm, leftMs)
    }
    case 'rows-refused':
      if (result.reason === 'money-authorized') return Refusals.refuseUsed(request.transfer)
      if (result.reason === 'payer-under-way') return Refusals.underWay
      throw new RowsRefusedError(result.reason)
    default:
      return result
  }
}

type Signed = Simulate.SignedTransfer & { signer: Signer }

/** Refuses what needs no simulation: window, network, gas, signer and payer. */
async function check(
  context: Context,
  chain: ChainState,
  request: Requested,
): Promise<Signed | Refusals.PaymentRefusal> {
  const { transfer, purpose } = request
  if (transfer.asset !== chain.network.asset.address) {
    throw new Error('not the asset of the network')
  }
  const late = checkWindow(transfer, context.now())
  if (late) return Refusals.refuse(late.code, late.detail)
  if (!isReady(chain)) return Refusals.unavailable(undefined)
  if (context.ledger.fault() !== undefined) return Refusals.unrecordable
  // Without a second node the confirmed payment would wait, so refuse it before.
  if (needsSecond(context, chain, request) && chain.health.others === 0) return noSecond
  const busy = refuseBehind(context, chain, request)
  if (busy) return busy
  const spent = Gas.refuseBudget(context, chain, purpose)
  if (spent) return spent
  const signed = await checkSigner(context, chain, request)
  if (signed.kind !== 'signed') return signed
  const { code } = signed
  const payer = await payerOf(context.ledger.payments, signed.transfer, code)
  const waitSeconds = context.payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  const unspendable = code === 'contract' ? Gas.refuseCode(context, chain, purpose) : undefined
  return unspendable ?? signed
}

/** Whether a payment counts only when two nodes show it. */
export function needsSecond(
  { policy }: Pick<Context, 'policy'>,
  chain: Pick<ChainState, 'client'>,
  { transfer, purpose }: Pick<Payment, 'transfer' | 'purpose'>,
): boolean {
  if (chain.client.nodes.length < 2 || transfer.method === 'channel') return false
  if (purpose.product === 'desk') return true
  const above = policy.confirmTwiceAbove()
  return above !== undefined && transfer.amountAtomic > above
}

/** Recovers the signer, unless the simulation may verify the signature. */
async function checkSigner(
  { payers, now }: Context,
  chain: ChainState,
  { transfer, isKeySigned = false }: Requested,
): Promise<Signed | Refusals.PaymentRefusal> {
  // Chain and key read this form of a signature alike.
  const isAlike = Crypto.isCanonical(transfer.signature) && !chain.known.codes.has(transfer.payer)
  const mayDefer = isAlike && !payers.signers.isSuspended()
  if (mayDefer && typeof isKeySigned === 'function') {
    const signer = { kind: 'unchecked' as const, isKey: isKeySigned }
    return { ...Simulate.assumeSigned(transfer), signer }
  }
  const isSigned = typeof isKeySigned === 'function' ? isKeySigned() : isKeySigned
  const signed = isSigned
    ? Simulate.assumeSigned(transfer)
    : await Simulate.checkSignature(chain, transfer, now())
  if (signed.kind === 'signed') return { ...signed, signer: { kind: 'checked' } }
  if (signed.kind === 'refused' && Refusals.isUnsigned(signed)) payers.signers.suspend()
  return signed
}

/** Adds a payment to the queue. `admission` never rejects; `cancel` as for `enqueue`. */
function submit(
  context: Context,
  chain: ChainState,
  entry: Signed & Pick<QueuedPayment, 'request' | 'deliverOnConfirm' | 'payment'>,
): { admission: Promise<Admission>; cancel: () => boolean } {
  const { promise: admission, resolve } = Promise.withResolvers<Admission>()
  const done = (verdict: Verdict) => {
    if (verdict.kind !== 'sent') return resolve(verdict)
    const { payment } = verdict.member
    resolve({ kind: 'sent', payment, outcome: follow(context, chain, verdict) })
  }
  return { admission, cancel: enqueue(context, chain, { ...entry, done }) }
}

/** Drives transactions that were written before, with their payments. False when they are being driven. */
export function resumeSent(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  written: Pick<Slot, 'transactions' | 'members'>,
): boolean {
  const sent = resumeSlot(context, chain, relayer, written)
  for (const each of sent ?? []) void follow(context, chain, each)
  return sent !== undefined
}

/** Registers a payment that was sent, and decides what the end of its transaction means for it. */
function follow(context: Context, chain: ChainState, sent: Sent): Promise<Outcome> {
  return track(context, sent.member, () => conclude(context, chain, sent))
}

/** Registers work on a payment; after a fault the next sweep repeats it. */
export function track(
  { progress: { running }, ledger, log }: Context,
  { payment, requestId }: Underway,
  work: () => Promise<Outcome>,
): Promise<Outcome> {
  const { id } = payment
  const outcome = work()
    .catch(async (error: unknown): Promise<Outcome> => {
      log('settlement-fault', { ...about({ id, requestId }), error })
      // Without the database its state is as it was known.
      const stored = await ledger.payments.findById(id).catch(() => undefined)
      return { kind: 'pending', payment: stored ?? payment }
    })
    .finally(() => {
      if (running.get(id) === outcome) running.delete(id)
    })
  running.set(id, outcome)
  return outcome
}

/** The outcome of a payment that was sent, when its transaction has ended. */
async function conclude(context: Context, chain: ChainState, sent: Sent): Promise<Outcome> {
  const { member, payer, leave } = sent
  const { id, transfer } = member.payment
  const { failures } = context.payers
  let outcome: Outcome
  let isAgain: boolean
  try {
    const { paid, unpaid, attributed, ...rest } = await sent.conclusion
    const confirmed = paid.get(id)
    if (confirmed) {
      failures.recordPaid(payer)
      context.metrics.paid(confirmed)
      return { kind: 'confirmed', payment: confirmed }
    }
    const reason = unpaid.get(id)
    if (reason === undefined) return Resolve.current(context, { id })
    outcome = await Resolve.decide(context, member, reason)
    isAgain = rest.isAgain
    if (outcome.kind === 'confirmed') context.metrics.paid(outcome.payment)
    if (attributed.has(id) && (outcome.kind === 'reverted' || outcome.kind === 'dead')) {
      const code = attributed.get(id) ?? 'unknown'
      failures.record(await payerOf(context.ledger.payments, transfer, code))
      context.metrics.failed(chain.network.id)
    }
  } finally {
    // Released only after the failure is recorded, so that no further payment passes in between.
    leave()
    // Other payments of the payer may wait for this one.
    if (chain.queue.payments.length + chain.queue.named.length > 0) chain.room()
  }
  if (outcome.kind !== 'reverted' || !isAgain) return outcome
  return resend(context, { ...member, payment: outcome.payment })
}

/**
 * Sends a reverted payment again, alone, when the simulation passes. Only a consumed nonce leads to
 * one more attempt: a payment that fails alone is not sent again by itself.
 */
export async function resend(context: Context, member: Underway): Promise<Outcome> {
  const { payment, requestId, deliverOnConfirm } = member
  const { transfer, id, purpose } = payment
  const { now, payers, ledger } = context
  const chain = chainOf(context, transfer.network)
  const signed = await Simulate.checkSignature(chain, transfer, now())
  if (signed.kind !== 'signed') {
    return signed.kind === 'refused' ? Resolve.decide(context, member, signed.reason) : signed
  }
  const payer = await payerOf(ledger.payments, transfer, signed.code)
  const waitSeconds = payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  const request = { id, requestId, transfer, purpose, receivedAt: now() }
  const signer = { kind: 'checked' } as const
  const submitted = submit(context, chain, {
    ...signed,
    signer,
    request,
    deliverOnConfirm,
    payment,
  })
  const admission = await submitted.admission
  switch (admission.kind) {
    case 'sent':
      return admission.outcome
    case 'known':
      return Resolve.current(context, admission.payment)
    case 'used':
      return Resolve.decide(context, member, Refusals.usedReason(transfer))
    case 'refused':
      return Resolve.decide(context, member, admission.reason)
    case 'unavailable':
      return admission
    case 'unsigned':
      throw new Error('the signature of a payment was proven before')
    case 'rows-refused':
      throw new Error('a payment that is sent again has no rows')
  }
}

/** Money that is known already: the same purpose waits for it, another purpose is refused. */
export async function joinKnown(
  context: Context,
  known: Payment,
  { purpose, requestId }: Requested,
  waitMs: number,
): Promise<Outcome> {
  const { product, merchant, route, fingerprint, credentialHash } = known.purpose
  const isSame =
    product === purpose.product &&
    merchant === purpose.merchant &&
    route === purpose.route &&
    fingerprint === purpose.fingerprint &&
    credentialHash === purpose.credentialHash &&
    // Without a hash the chain publishes all of an x402 credential: its bytes join nothing.
    (credentialHash !== undefined || purpose.protocol === 'mpp')
  if (!isSame) return Refusals.refuseUsed(known.transfer)
  return resumePayment(context, known, { transfer: known.transfer, requestId }, waitMs)
}

/** Waits for the running settlement, or sends a reverted payment again. */
export async function resumePayment(
  context: Context,
  { id }: Payment,
  { transfer, requestId }: { transfer: Transfer | undefined; requestId?: string | undefined },
  waitMs: number,
): Promise<Outcome> {
  const payment = await context.ledger.payments.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return Resolve.current(context, payment)
  }
  if (!context.progress.running.has(id) && (await isPaymentOfAnother(context, payment))) {
    const isOver = ({ state }: Payment) => state !== payment.state
    await waitForOther(context, id, { isOver, waitMs })
    return latest(context, payment)
  }
  const member = { payment, requestId }
  const work = context.progress.running.get(id) ?? resumeReverted(context, member, transfer)
  return (await within(work, waitMs)) ?? latest(context, payment)
}

/** The stored signature was valid; the one presented now may be another form of it. */
function resumeReverted(
  context: Context,
  member: Underway,
  transfer: Transfer | undefined,
): Promise<Outcome> {
  if (member.payment.state === 'reverted' && transfer) {
    return track(context, member, () => resend(context, member))
  }
  const reason = 'invalid_exact_evm_transaction_failed'
  return track(context, member, () => Resolve.decide(context, member, reason))
}

async function latest(context: Context, payment: Payment): Promise<Outcome> {
  const stored = (await context.ledger.payments.findById(payment.id)) ?? payment
  return stored.state === 'confirmed' || stored.state === 'expired'
    ? Resolve.current(context, stored)
    : { kind: 'pending', payment: stored }
}

const noSecond = Refusals.later(
  'A second node must confirm this amount, and none answers now; nothing is charged. Send the ' +
    'same credential again.',
  10,
)
