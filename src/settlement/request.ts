import type { Address } from 'viem'
import { isDuplicate, write } from '../../db/write'
import { zero } from '../protocol/Address'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import { digest as digestOf, type Transfer } from '../protocol/Transfer'
import * as Batch from './batch'
import * as Budget from './budget'
import * as ChainClock from './clock'
import { type Admission, about, type ChainState, type Context, chainOf, within } from './context'
import * as Corroborate from './corroborate'
import * as Decide from './decide'
import * as Elsewhere from './elsewhere'
import type { Outcome, Payment, Purpose } from './Payment'
import * as Relayers from './relayer'
import { examine } from './simulate'
import * as Verify from './verify'

/** A payment that is asked for. */
export type Request = {
  id: string
  requestId: string | undefined
  transfer: Transfer
  purpose: Purpose
  receivedAt: number
  proven: Proof
  write: ((paymentId: string) => void) | undefined
  onSent: ((payment: Payment) => void) | undefined
  /** Whether the delivery is begun with the confirmation; undefined: never. */
  beginsDelivery: (() => boolean) | undefined
}

/** Whether the payer's own key signed, or who can tell. Repeatable and without I/O. */
export type Proof = boolean | (() => boolean)

/**
 * Signature, window and simulation in one call to a node; nothing is written or sent. `told`: the
 * signing domain that the payer was told, by default the token's own.
 */
export async function verify(
  context: Context,
  transfer: Transfer,
  told: Asset['eip712'] | undefined,
): Promise<{ ok: true } | Outcome> {
  const chain = chainOf(context, transfer.network)
  const own = chain.network.asset.eip712
  const eip712 = told ?? own
  const digest = digestOf(transfer, { eip712 })
  let signer: Address | undefined
  const isSigned = () => {
    signer ??= Crypto.recover(digest, transfer.signature) ?? zero
    return signer === transfer.payer
  }
  const late = Verify.checkWindow(transfer, context.now())
  // Whose signature it is comes first: only the chain can tell when no key of the payer signed.
  if (late && isSigned()) return late
  const isForeign =
    transfer.method === 'eip3009' && (eip712.name !== own.name || eip712.version !== own.version)
  const isDecidedByChain = !isForeign && Crypto.isCanonical(transfer.signature)
  const isPlain = isDecidedByChain || isSigned()
  const signed = isPlain
    ? Verify.assumeSigned(transfer)
    : await Verify.openWrapper(chain, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const sent = signed.transfer
  const isWrapped = !isPlain && sent !== transfer
  const look = { isDecidedByChain, isSigned, isWrapped, digest, eip712 }
  const asked = { look, now: ChainClock.chainNow(context, chain) }
  const simulation = await examine(chain, chain.relayers[0]?.address, sent, asked)
  if (simulation.kind === 'refused' && Verify.isUnsigned(simulation)) return simulation
  if (late) return late
  if (simulation.kind === 'passes') return { ok: true }
  return simulation.kind === 'used' ? refuseUsed(transfer) : simulation
}

/** Settles money that is not known yet. Rejects with what the request's `write` throws. */
export async function settle(context: Context, request: Request, waitMs: number): Promise<Outcome> {
  const { id, beginsDelivery } = request
  const { beginning, begun } = context
  if (beginsDelivery === undefined) return order(context, request, waitMs)
  beginning.set(id, beginsDelivery)
  try {
    const outcome = await order(context, request, waitMs)
    return outcome.kind === 'confirmed' && begun.has(id) ? { ...outcome, isBegun: true } : outcome
  } finally {
    beginning.delete(id)
    begun.delete(id)
  }
}

async function order(context: Context, request: Request, waitMs: number): Promise<Outcome> {
  const until = context.now() + waitMs
  const { id, requestId, transfer, purpose, receivedAt, proven } = request
  const chain = chainOf(context, transfer.network)
  if (transfer.asset !== chain.network.asset.address)
    throw new Error('not the asset of the network')
  const refusal = Verify.checkWindow(transfer, context.now())
  if (refusal) return refusal
  if (!Relayers.isReady(chain)) return Verify.unavailable(undefined)
  if (context.db.storage.fault() !== undefined) return Verify.unrecordable
  // After the payment it would wait for a node that does not answer now.
  if (needsSecond(context, chain, request) && chain.health.others === 0) return noSecond
  const spent = Budget.refuse(context, chain, purpose)
  if (spent) return spent
  const isLeft = mayBeDecidedByChain(chain, transfer) && !context.trust.isLost()
  const isProven = isLeft ? proven : ask(proven)
  const signed = isProven
    ? Verify.assumeSigned(transfer)
    : await Verify.checkSignature(chain, transfer, context.now())
  if (signed.kind !== 'signed') {
    if (signed.kind === 'refused' && Verify.isUnsigned(signed)) context.trust.lose()
    return signed
  }
  const refused = refusePayer(context, chain, signed, purpose)
  if (refused) return refused
  if (requestId !== undefined) context.requestIds.set(id, requestId)
  const submitted = context.submit(chain, {
    id,
    requestId,
    transfer: signed.transfer,
    hasCode: signed.hasCode,
    purpose,
    receivedAt,
    payment: undefined,
    isAlone: false,
    isProven: typeof isProven === 'function' ? isProven : undefined,
    write: request.write,
  })
  const { admission } = submitted
  const ended = admission.then(async (result): Promise<Admission | Outcome> => {
    if (result.kind !== 'sent') return result
    request.onSent?.(result.payment)
    return result.outcome
  })
  const outcome = await within(ended, waitMs)
  if (outcome === undefined && submitted.cancel()) {
    context.requestIds.delete(id)
    return Verify.busy
  }
  // Too late to take it back: it is being simulated or has been written.
  const result = outcome ?? (await admission)
  switch (result.kind) {
    case 'sent':
      return latest(context, result.payment)
    case 'known':
      context.requestIds.delete(id)
      return meet(context, result.payment, purpose, waitMs)
    case 'used':
      return meetUsed(context, chain, request, waitMs)
    case 'unsigned':
      context.requestIds.delete(id)
      return order(
        context,
        { ...request, proven: false },
        Math.min(waitMs, Math.max(0, until - context.now())),
      )
    case 'thrown':
      context.requestIds.delete(id)
      throw result.error
    default:
      if (!context.running.has(id)) context.requestIds.delete(id)
      return result
  }
}

/** The refusal of a payer that needs no call to a node, if any. */
function refusePayer(
  context: Context,
  chain: ChainState,
  { transfer, hasCode }: Verify.Signed,
  purpose: Purpose,
): Verify.Refusal | undefined {
  const isNew = hasCode === true && !context.store.hasPaid(transfer)
  const payer = { address: transfer.payer, code: undefined, isNew }
  const waitSeconds = context.failures.waitSeconds(payer)
  if (waitSeconds > 0) return Verify.lockedOut(waitSeconds)
  return hasCode === true ? Budget.refuseCode(context, chain, purpose) : undefined
}

/** When the transfer passes with it, it is the payer's: chain and key read this form alike. */
function mayBeDecidedByChain({ codes }: ChainState, { payer, signature }: Transfer): boolean {
  return Crypto.isCanonical(signature) && !codes.has(payer)
}

function ask(proof: Proof): boolean {
  return typeof proof === 'function' ? proof() : proof
}

async function meetUsed(
  context: Context,
  chain: ChainState,
  request: Request,
  waitMs: number,
): Promise<Outcome> {
  const { id, transfer, purpose } = request
  const written = context.store.find(transfer)
  const outcome = written
    ? await meet(context, written, purpose, waitMs)
    : mayAdopt(context, request)
      ? await adopt(context, chain, request)
      : refuseUsed(transfer)
  context.requestIds.delete(id)
  return outcome
}

function mayAdopt({ payoutExclusive, shown }: Context, { purpose, transfer }: Request): boolean {
  if (purpose.product === 'desk') return true
  return purpose.bound && (payoutExclusive() || shown.find(transfer) !== undefined)
}

/**
 * The nonce was used on the chain before we sent anything: a reader of the credential settled it.
 * This counts at the desk, whose account has the money; with exclusive payouts; and when the
 * credential was refused here before and settled since. It does not count when one of our own
 * accounts sent it: then another database has answered for it.
 */
async function adopt(context: Context, chain: ChainState, order: Request): Promise<Outcome> {
  const { store, db, now } = context
  const { transfer, id } = order
  try {
    const found = await Elsewhere.find(context, chain, transfer)
    if (!found || !(await isAdoptable(context, chain, order, found))) return refuseUsed(transfer)
    await Relayers.assertConfirmed(context, chain, found.transaction)
    write(db, () => {
      store.insertPayment({
        ...Batch.rowOf(order, chain.head.number, now()),
        state: 'confirmed',
        transactionHash: found.transaction,
        logIndex: found.logIndex,
        blockNumber: found.blockNumber,
        confirmedAt: now(),
      })
      Batch.alsoWrite(order)
    })
    context.log('payment-settled-elsewhere', {
      ...about(context, id),
      transaction: found.transaction,
    })
    return Decide.current(context, { id })
  } catch (error) {
    if (error instanceof Batch.WriteError) throw error.cause
    if (isDuplicate(error)) return refuseUsed(transfer)
    context.log('settlement-undecided', { ...about(context, id), error })
    return Verify.unavailable(error)
  }
}

async function isAdoptable(
  context: Context,
  chain: ChainState,
  request: Request,
  found: Elsewhere.Found,
): Promise<boolean> {
  const before = context.shown.find(request.transfer)
  const isSince = before !== undefined && Elsewhere.isSince(context, chain, found, before)
  if (!Elsewhere.counts(context, chain, request, found, undefined) && !isSince) return false
  if (request.purpose.product !== 'desk' && context.payoutExclusive()) return true
  if (!(await Elsewhere.isSentByUs(chain, found))) return true
  context.log('settlement-without-record', {
    ...about(context, request.id),
    network: chain.network.id,
    transaction: found.transaction,
  })
  return false
}

/** Money that is known already: the same purpose waits for it, another one comes too late. */
export async function meet(
  context: Context,
  known: Payment,
  purpose: Purpose,
  waitMs: number,
): Promise<Outcome> {
  const { product, merchant, route, fingerprint, credentialHash } = known.purpose
  const isSame =
    product === purpose.product &&
    merchant === purpose.merchant &&
    route === purpose.route &&
    fingerprint === purpose.fingerprint &&
    credentialHash === purpose.credentialHash
  if (!isSame) return refuseUsed(known.transfer)
  return resume(context, known, known.transfer, waitMs)
}

/** Waits for what is under way; sends a reverted payment again. */
export async function resume(
  context: Context,
  { id }: Payment,
  transfer: Transfer | undefined,
  waitMs: number,
): Promise<Outcome> {
  const payment = context.store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return Decide.current(context, payment)
  }
  const running = context.running.get(id)
  if (running) return wait(context, payment, running, waitMs)
  // The stored signature has proven itself; the one presented now may be another form of it.
  const work = Decide.run(context, payment, () =>
    payment.state === 'reverted' && transfer
      ? Decide.again(context, payment)
      : Decide.decide(context, id, 'invalid_exact_evm_transaction_failed'),
  )
  return wait(context, payment, work, waitMs)
}

async function wait(
  context: Context,
  payment: Payment,
  work: Promise<Outcome> | undefined,
  waitMs: number,
): Promise<Outcome> {
  const outcome = work && (await within(work, waitMs))
  return outcome ?? latest(context, payment)
}

function latest(context: Context, payment: Payment): Outcome {
  const stored = context.store.findById(payment.id) ?? payment
  return stored.state === 'confirmed' || stored.state === 'expired'
    ? Decide.current(context, stored)
    : { kind: 'pending', payment: stored }
}

/** Whether a payment counts only when two nodes show it. */
export function needsSecond(
  { confirmTwiceAbove }: Context,
  chain: ChainState,
  { transfer, purpose }: Pick<Request, 'transfer' | 'purpose'>,
): boolean {
  if (!Corroborate.hasTwo(chain)) return false
  if (purpose.product === 'desk') return true
  const above = confirmTwiceAbove()
  return above !== undefined && transfer.amountAtomic > above
}

const noSecond: Outcome = {
  kind: 'unavailable',
  detail: 'A second node must confirm this amount, and none answers now; nothing is charged.',
  retryAfterSeconds: 10,
}

function refuseUsed(transfer: Transfer): Outcome {
  const reason = Verify.usedReason(transfer)
  return { kind: 'refused', reason, detail: 'the nonce of the authorization is used' }
}
