import type { Hex } from 'viem'
import type { Payment, Purpose } from '../../db/Payment'
import { holdMoney, type KeyScope, scopeKey } from '../paywall/hold'
import { moneyKey } from '../protocol/Transfer'
import type { Outcome } from '../settlement/Outcome'
import * as Refusals from '../settlement/refusals'
import type { Settlement } from '../settlement/settlement'
import { settleSponsored } from '../settlement/sponsorship'
import { within } from '../settlement/wait'
import {
  type Case,
  isGenuine,
  isSame,
  type JudgeOptions,
  judgeByChain,
  refuseEarly,
  refuseLate,
  routeOf,
  used,
} from './judge'
import * as Policy from './Policy'
import type { Payees } from './payees'

/** How a settlement is answered. `transaction` is empty when none is known. */
export type Settled =
  | { kind: 'success'; payment: Payment; isReplay: boolean }
  | { kind: 'pending'; payment: Payment }
  | { kind: 'failed'; reason: string; detail: string; transaction: Hex | '' }
  | { kind: 'conflict'; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

export type SettleOptions = JudgeOptions & {
  /** Longest wait, whatever the requirements ask for. */
  waitMs: number
  settling: Settling
}

/** What is under way. It outlives a reload, which makes a new settler beside the old one. */
export type Settling = {
  /** By the key of the money. */
  runs: Map<string, Run>
  /** The money that each caller's own key of a run is used for. */
  keys: Map<string, string>
  /** Calls that are being answered. */
  calls: number
  payees: Payees
}

export function createSettling(payees: Payees): Settling {
  return { runs: new Map(), keys: new Map(), calls: 0, payees }
}

/** A call of `/settle`. */
export type SettleCall = {
  subject: Case
  /** Of a caller with an API key: its own name for the call. */
  idempotencyKey: string | undefined
  requestId: string
}

export type Settler = {
  settle(call: SettleCall): Promise<Settled>
}

type Run = {
  /** Of the call that began it. */
  form: string
  /** Resolves when the money is free again. */
  outcome: Promise<Outcome>
}

/**
 * Settles for other resource servers: one authorization gives one success, ever. It shares the holds
 * and the keys of the checkout, and not the checkout itself: there is no product, no credential of
 * ours to present and nothing to deliver, and identical calls get one answer at the same time.
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
      // Begin nothing for a call that has waited in vain and is about to be told to come again.
      const isLate = call !== first && leftMs <= 0
      if (isLate && subject.known === undefined) return finish(options, call, Refusals.busy)
      if (isOverShare(options, subject)) return overShare
      const outcome = begin(options, call, Math.max(0, leftMs))
      const ended = await within(outcome, leftMs)
      return finish(options, call, ended ?? standing(settlement, subject))
    }
    if (leftMs <= 0) return finish(options, call, standing(settlement, subject))
    const outcome = await within(run.outcome, leftMs)
    // Share only final results of an identical call.
    const isShared = run.form === formOf(subject)
    if (isShared && outcome && outcome.kind !== 'pending') return finish(options, call, outcome)
  }
}

/** The same after others were waited for. */
function renew(settlement: Settlement, { subject, ...call }: SettleCall): SettleCall {
  return { ...call, subject: { ...subject, known: settlement.find(subject.transfer) } }
}

/** What stands against it, as far as that is known before it is settled. */
async function refuse(options: SettleOptions, subject: Case): Promise<Settled | undefined> {
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
  const judgement = await judgeByChain(options, subject, late)
  if (judgement.kind === 'bad') return failed(judgement.reason, judgement.detail)
  return judgement.kind === 'unavailable' ? judgement : undefined
}

/** Takes the money and registers what is under way, before the first await. */
async function begin(options: SettleOptions, call: SettleCall, waitMs: number): Promise<Outcome> {
  const { settlement, settling } = options
  const { runs, keys, payees } = settling
  const { subject } = call
  const { transfer, known } = subject
  const hold = holdMoney(settlement, transfer)
  // Another product holds the money: what becomes of it is not known yet.
  if (hold === undefined) return Refusals.busy
  try {
    // It reads the database, which may fail.
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
    // What the resource server says that is sold; only for people who read the database.
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

/** Whether gas would be spent for a stranger's payee that has had its part of the day. */
function isOverShare(
  { policy, settling: { payees } }: SettleOptions,
  { known, network, request }: Case,
): boolean {
  const isSent = known !== undefined && known.state !== 'reverted'
  const { payTo } = request.requirements
  return !isSent && Policy.isStranger(policy, payTo) && payees.isSpent(network.id, payTo)
}

/** What is said of a settlement that is still under way. */
function standing(settlement: Settlement, { transfer }: Case): Outcome {
  const payment = settlement.find(transfer)
  return payment === undefined ? Refusals.busy : { kind: 'pending', payment }
}

function waitOf({ waitMs }: SettleOptions, { request }: Case): number {
  return Math.min(request.requirements.maxTimeoutSeconds * 1000, waitMs)
}

/** The only place that makes an answer of an outcome. */
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
  // The payee has the money and no call was told so: the same call gets the success later.
  if (isHanded === undefined) return { kind: 'pending', payment }
  const { idempotencyKey } = payment.purpose
  const isOwn = idempotencyKey !== undefined && idempotencyKey === own
  const stored = settlement.findById(payment.id)
  if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
    return { kind: 'success', payment: stored, isReplay: true }
  }
  // A reorganisation took it back a moment ago: no call has got its success yet.
  if (stored?.state === 'broadcast' && stored.delivery === 'none') {
    return { kind: 'pending', payment: stored }
  }
  return spent(subject, payment)
}

/** The caller's own key has paid, or is about to, with other money. */
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

/** Where a caller's own key means something; undefined without one. */
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

/** Concurrent calls of one key share an answer: same terms, same payload, same caller. */
function formOf({ request, keyHash }: Case): string {
  return [request.requirements.fingerprint, request.credentialHash, routeOf(keyHash)].join()
}

function spent({ transfer }: Case, payment: Payment | undefined): Settled {
  const { reason, detail } = used(transfer)
  return failed(reason, detail, payment?.transaction)
}

function notSigned({ transfer }: Case): Settled {
  return failed(Refusals.signatureReason(transfer), 'the signature is not of the payer')
}

function failed(reason: string, detail: string, transaction: Hex | '' = ''): Settled {
  return { kind: 'failed', reason, detail, transaction }
}
