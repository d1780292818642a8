import type { KeyScope, Payment, Purpose } from '../../db/Payment'
import { type Claims, claimMoney, scopeKey } from '../paywall/checkout'
import * as PaymentTerms from '../protocol/PaymentTerms'
import { type Fault, fault } from '../protocol/Problem'
import { atCeiling, moneyKey } from '../protocol/Transfer'
import * as Refusals from '../settlement/read/refusals'
import { type Outcome, RowsRefusedError } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { withApproval } from '../settlement/sponsorship'
import { within } from '../settlement/state/wait'
import { type Answered, pending } from './answers'
import * as Policy from './Policy'
import { overShare, type Payees, spendFor, type Use } from './payees'
import {
  type CheckedRequest,
  identify,
  isFree,
  isGenuine,
  isSame,
  isUnderWay,
  notSigned,
  refuseEarly,
  refuseLate,
  usedFault,
  type VerificationOptions,
  verifyOnChain,
} from './verification'

export type SettleOptions = VerificationOptions & {
  /** Longest wait, whatever the requirements name, ms. */
  waitMs: number
  settling: SettleRuns
}

/**
 * Settlements in progress. They outlive a reload, which creates another facilitator beside the
 * old one.
 */
type SettleRuns = {
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

export function createSettleRuns(payees: Payees, claims: Claims): SettleRuns {
  return { runs: new Map(), keys: new Map(), calls: 0, payees, claims }
}

type Run = {
  /** Fingerprint of the call that started it. */
  form: string
  /** Resolves when the claim on the money is released. */
  end: Promise<RunEnd>
}

/** `answer`: the answer of this one call, which did not reach the settlement. */
type RunEnd = { outcome: Outcome } | { answer: Answered }

/**
 * Settles for other resource servers: one authorization gives one success, ever. It shares the
 * claims and the keys of the checkout, but not the checkout itself, because there is no product, no
 * credential of ours and no delivery, and concurrent identical calls get one answer.
 */
export async function settleOnce(options: SettleOptions, call: SettleCall): Promise<Answered> {
  const { settling } = options
  settling.calls++
  try {
    return await settle(options, call)
  } finally {
    settling.calls--
  }
}

async function settle(options: SettleOptions, first: SettleCall): Promise<Answered> {
  const { settlement, settling, now } = options
  const deadline = now() + waitOf(options, first.subject)
  for (let call = first; ; call = await renew(settlement, call)) {
    const { subject } = call
    const refusal = await refuse(options, call)
    const run = settling.runs.get(moneyKey(subject.transfer))
    // What a call in progress has written as void may not be on the disk yet.
    if (refusal !== undefined && !(refusal === voidBefore && run)) return refusal
    const leftMs = deadline - now()
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
async function refuse(options: SettleOptions, call: SettleCall): Promise<Answered | undefined> {
  const { subject } = call
  const early = refuseEarly(options, subject)
  if (early !== undefined) return early
  const late = refuseLate(options, subject)
  if (subject.known ?? subject.authorized) return refuseStored(call, late)
  const above = PaymentTerms.exceeds(subject.request)
  if ((late ?? above) === undefined && subject.isOwnDomain) return undefined
  return (await verifyOnChain(options, subject, late)) ?? above
}

/** The refusal of money that is stored, unless the call continues its payment. */
function refuseStored(call: SettleCall, late: Fault | undefined): Answered | undefined {
  const { subject } = call
  const { known, authorized } = subject
  const stored = known ?? authorized
  if (stored === undefined) return undefined
  const isOurs = isGenuine(subject, stored)
  if (!isOurs && !subject.isSigned()) return notSigned(subject)
  if (late !== undefined) return late
  if (known !== undefined) {
    return isOurs && isSame(subject, known) ? undefined : spent(subject, known)
  }
  if (authorized !== undefined && isOurs && isUnderWay(subject, authorized)) return undefined
  const isVoid = authorized?.state === 'void' && isOurs && isSame(subject, authorized)
  const own = authorized?.purpose.idempotencyKey
  const isReplay = isVoid && own !== undefined && own === call.idempotencyKey
  return isReplay ? voidBefore : spent(subject, undefined)
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
  const { subject } = call
  const conflict = await findConflict(options, call)
  if (conflict !== undefined) return { answer: conflict }
  if (isFree(subject)) return { answer: await chargeNothing(options, call) }
  // The payment may have changed before the money was claimed.
  const known = subject.known && ((await settlement.findById(subject.known.id)) ?? subject.known)
  const current = { ...subject, known }
  const { network, payee } = subject.transfer
  const isLimited = isOfUnlisted(options, current)
  try {
    const outcome = await spendFor<Outcome>(
      settling.payees,
      { network, payee, isLimited, known: known?.id },
      () => sendOrJoin(options, { ...call, subject: current }, waitMs),
      (end) => findUse(settlement, subject, end),
    )
    return outcome === overShare ? { answer: overShare } : { outcome }
  } catch (error) {
    // Another gateway has settled other money with this key since the read above.
    if (error instanceof RowsRefusedError && error.reason === 'key-used') {
      return { answer: otherMoney }
    }
    throw error
  }
}

/**
 * What a call counts for its payee: its payment, or one that another gateway is to send. `outcome` is
 * undefined after a fault.
 */
async function findUse(
  settlement: Settlement,
  { transfer, authorized }: CheckedRequest,
  outcome: Outcome | undefined,
): Promise<Use> {
  // The call that wrote it has counted it.
  if (authorized !== undefined) return undefined
  if (outcome?.kind === 'confirmed') return outcome.payment.id
  // Undefined also when the database cannot be read.
  const payment = await settlement.find(transfer).catch(() => undefined)
  if (payment !== undefined || !settlement.isShared || transfer.upto === undefined)
    return payment?.id
  const entrusted = await settlement.authorizations.find(transfer).catch(() => undefined)
  const isEntrusted = entrusted?.state === 'metered' || entrusted?.state === 'sent'
  return isEntrusted ? 'all' : undefined
}

/** Verifies the ceiling and writes that nothing will ever be charged from it. Sends nothing. */
async function chargeNothing(options: SettleOptions, call: SettleCall): Promise<Answered> {
  const { settlement, now } = options
  const { subject } = call
  const refusal = await verifyOnChain(options, subject, undefined)
  if (refusal !== undefined) return refusal
  const written = await settlement.authorizations.void({
    ...{ id: settlement.createId(), receivedAt: now() },
    ...{ transfer: atCeiling(subject.transfer), purpose: purposeOf(call) },
  })
  if (written.kind === 'void') return voidNow
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
): Promise<Answered | undefined> {
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

/** Sends the money once, or continues what was stored of it. */
async function send(
  options: VerificationOptions,
  call: SettleCall,
  waitMs: number,
): Promise<Outcome> {
  const { settlement, now } = options
  const { authorizations } = settlement
  const { subject, requestId, client } = call
  const { transfer, known, authorized, sponsored, isOwnDomain } = subject
  if (known !== undefined) return settlement.resume(known, transfer, { waitMs, requestId })
  if (authorized !== undefined)
    return authorizations.settleCharge(authorized, { waitMs, requestId })
  const approval = 'code' in sponsored ? undefined : sponsored.approval
  const isKeySigned = isOwnDomain && subject.isSigned
  const purpose = purposeOf(call)
  const request = { transfer, purpose, receivedAt: now(), requestId, isKeySigned }
  const isOthers = transfer.upto !== undefined && authorizations.isOfAnother(transfer)
  const settle = (leftMs: number) =>
    isOthers ? authorizations.settleByHolder(request, leftMs) : settlement.settle(request, leftMs)
  if (approval === undefined) return settle(waitMs)
  return withApproval<Outcome>(options, { transfer, approval, client, waitMs }, settle)
}

/** What a settlement pays for. */
function purposeOf({ subject, idempotencyKey }: SettleCall): Purpose {
  const { request, keyHash } = subject
  return {
    product: 'facilitator',
    protocol: 'x402',
    merchant: '',
    route: Policy.routeOf(keyHash),
    fingerprint: request.requirements.fingerprint,
    // The resource server's name for the purchase. It is informative only.
    resource: request.resource,
    idempotencyKey,
    challengeId: undefined,
    credentialHash: request.credentialHash,
    bound: false,
  }
}

/** A call of `/settle`. */
type SettleCall = {
  subject: CheckedRequest
  /** The caller's Idempotency-Key, if it has an API key. */
  idempotencyKey: string | undefined
  requestId: string
  /** The caller: its API key or its address. */
  client: string
}

/** Turns an outcome into an answer. No other function does. */
async function finish(
  settlement: Settlement,
  call: SettleCall,
  outcome: Outcome,
): Promise<Answered> {
  switch (outcome.kind) {
    case 'confirmed':
      return handOver(settlement, call, outcome.payment)
    case 'pending':
      return unsettled(outcome.payment)
    case 'reverted': {
      const detail = 'The transaction failed; the same authorization may be tried again.'
      const code = revertReason(call, outcome.reason)
      return { code, detail, transaction: outcome.payment.transaction }
    }
    case 'refused':
      return fault(outcome.reason, outcome.detail)
    case 'dead': {
      const { reason: code, detail, payment } = outcome
      return { code, detail, transaction: payment?.transaction }
    }
    case 'unavailable':
      return (await findEntrusted(settlement, call)) ?? outcome
  }
}

/** The answer about a settlement that another gateway is to send, or has sent since. */
async function findEntrusted(
  settlement: Settlement,
  call: SettleCall,
): Promise<Answered | undefined> {
  const { isShared, authorizations } = settlement
  const { subject } = call
  if (!isShared || subject.transfer.upto === undefined) return undefined
  const authorized = await authorizations.find(subject.transfer)
  if (authorized === undefined) return undefined
  if (isUnderWay(subject, authorized)) return unsettled(undefined)
  const payment = authorized.state === 'sent' ? await settlement.findById(authorized.id) : undefined
  if (payment === undefined || !isSame(subject, payment)) return undefined
  if (payment.state === 'confirmed') return handOver(settlement, call, payment)
  // Only the gateway with the relayer sends a reverted payment again, at another call.
  return payment.state === 'broadcast' ? unsettled(payment) : undefined
}

/** The reference facilitator has a code of its own for a failed transaction of `upto`. */
function revertReason({ subject }: SettleCall, reason: string): string {
  const isFailed = reason === 'invalid_exact_evm_transaction_failed'
  return isFailed && subject.transfer.upto ? 'invalid_upto_evm_transaction_failed' : reason
}

async function handOver(
  settlement: Settlement,
  { subject, idempotencyKey: own }: SettleCall,
  payment: Payment,
): Promise<Answered> {
  if (!isSame(subject, payment)) return spent(subject, payment)
  if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment))) {
    return unsettled(payment)
  }
  const isHanded = await settlement.handOver(payment.id)
  if (isHanded === true) return settled(payment, false)
  // The payee has the money and no call got a success: the same call gets it later.
  if (isHanded === undefined) return unsettled(payment)
  const { idempotencyKey } = payment.purpose
  const isOwn = idempotencyKey !== undefined && idempotencyKey === own
  const stored = await settlement.findById(payment.id)
  if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
    return settled(stored, true)
  }
  // A reorganisation removed the transaction, so no call may get its success now.
  if (stored?.state === 'broadcast' && stored.delivery === 'none') {
    return unsettled(stored)
  }
  return spent(subject, payment)
}

function settled(payment: Payment, isReplay: boolean): Answered {
  const { id, transaction, transfer } = payment
  const members = { transaction, amount: String(transfer.amountAtomic) }
  return { members, noted: { payment: id, isReplay } }
}

/** Undefined: the gateway that has the named relayer has not sent it yet. */
function unsettled(payment: Payment | undefined): Answered {
  const noted = { answer: 'pending', payment: payment?.id }
  return { ...pending('transfer', payment?.transaction), noted }
}

/** Nothing is charged from a ceiling, and nothing ever will be. */
const voidNow: Answered = { members: { amount: '0' }, noted: { answer: 'void' } }
const voidBefore: Answered = { ...voidNow, noted: { answer: 'void', isReplay: true } }

/** A conflict, and no result of the operation. */
export const otherMoney = fault(
  'idempotency_conflict',
  'Idempotency-Key was used for another authorization: use another key.',
)

/**
 * A refused call sends nothing, so its `transaction` is empty: x402 specification 2, section 5.3.2. The
 * message names the transaction of the call before, for a server that lost its success.
 */
function spent({ transfer }: CheckedRequest, payment: Payment | undefined): Fault {
  const used = usedFault(transfer)
  if (payment === undefined) return used
  return fault(used.code, `${used.detail} The first call sent it in ${payment.transaction}.`)
}
