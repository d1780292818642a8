import type { Hex } from 'viem'
import { moneyKey } from '../protocol/Transfer'
import { within } from '../settlement/context'
import type { Outcome, Payment, Purpose } from '../settlement/Payment'
import { settleSponsored } from '../settlement/sponsored'
import * as Verify from '../settlement/verify'
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

export type Order = {
  subject: Case
  /** Of a caller with an API key: its own name for the call. */
  idempotencyKey: string | undefined
  requestId: string
}

export type Settler = {
  settle(order: Order): Promise<Settled>
}

type Run = {
  /** Of the call that began it. */
  form: string
  /** Resolves when the money is free again. */
  outcome: Promise<Outcome>
}

/** Settles for other resource servers: one authorization earns one success, ever. */
export function createSettler(options: SettleOptions): Settler {
  const { settlement, settling, policy, now } = options
  const { runs, keys, payees } = settling

  return {
    settle(order) {
      settling.calls++
      return settle(order).finally(() => settling.calls--)
    },
  }

  async function settle(first: Order): Promise<Settled> {
    const deadline = now() + waitOf(first.subject)
    for (let order = first; ; order = renew(order)) {
      const refusal = (await refuse(order.subject)) ?? findConflict(order)
      if (refusal !== undefined) return refusal
      const leftMs = deadline - now()
      const run = runs.get(keyOf(order.subject))
      if (run === undefined) {
        // Nothing is begun for who has waited in vain and is about to be told to come again.
        const isLate = order !== first && leftMs <= 0
        if (isLate && order.subject.known === undefined) return finish(order, Verify.busy)
        if (isOverShare(order.subject)) return overShare
        const outcome = begin(order, Math.max(0, leftMs))
        return finish(order, (await within(outcome, leftMs)) ?? standing(order.subject))
      }
      if (leftMs <= 0) return finish(order, standing(order.subject))
      const outcome = await within(run.outcome, leftMs)
      // Of another signature or other terms nothing is learnt, nor from who waited for less.
      const isShared = run.form === formOf(order.subject)
      if (isShared && outcome && outcome.kind !== 'pending') return finish(order, outcome)
    }
  }

  /** The same after others were waited for. */
  function renew({ subject, ...order }: Order): Order {
    return { ...order, subject: { ...subject, known: settlement.find(subject.transfer) } }
  }

  /** What stands against it, as far as that is known before it is settled. */
  async function refuse(subject: Case): Promise<Settled | undefined> {
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

  async function begin(order: Order, waitMs: number): Promise<Outcome> {
    const { subject } = order
    const { transfer, known } = subject
    // It reads the database, which may fail: before anything is taken.
    const end = payees.begin({ ...transfer, known: known?.id })
    const claim = settlement.claim(transfer)
    // Another product has it in its hands: nobody knows yet what becomes of it.
    if (claim === undefined) return Verify.busy
    const key = keyOf(subject)
    const scope = scopeOf(order)
    if (scope !== undefined) keys.set(scope.text, key)
    const outcome = send(order, waitMs).finally(() => {
      runs.delete(key)
      if (scope !== undefined) keys.delete(scope.text)
      claim.release()
      end(settlement.find(transfer)?.id)
    })
    runs.set(key, { form: formOf(subject), outcome })
    return outcome
  }

  function send({ subject, idempotencyKey, requestId }: Order, waitMs: number): Promise<Outcome> {
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
    const proven = isOwnDomain && subject.isSigned
    const limits = { waitMs, receivedAt: now(), proven, requestId }
    return settleSponsored(options, transfer, approval, purpose, limits)
  }

  /** Whether gas would be spent for a stranger's payee that has had its part of the day. */
  function isOverShare({ known, network, request }: Case): boolean {
    const isSent = known !== undefined && known.state !== 'reverted'
    const { payTo } = request.requirements
    return !isSent && Policy.isStranger(policy, payTo) && payees.isSpent(network.id, payTo)
  }

  /** What is said of a settlement that is still under way. */
  function standing({ transfer }: Case): Outcome {
    const payment = settlement.find(transfer)
    return payment === undefined ? Verify.busy : { kind: 'pending', payment }
  }

  function waitOf({ request }: Case): number {
    return Math.min(request.requirements.maxTimeoutSeconds * 1000, options.waitMs)
  }

  async function finish(order: Order, outcome: Outcome): Promise<Settled> {
    switch (outcome.kind) {
      case 'confirmed':
        return handOver(order, outcome.payment)
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

  async function handOver(order: Order, payment: Payment): Promise<Settled> {
    if (!isSame(order.subject, payment)) return spent(order.subject, payment)
    if (settlement.needsSecond(payment) && !(await settlement.confirmTwice(payment))) {
      return { kind: 'pending', payment }
    }
    const isHanded = await settlement.handOver(payment.id)
    if (isHanded === true) return { kind: 'success', payment, isReplay: false }
    // The payee has the money and no call was told so: the same call gets the success later.
    if (isHanded === undefined) return { kind: 'pending', payment }
    const { idempotencyKey } = payment.purpose
    const isOwn = idempotencyKey !== undefined && idempotencyKey === order.idempotencyKey
    const stored = settlement.findById(payment.id)
    if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
      return { kind: 'success', payment: stored, isReplay: true }
    }
    // A reorganisation took it back a moment ago: it is nobody's yet.
    if (stored?.state === 'broadcast' && stored.delivery === 'none') {
      return { kind: 'pending', payment: stored }
    }
    return spent(order.subject, payment)
  }

  /** The caller's own key has paid, or is about to, with other money. */
  function findConflict(order: Order): Settled | undefined {
    const scope = scopeOf(order)
    if (scope === undefined) return undefined
    const earlier = settlement.findByIdempotencyKey(scope)
    const used = earlier ? moneyKey(earlier.transfer) : keys.get(scope.text)
    if (used === undefined || used === keyOf(order.subject)) return undefined
    return { kind: 'conflict', detail: 'Idempotency-Key was used for another authorization.' }
  }
}

/** Where a caller's own key means something; undefined without one. */
function scopeOf({ subject, idempotencyKey: key }: Order) {
  if (key === undefined) return undefined
  const { payer } = subject.transfer
  const route = routeOf(subject.keyHash)
  return { merchant: '', route, payer, key, text: `${route} ${payer} ${key}` }
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

function keyOf({ transfer }: Case): string {
  return moneyKey(transfer)
}

function spent({ transfer }: Case, payment: Payment | undefined): Settled {
  const { reason, detail } = used(transfer)
  return failed(reason, detail, payment?.transaction)
}

function notSigned({ transfer }: Case): Settled {
  return failed(Verify.signatureReason(transfer), 'the signature is not of the payer')
}

function failed(reason: string, detail: string, transaction: Hex | '' = ''): Settled {
  return { kind: 'failed', reason, detail, transaction }
}
