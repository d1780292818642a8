import type { Payment, Purpose } from '../../../db/Payment'
import * as Crypto from '../../protocol/Crypto'
import type { Transfer } from '../../protocol/Transfer'
import { needsSecond } from '../read/cross-check'
import * as Refusals from '../read/refusals'
import * as Signature from '../read/signature'
import { acceptExternal, type Unsettled } from '../repair/accept-external'
import { type Context, chainOf } from '../state/context'
import * as Gas from '../state/gas-budget'
import { isOfAnother, waitForOther } from '../state/ownership'
import { payerBefore } from '../state/payers'
import type { Admission, ChainState, Requested, Signer } from '../state/state'
import { within } from '../state/wait'
import { refuseBehind } from '../upto/ceiling-limits'
import { type DeliverOnConfirm, type Outcome, RowsRefusedError, type Underway } from './Outcome'
import { resend, type Submitted, submit } from './queue'
import { isReady } from './relayer'
import * as Resolve from './resolve'

/** The parts of settlement, and the credentials that arrived while nothing could settle. */
export type Intake = Context & { unsettled: Unsettled; createId: () => string }

/** Settles money that is not known yet. Rejects with RowsRefusedError. */
export async function settle(
  context: Intake,
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
    const outcome = await admit(context, request, onConfirm, waitMs)
    const isStarted = outcome.kind === 'confirmed' && onConfirm?.isStarted
    return isStarted ? { ...outcome, deliveryStarted: true } : outcome
  } finally {
    if (onConfirm) onConfirm.isOpen = false
  }
}

async function admit(
  context: Intake,
  request: Requested,
  onConfirm: DeliverOnConfirm | undefined,
  waitMs: number,
): Promise<Outcome> {
  const until = context.now() + waitMs
  const chain = chainOf(context, request.transfer.network)
  const submitted = await examineAndSubmit(context, chain, request, onConfirm)
  if ('kind' in submitted) return submitted
  const { admission } = submitted
  const ended = admission.then(async (result): Promise<Admission | Outcome> => {
    if (result.kind !== 'sent') return result
    request.onSent?.(result.payment)
    return result.outcome
  })
  const outcome = await within(ended, waitMs)
  if (outcome === undefined) {
    if (submitted.cancel()) return Refusals.busy
    if (onConfirm) onConfirm.isOpen = false
    // The running commit may start the delivery of this caller.
    await onConfirm?.commit
  }
  // It can no longer be cancelled: it is being simulated or has been written.
  const result = outcome ?? (await admission)
  switch (result.kind) {
    case 'sent':
      return latest(context, result.payment)
    case 'known':
      return joinKnown(context, result.payment, request, waitMs)
    case 'used':
      return handleUsedNonce(context, chain, request, waitMs)
    case 'unsigned': {
      const leftMs = Math.min(waitMs, Math.max(0, until - context.now()))
      return admit(context, { ...request, isKeySigned: false }, onConfirm, leftMs)
    }
    case 'rows-refused':
      if (result.reason === 'money-authorized') return Refusals.refuseUsed(request.transfer)
      if (result.reason === 'payer-under-way') return Refusals.underWay
      throw new RowsRefusedError(result.reason)
    default:
      return result
  }
}

/** Returns a refusal that needs no simulation, or the place in the queue. */
async function examineAndSubmit(
  context: Context,
  chain: ChainState,
  request: Requested,
  deliverOnConfirm: DeliverOnConfirm | undefined,
): Promise<Outcome | Submitted> {
  const { transfer, purpose } = request
  if (transfer.asset !== chain.network.asset.address) {
    throw new Error('not the asset of the network')
  }
  const refusal = Refusals.checkWindow(transfer, context.now())
  if (refusal) return refusal
  if (!isReady(chain)) return Refusals.unavailable(undefined)
  if (context.ledger.fault() !== undefined) return Refusals.unrecordable
  // Without a second node the confirmed payment would wait, so refuse it before.
  if (needsSecond(context, chain, request) && chain.health.others === 0) return noSecond
  const busy = refuseBehind(context, chain, transfer, purpose)
  if (busy) return busy
  const spent = Gas.refuseBudget(context, chain, purpose)
  if (spent) return spent
  const signed = await checkSigner(context, chain, request)
  if (signed.kind !== 'signed') return signed
  const refused = await refusePayer(context, chain, signed, purpose)
  if (refused) return refused
  return submit(context, chain, request, { ...signed, deliverOnConfirm, payment: undefined })
}

/** Recovers the signer, unless the simulation may verify the signature. */
async function checkSigner(
  { payers, now }: Context,
  chain: ChainState,
  { transfer, isKeySigned = false }: Requested,
): Promise<(Signature.Signed & { signer: Signer }) | Refusals.PaymentRefusal> {
  const mayDefer = mayBeDecidedByChain(chain, transfer) && !payers.signers.isSuspended()
  if (mayDefer && typeof isKeySigned === 'function') {
    const signer = { kind: 'unchecked' as const, isKey: isKeySigned }
    return { ...Signature.assumeSigned(transfer), signer }
  }
  const isSigned = typeof isKeySigned === 'function' ? isKeySigned() : isKeySigned
  const signed = isSigned
    ? Signature.assumeSigned(transfer)
    : await Signature.checkSignature(chain, transfer, now())
  if (signed.kind === 'signed') return { ...signed, signer: { kind: 'checked' } }
  if (signed.kind === 'refused' && Refusals.isUnsigned(signed)) payers.signers.suspend()
  return signed
}

/** Whether the chain may verify the signature: chain and key read this form alike. */
function mayBeDecidedByChain({ known }: ChainState, { payer, signature }: Transfer): boolean {
  return Crypto.isCanonical(signature) && !known.codes.has(payer)
}

/** The refusal of a payer that needs no call to a node, if any. */
async function refusePayer(
  context: Context,
  chain: ChainState,
  { transfer, code }: Signature.Signed,
  purpose: Purpose,
): Promise<Refusals.PaymentRefusal | undefined> {
  const payer = await payerBefore(context.ledger.payments, transfer, code)
  const waitSeconds = context.payers.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  return code === 'contract' ? Gas.refuseCode(context, chain, purpose) : undefined
}

async function handleUsedNonce(
  context: Intake,
  chain: ChainState,
  request: Requested,
  waitMs: number,
): Promise<Outcome> {
  const { transfer } = request
  const written = await context.ledger.payments.find(transfer)
  if (written) return joinKnown(context, written, request, waitMs)
  return acceptExternal(context, chain, request, context.unsettled.find(transfer))
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
    credentialHash === purpose.credentialHash
  if (!isSame) return Refusals.refuseUsed(known.transfer)
  return resume(context, known, { transfer: known.transfer, requestId, waitMs })
}

/** Waits for the running settlement, or sends a reverted payment again. */
export async function resume(
  context: Context,
  { id }: Payment,
  {
    transfer,
    requestId,
    waitMs,
  }: { transfer: Transfer | undefined; requestId?: string | undefined; waitMs: number },
): Promise<Outcome> {
  const payment = await context.ledger.payments.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return Resolve.current(context, payment)
  }
  if (!context.progress.running.has(id) && (await isOfAnother(context, payment))) {
    const isOver = ({ state }: Payment) => state !== payment.state
    await waitForOther(context, id, { isOver, waitMs })
    return latest(context, payment)
  }
  const member: Underway = { payment, requestId, deliverOnConfirm: undefined }
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
    return Resolve.track(context, member, () => resend(context, member))
  }
  const reason = 'invalid_exact_evm_transaction_failed'
  return Resolve.track(context, member, () => Resolve.decide(context, member, reason))
}

async function latest(context: Context, payment: Payment): Promise<Outcome> {
  const stored = (await context.ledger.payments.findById(payment.id)) ?? payment
  return stored.state === 'confirmed' || stored.state === 'expired'
    ? Resolve.current(context, stored)
    : { kind: 'pending', payment: stored }
}

const noSecond: Outcome = {
  kind: 'unavailable',
  detail:
    'A second node must confirm this amount, and none answers now; nothing is charged. Send the ' +
    'same credential again.',
  retryAfterSeconds: 10,
}
