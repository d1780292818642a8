import type { Hex } from 'viem'
import { holdMoney, type KeyScope, scopeKey } from '../paywall/hold'
import { moneyKey } from '../protocol/Transfer'
import type { Outcome, Payment, Purpose } from '../settlement/Payment'
import * as Refusals from '../settlement/refusals'
import type { Settlement } from '../settlement/settlement'
import { settleSponsored } from '../settlement/sponsorship'
import { within } from '../settlement/wait'
import * as Policy from './Policy'
import type { Payees } from './payees'
import {
  type CheckedRequest,
  isGenuine,
  isSame,
  refuseEarly,
  refuseLate,
  routeOf,
  used,
  type VerificationOptions,
  verifyOnChain,
} from './verification'

/** The answer to a settlement. `transaction` is empty when none is known. */
export type Settled =
  | { kind: 'success'; payment: Payment; isReplay: boolean }
  | { kind: 'pending'; payment: Payment }
  | { kind: 'failed'; reason: string; detail: string; transaction: Hex | '' }
  | { kind: 'conflict'; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

export type SettleOptions = VerificationOptions & {
  /** Longest wait, whatever the requirements name, ms. */
  waitMs: number
  settling: Settling
}

/**
 * Settlements in progress. They outlive a reload, which creates a new settler beside the old one.
 */
export type Settling = {
  /** By the key of the money. */
  runs: Map<string, Run>
  /** The money for which each caller's own key is used. */
  keys: Map<string, string>
  /** Number of calls in progress. */
  calls: number
  payees: Payees
}

export function createSettling(payees: Payees): Settling {
  return { runs: new Map(), keys: new Map(), calls: 0, payees }
}

/** A call of `/settle`. */
export type SettleCall = {
  subject: CheckedRequest
  /** The caller's Idempotency-Key, if it has an API key. */
  idempotencyKey: string | undefined
  requestId: string
}

export type Settler = {
  settle(call: SettleCall): Promise<Settled>
}

type Run = {
  /** Fingerprint of the call that started it. */
  form: string
  /** Resolves when the claim on the money is released. */
  outcome: Promise<Outcome>
}

/**
 * Settles for other resource servers: one authorization gives one success, ever. It shares the
 * claims and the keys of the checkout, and not the checkout itself. There is no product, no
 * credential of ours to present and nothing to deliver, and concurrent identical calls get one
 * answer.
 */
export function createSettler(options: SettleOptions): Settler {
  const { settling } = options
  return {
    settle(call) {
      settling.calls++
      return settle(options, call).finally(() => settling.calls--)
    },
  }
}

async function settle(options: SettleOptions, first: SettleCall): Promise<Settled> {
  const { settlement, settling, now } = options
  const deadline = now() + waitOf(options, first.subject)
  for (let call = first; ; call = renew(settlement, call)) {
    const { subject } = call
    const refusal = (await refuse(options, subject)) ?? findConflict(options, call)
    if (refusal !== undefined) return refusal
    const leftMs = deadline - now()
    const run = settling.runs.get(moneyKey(subject.transfer))
    if (run === undefined) {
      // Start nothing for a call that has used its time and will be answered with busy.
      const isLate = call !== first && leftMs <= 0
      if (isLate && subject.known === undefined) return finish(options, call, Refusals.busy)
      if (isOverShare(options, subject)) return overShare
      const outcome = begin(options, call, Math.max(0, leftMs))
      const ended = await within(outcome, leftMs)
      return finish(options, call, ended ?? pendingOutcome(settlement, subject))
    }
    if (leftMs <= 0) return finish(options, call, pendingOutcome(settlement, subject))
    const outcome = await within(run.outcome, leftMs)
    // Share only final results of an identical call.
    const isShared = run.form === formOf(subject)
    if (isShared && outcome && outcome.kind !== 'pending') return finish(options, call, outcome)
  }
}

/** The same call, with the payment that is stored now that the others have ended. */
function renew(settlement: Settlement, { subject, ...call }: SettleCall): SettleCall {
  return { ...call, subject: { ...subject, known: settlement.find(subject.transfer) } }
}

/** The refusal of a request, as far as it is known before the settlement. */
async function refuse(
  options: SettleOptions,
  subject: CheckedRequest,
): Promise<Settled | undefined> {
  const early = refuseEarly(options, subject)
  if (early !== undefined) return failed(early.code, early.detail)
  const late = refuseLate(options, subject)
  const { known } = subject
  if (known !== undefined) {
    const isOurs = isGenuine(subject, known)
    if (!isOurs && !subject.isSigned()) return notSigned(subject)
    if (late !== undefined) return failed(late.code, late.detail)
    return isOurs && isSame(subject, known) ? undefined : spent(subject, known)
  }
  if (late === undefined && subject.isOwnDomain) return undefined
  if (late !== undefined && subject.isSigned()) return failed(late.code, late.detail)
  const verification = await verifyOnChain(options, subject, late)
  if (verification.kind === 'bad') return failed(verification.reason, verification.detail)
  return verification.kind === 'unavailable' ? verification : undefined
}

/** Claims the money and registers the settlement in progress, before the first await. */
async function begin(options: SettleOptions, call: SettleCall, waitMs: number): Promise<Outcome> {
  const { settlement, settling } = options
  const { runs, keys, payees } = settling
  const { subject } = call
  const { transfer, known } = subject
  const hold = holdMoney(settlement, transfer)
  // Another product has claimed the money, and its result is not known yet.
  if (hold === undefined) return Refusals.busy
  try {
    // This reads the database, which may fail.
    const end = payees.begin({ ...transfer, known: known?.id })
    const money = moneyKey(transfer)
    const scope = scopeOf(call)
    const reserved = scope && scopeKey(scope)
    const outcome = send(options, call, waitMs).finally(hold.release)
    runs.set(money, { form: formOf(subject), outcome })
    hold.add(() => runs.delete(money))
    if (reserved !== undefined) {
      keys.set(reserved, money)
      hold.add(() => keys.delete(reserved))
    }
    hold.add(() => end(settlement.find(transfer)?.id))
    return await outcome
  } catch (error) {
    hold.release()
    throw error
  }
}

function send(options: SettleOptions, call: SettleCall, waitMs: number): Promise<Outcome> {
  const { settlement, now } = options
  const { subject, idempotencyKey, requestId } = call
  const { transfer, known, request, keyHash, sponsored, isOwnDomain } = subject
  if (known !== undefined) return settlement.resume(known, transfer, { waitMs, requestId })
  const approval = 'code' in sponsored ? undefined : sponsored.approval
  const purpose: Purpose = {
    product: 'facilitator',
    protocol: 'x402',
    merchant: '',
    route: routeOf(keyHash),
    fingerprint: request.requirements.fingerprint,
    // The resource server's name for what is sold. It is informative only.
    resource: request.resource,
    idempotencyKey,
    challengeId: undefined,
    credentialHash: request.credentialHash,
    bound: false,
  }
  const isKeySigned = isOwnDomain && subject.isSigned
  const limits = { waitMs, receivedAt: now(), isKeySigned, requestId }
  return settleSponsored(options, transfer, purpose, { ...limits, approval })
}

/** Whether an unlisted payee has used its share of the day's gas. */
function isOverShare(
  { policy, settling: { payees } }: SettleOptions,
  { known, network, request }: CheckedRequest,
): boolean {
  const isSent = known !== undefined && known.state !== 'reverted'
  const { payTo } = request.requirements
  return !isSent && Policy.isUnlisted(policy, payTo) && payees.isSpent(network.id, payTo)
}

/** The outcome of a settlement that is still in progress. */
function pendingOutcome(settlement: Settlement, { transfer }: CheckedRequest): Outcome {
  const payment = settlement.find(transfer)
  return payment === undefined ? Refusals.busy : { kind: 'pending', payment }
}

function waitOf({ waitMs }: SettleOptions, { request }: CheckedRequest): number {
  return Math.min(request.requirements.maxTimeoutSeconds * 1000, waitMs)
}

/** Turns an outcome into an answer. No other function does. */
async function finish(
  options: SettleOptions,
  call: SettleCall,
  outcome: Outcome,
): Promise<Settled> {
  switch (outcome.kind) {
    case 'confirmed':
      return handOver(options.settlement, call, outcome.payment)
    case 'pending':
      return outcome
    case 'reverted': {
      const detail = 'The transaction failed; the same authorization may be tried again.'
      return failed(outcome.reason, detail, outcome.payment.transaction)
    }
    case 'refused':
      return failed(outcome.reason, outcome.detail)
    case 'dead':
      return failed(outcome.reason, outcome.detail, outcome.payment?.transaction)
    case 'unavailable':
      return outcome
  }
}

async function handOver(
  settlement: Settlement,
  { subject, idempotencyKey: own }: SettleCall,
  payment: Payment,
): Promise<Settled> {
  if (!isSame(subject, payment)) return spent(subject, payment)
  if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment))) {
    return { kind: 'pending', payment }
  }
  const isHanded = await settlement.handOver(payment.id)
  if (isHanded === true) return { kind: 'success', payment, isReplay: false }
  // The payee has the money and no call got a success: the same call gets it later.
  if (isHanded === undefined) return { kind: 'pending', payment }
  const { idempotencyKey } = payment.purpose
  const isOwn = idempotencyKey !== undefined && idempotencyKey === own
  const stored = settlement.findById(payment.id)
  if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
    return { kind: 'success', payment: stored, isReplay: true }
  }
  // A reorganisation removed the transaction, so no call may get its success now.
  if (stored?.state === 'broadcast' && stored.delivery === 'none') {
    return { kind: 'pending', payment: stored }
  }
  return spent(subject, payment)
}

/** The fault when the caller's own key was used, or is being used, with other money. */
function findConflict(
  { settlement, settling }: SettleOptions,
  call: SettleCall,
): Settled | undefined {
  const scope = scopeOf(call)
  if (scope === undefined) return undefined
  const previous = settlement.findByIdempotencyKey(scope)
  const used = previous ? moneyKey(previous.transfer) : settling.keys.get(scopeKey(scope))
  if (used === undefined || used === moneyKey(call.subject.transfer)) return undefined
  return { kind: 'conflict', detail: 'Idempotency-Key was used for another authorization.' }
}

/** The scope of a caller's own key; undefined without one. */
function scopeOf({ subject, idempotencyKey: key }: SettleCall): KeyScope | undefined {
  if (key === undefined) return undefined
  const { payer } = subject.transfer
  return { merchant: '', route: routeOf(subject.keyHash), payer, key }
}

const overShare: Settled = {
  kind: 'unavailable',
  detail: 'The gas that one payee may have of the budget of today is spent.',
  retryAfterSeconds: 600,
}

/** Fingerprint by which concurrent calls share an answer: same terms, same payload, same caller. */
function formOf({ request, keyHash }: CheckedRequest): string {
  return [request.requirements.fingerprint, request.credentialHash, routeOf(keyHash)].join()
}

function spent({ transfer }: CheckedRequest, payment: Payment | undefined): Settled {
  const { reason, detail } = used(transfer)
  return failed(reason, detail, payment?.transaction)
}

function notSigned({ transfer }: CheckedRequest): Settled {
  return failed(Refusals.signatureReason(transfer), 'the signature is not of the payer')
}

function failed(reason: string, detail: string, transaction: Hex | '' = ''): Settled {
  return { kind: 'failed', reason, detail, transaction }
}
