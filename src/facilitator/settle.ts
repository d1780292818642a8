import type { Hex } from 'viem'
import { moneyKey } from '../protocol/Transfer'
import { within } from '../settlement/context'
import type { Outcome, Payment, Purpose } from '../settlement/Payment'
import type { Claim } from '../settlement/settle'
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
}

export type Order = {
  subject: Case
  /** Of a caller with an API key: its own name for the call. */
  idempotencyKey: string | undefined
  requestId: string
}

export type Settler = {
  settle(order: Order): Promise<Settled>
  /** Calls that are being answered. */
  inFlight(): number
}

type Running = { fingerprint: string; outcome: Promise<Outcome> }

/** Settles for other resource servers: one authorization earns one success, ever. */
export function createSettler(options: SettleOptions): Settler {
  const { settlement, now } = options
  const running = new Map<string, Running>()
  let active = 0

  return {
    inFlight: () => active,
    settle(order) {
      active++
      return settle(order).finally(() => active--)
    },
  }

  async function settle(order: Order): Promise<Settled> {
    const { subject } = order
    const { request, transfer, known } = subject
    const { fingerprint } = request.requirements
    const early = refuseEarly(options, subject)
    if (early !== undefined) return failed(early.code, early.detail)
    const late = refuseLate(options, subject)
    if (known !== undefined) {
      const isOurs = isGenuine(subject, known)
      if (!isOurs && !subject.isSigned()) return notSigned(subject)
      if (late !== undefined) return failed(late.code, late.detail)
      if (!isOurs || !isSame(subject, known)) return spent(subject, known)
    } else if (late !== undefined || !subject.isOwnDomain) {
      if (late !== undefined && subject.isSigned()) return failed(late.code, late.detail)
      const judgement = await judgeByChain(options, subject, late)
      if (judgement.kind === 'unavailable') return judgement
      if (judgement.kind === 'bad') return failed(judgement.reason, judgement.detail)
    }
    const conflict = findConflict(order)
    if (conflict !== undefined) return conflict
    const under = running.get(keyOf(subject))
    if (under !== undefined && under.fingerprint !== fingerprint) return spent(subject, undefined)
    const outcome = under ?? begin(order)
    if (outcome === undefined) return spent(subject, settlement.find(transfer))
    return finish(order, await wait(subject, outcome.outcome))
  }

  /** Undefined while another product has the money in its hands. */
  function begin({ subject, idempotencyKey, requestId }: Order): Running | undefined {
    const { transfer, known, request, keyHash, isSigned, sponsored } = subject
    const claim = settlement.claim(transfer)
    if (claim === undefined) return undefined
    const waitMs = waitOf(subject)
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
      bound: false,
    }
    const outcome =
      known === undefined
        ? settleSponsored(options, transfer, approval, purpose, {
            waitMs,
            receivedAt: now(),
            proven: isSigned(),
            requestId,
          })
        : settlement.resume(known, transfer, { waitMs, requestId })
    const key = keyOf(subject)
    const shared = { fingerprint: purpose.fingerprint, outcome: release(key, claim, outcome) }
    running.set(key, shared)
    return shared
  }

  function release(key: string, claim: Claim, outcome: Promise<Outcome>): Promise<Outcome> {
    return outcome.finally(() => {
      running.delete(key)
      claim.release()
    })
  }

  /** Whoever shares a settlement waits no longer than it asked for itself. */
  async function wait(subject: Case, outcome: Promise<Outcome>): Promise<Outcome> {
    const ended = await within(outcome, waitOf(subject))
    if (ended !== undefined) return ended
    const payment = settlement.find(subject.transfer)
    if (payment !== undefined) return { kind: 'pending', payment }
    return Verify.unavailable(undefined)
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
    if (await settlement.handOver(payment.id)) return { kind: 'success', payment, isReplay: false }
    const { idempotencyKey } = payment.purpose
    const isOwn = idempotencyKey !== undefined && idempotencyKey === order.idempotencyKey
    const stored = settlement.findById(payment.id)
    if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
      return { kind: 'success', payment: stored, isReplay: true }
    }
    return spent(order.subject, payment)
  }

  /** The caller's own key has paid with other money. */
  function findConflict({ subject, idempotencyKey }: Order): Settled | undefined {
    if (idempotencyKey === undefined) return undefined
    const { payer } = subject.transfer
    const scope = { merchant: '', route: routeOf(subject.keyHash), payer, key: idempotencyKey }
    const earlier = settlement.findByIdempotencyKey(scope)
    if (earlier === undefined || moneyKey(earlier.transfer) === moneyKey(subject.transfer)) {
      return undefined
    }
    return { kind: 'conflict', detail: 'Idempotency-Key was used for another authorization.' }
  }
}

function keyOf({ transfer }: Case): string {
  return moneyKey(transfer).toLowerCase()
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
