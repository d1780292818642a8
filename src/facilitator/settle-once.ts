import type { KeyScope } from '../../db/Payment'
import { type Claims, claimMoney, scopeKey } from '../paywall/claims'
import * as PaymentTerms from '../protocol/PaymentTerms'
import type { Fault } from '../protocol/Problem'
import { atCeiling, moneyKey } from '../protocol/Transfer'
import * as Refusals from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { within } from '../settlement/state/wait'
import {
  failed,
  finish,
  notSigned,
  otherMoney,
  overShare,
  type SettleCall,
  type Settled,
  spent,
} from './conclude'
import * as Policy from './Policy'
import type { Payees } from './payees'
import { purposeOf, send } from './send'
import {
  type CheckedRequest,
  identify,
  isFree,
  isGenuine,
  isSame,
  isUnderWay,
  refuseEarly,
  refuseLate,
  type VerificationOptions,
  verifyOnChain,
} from './verification'

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
  /** Claims on money, shared with the checkouts. */
  claims: Claims
}

export function createSettling(payees: Payees, claims: Claims): Settling {
  return { runs: new Map(), keys: new Map(), calls: 0, payees, claims }
}

export type Settler = {
  settle(call: SettleCall): Promise<Settled>
}

type Run = {
  /** Fingerprint of the call that started it. */
  form: string
  /** Resolves when the claim on the money is released. */
  end: Promise<RunEnd>
}

/** `answer`: the answer of this one call, which did not reach the settlement. */
type RunEnd = { outcome: Outcome } | { answer: Settled }

/**
 * Settles for other resource servers: one authorization gives one success, ever. It shares the
 * claims and the keys of the checkout, but not the checkout itself, because there is no product, no
 * credential of ours and no delivery, and concurrent identical calls get one answer.
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
  for (let call = first; ; call = await renew(settlement, call)) {
    const { subject } = call
    const refusal = await refuse(options, call)
    if (refusal !== undefined) return refusal
    const leftMs = deadline - now()
    const run = settling.runs.get(moneyKey(subject.transfer))
    if (run === undefined) {
      // Start nothing for a call that has used its time and will be answered with busy.
      const isLate = call !== first && leftMs <= 0
      if (isLate && subject.known === undefined) return finish(settlement, call, Refusals.busy)
      const started = begin(options, call, Math.max(0, leftMs))
      // A free call waits for no transaction, and its one success must not be lost.
      const end = isFree(subject) ? await started : await within(started, leftMs)
      if (end !== undefined && 'answer' in end) return end.answer
      return finish(settlement, call, end?.outcome ?? (await pendingOutcome(settlement, subject)))
    }
    const conflict = await findConflict(options, call)
    if (conflict !== undefined) return conflict
    if (leftMs <= 0) return finish(settlement, call, await pendingOutcome(settlement, subject))
    const end = await within(run.end, leftMs)
    // Share only final results of an identical call.
    const isShared = run.form === formOf(subject)
    if (isShared && end && 'outcome' in end && end.outcome.kind !== 'pending') {
      return finish(settlement, call, end.outcome)
    }
  }
}

/** The same call, with the payment that is stored now that the others have ended. */
async function renew(
  settlement: Settlement,
  { subject, ...call }: SettleCall,
): Promise<SettleCall> {
  return { ...call, subject: await identify({ settlement }, subject) }
}

/** The refusal of a request, as far as it is known without settlement. */
async function refuse(options: SettleOptions, call: SettleCall): Promise<Settled | undefined> {
  const { subject } = call
  const early = refuseEarly(options, subject)
  if (early !== undefined) return failed(early.code, early.detail)
  const late = refuseLate(options, subject)
  if (subject.known ?? subject.authorized) return refuseStored(call, late)
  const above = PaymentTerms.exceeds(subject.request)
  const needed = late ?? above
  if (needed === undefined && subject.isOwnDomain) return undefined
  if (late !== undefined && subject.isSigned()) return failed(late.code, late.detail)
  const verification = await verifyOnChain(options, subject, late)
  if (verification.kind === 'bad') return failed(verification.reason, verification.detail)
  if (verification.kind === 'unavailable') return verification
  return above && failed(above.code, above.detail)
}

/** The refusal of money that is stored, unless the call continues its payment. */
function refuseStored(call: SettleCall, late: Fault | undefined): Settled | undefined {
  const { subject } = call
  const { known, authorized } = subject
  const stored = known ?? authorized
  if (stored === undefined) return undefined
  const isOurs = isGenuine(subject, stored)
  if (!isOurs && !subject.isSigned()) return notSigned(subject)
  if (late !== undefined) return failed(late.code, late.detail)
  if (known !== undefined) {
    return isOurs && isSame(subject, known) ? undefined : spent(subject, known)
  }
  if (authorized !== undefined && isOurs && isUnderWay(subject, authorized)) return undefined
  const isVoid = authorized?.state === 'void' && isOurs && isSame(subject, authorized)
  const own = authorized?.purpose.idempotencyKey
  const isReplay = isVoid && own !== undefined && own === call.idempotencyKey
  return isReplay ? { kind: 'void', isReplay } : spent(subject, undefined)
}

/** Takes the money and the caller's own key: both are registered before anything is read. */
async function begin(options: SettleOptions, call: SettleCall, waitMs: number): Promise<RunEnd> {
  const { settling } = options
  const { runs, keys } = settling
  const { transfer } = call.subject
  const money = moneyKey(transfer)
  const scope = scopeOf(call)
  const reserved = scope && scopeKey(scope)
  if (reserved !== undefined && (keys.get(reserved) ?? money) !== money) {
    return { answer: otherMoney }
  }
  const claim = claimMoney(settling.claims, transfer)
  if (claim === undefined) {
    const conflict = await findConflict(options, call)
    // Another product has claimed the money, and its result is not known yet.
    return conflict ? { answer: conflict } : { outcome: Refusals.busy }
  }
  const end = run(options, call, waitMs).finally(claim.release)
  runs.set(money, { form: formOf(call.subject), end })
  claim.add(() => runs.delete(money))
  if (reserved !== undefined) {
    keys.set(reserved, money)
    claim.add(() => keys.delete(reserved))
  }
  return end
}

/** Settles money that this call has claimed. */
async function run(options: SettleOptions, call: SettleCall, waitMs: number): Promise<RunEnd> {
  const { settlement, settling } = options
  const { payees } = settling
  const { subject } = call
  const conflict = await findConflict(options, call)
  if (conflict !== undefined) return { answer: conflict }
  if (isFree(subject)) return { answer: await chargeNothing(options, call) }
  // The payment may have changed before the money was claimed.
  const known = subject.known && ((await settlement.findById(subject.known.id)) ?? subject.known)
  if (isOfUnlisted(options, subject)) await payees.load()
  // Do not await from here to the count: calls for one payee must not pass its share together.
  if (isOverShare(options, { ...subject, known })) return { answer: overShare }
  const count = payees.begin({ ...subject.transfer, known: known?.id })
  try {
    await count.ready
    return {
      outcome: await sendOrJoin(options, { ...call, subject: { ...subject, known } }, waitMs),
    }
  } catch (error) {
    // Another gateway has settled other money with this key since the read above.
    if (error instanceof RowsRefusedError && error.reason === 'key-used') {
      return { answer: otherMoney }
    }
    throw error
  } finally {
    await count.end(await findUse(settlement, subject))
  }
}

/** What a call counts for its payee: its payment, or one that another gateway is to send. */
async function findUse(
  settlement: Settlement,
  { transfer, authorized }: CheckedRequest,
): Promise<string | 'unsent' | undefined> {
  // The call that wrote it has counted it.
  if (authorized !== undefined) return undefined
  // Undefined also when the database cannot be read.
  const payment = await settlement.find(transfer).catch(() => undefined)
  if (payment !== undefined || !settlement.isShared || transfer.upto === undefined)
    return payment?.id
  const entrusted = await settlement.authorizations.find(transfer).catch(() => undefined)
  const isEntrusted = entrusted?.state === 'metered' || entrusted?.state === 'sent'
  return isEntrusted ? 'unsent' : undefined
}

/** Verifies the ceiling and writes that nothing will ever be charged from it. Sends nothing. */
async function chargeNothing(options: SettleOptions, call: SettleCall): Promise<Settled> {
  const { settlement, now } = options
  const { subject } = call
  const verification = await verifyOnChain(options, subject, undefined)
  if (verification.kind === 'bad') return failed(verification.reason, verification.detail)
  if (verification.kind === 'unavailable') return verification
  const written = await settlement.authorizations.void(
    atCeiling(subject.transfer),
    purposeOf(call),
    { id: settlement.createId(), receivedAt: now() },
  )
  if (written.kind === 'void') return { kind: 'void', isReplay: false }
  return finish(settlement, call, written)
}

/** Like `send`. The same call may have reached another gateway since the money was looked up. */
async function sendOrJoin(
  options: SettleOptions,
  call: SettleCall,
  waitMs: number,
): Promise<Outcome> {
  const { settlement, now } = options
  const until = now() + waitMs
  const outcome = await send(options, call, waitMs)
  const { subject } = call
  const isUsed =
    outcome.kind === 'refused' && outcome.reason === Refusals.usedReason(subject.transfer)
  if (!settlement.isShared || !isUsed) return outcome
  const stored = await renew(settlement, call)
  const isStored = (stored.subject.known ?? stored.subject.authorized) !== undefined
  if (!isStored || refuseStored(stored, undefined)) return outcome
  return send(options, stored, Math.max(0, until - now()))
}

/** Whether an unlisted payee has used its share of the day's gas. */
function isOverShare(options: SettleOptions, subject: CheckedRequest): boolean {
  const { network, request } = subject
  const { payTo } = request.requirements
  return isOfUnlisted(options, subject) && options.settling.payees.isSpent(network.id, payTo)
}

/** Whether gas would be spent for an unlisted payee. */
function isOfUnlisted({ policy }: SettleOptions, subject: CheckedRequest): boolean {
  const { known, authorized, request } = subject
  const isSent = (known !== undefined && known.state !== 'reverted') || authorized !== undefined
  return !isSent && Policy.isUnlisted(policy, request.requirements.payTo)
}

/** The outcome of a settlement that is still in progress. */
async function pendingOutcome(
  settlement: Settlement,
  { transfer }: CheckedRequest,
): Promise<Outcome> {
  const payment = await settlement.find(transfer)
  return payment === undefined ? Refusals.busy : { kind: 'pending', payment }
}

function waitOf({ waitMs }: SettleOptions, { request }: CheckedRequest): number {
  return Math.min(request.requirements.maxTimeoutSeconds * 1000, waitMs)
}

/** The fault when the caller's own key was used, or is being used, with other money. */
async function findConflict(
  { settlement, settling }: SettleOptions,
  call: SettleCall,
): Promise<Settled | undefined> {
  const scope = scopeOf(call)
  if (scope === undefined) return undefined
  const { authorizations, isShared } = settlement
  const previous =
    (await settlement.findByIdempotencyKey(scope)) ??
    (await authorizations.findVoid(scope)) ??
    // What another gateway is to settle has no payment yet.
    (isShared ? await authorizations.findByIdempotencyKey(scope) : undefined)
  const used = previous ? moneyKey(previous.transfer) : settling.keys.get(scopeKey(scope))
  if (used === undefined || used === moneyKey(call.subject.transfer)) return undefined
  return otherMoney
}

/** The scope of a caller's own key; undefined without one. */
function scopeOf({ subject, idempotencyKey: key }: SettleCall): KeyScope | undefined {
  if (key === undefined) return undefined
  const { payer } = subject.transfer
  return { merchant: '', route: Policy.routeOf(subject.keyHash), payer, key }
}

/** Fingerprint by which concurrent calls share an answer: same terms, same payload, same caller. */
function formOf({ request, keyHash }: CheckedRequest): string {
  return [request.requirements.fingerprint, request.credentialHash, Policy.routeOf(keyHash)].join()
}
