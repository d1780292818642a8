import type { Hex } from 'viem'
import type { Payment } from '../../db/Payment'
import * as Refusals from '../settlement/read/refusals'
import type { Outcome } from '../settlement/send/Outcome'
import type { Settlement } from '../settlement/settlement'
import { type CheckedRequest, expectedSigner, isSame, isUnderWay, used } from './verification'

/** The answer to a settlement. `transaction` is empty when this call has none. */
export type Settled =
  | { kind: 'success'; payment: Payment; isReplay: boolean }
  /** Nothing is charged from a ceiling, and nothing ever will be. */
  | { kind: 'void'; isReplay: boolean }
  /** Undefined: the gateway that has the named relayer has not sent it yet. */
  | { kind: 'pending'; payment: Payment | undefined }
  | { kind: 'failed'; reason: string; detail: string; transaction: Hex | '' }
  | { kind: 'conflict'; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/** A call of `/settle`. */
export type SettleCall = {
  subject: CheckedRequest
  /** The caller's Idempotency-Key, if it has an API key. */
  idempotencyKey: string | undefined
  requestId: string
  /** The caller: its API key or its address. */
  client: string
}

/** Turns an outcome into an answer. No other function does. */
export async function finish(
  settlement: Settlement,
  call: SettleCall,
  outcome: Outcome,
): Promise<Settled> {
  switch (outcome.kind) {
    case 'confirmed':
      return handOver(settlement, call, outcome.payment)
    case 'pending':
      return outcome
    case 'reverted': {
      const detail = 'The transaction failed; the same authorization may be tried again.'
      return failed(revertReason(call, outcome.reason), detail, outcome.payment.transaction)
    }
    case 'refused':
      return failed(outcome.reason, outcome.detail)
    case 'dead':
      return failed(outcome.reason, outcome.detail, outcome.payment?.transaction)
    case 'unavailable':
      return (await findEntrusted(settlement, call)) ?? outcome
  }
}

/** The answer about a settlement that another gateway is to send, or has sent since. */
async function findEntrusted(
  settlement: Settlement,
  call: SettleCall,
): Promise<Settled | undefined> {
  const { isShared, authorizations } = settlement
  const { subject } = call
  if (!isShared || subject.transfer.upto === undefined) return undefined
  const authorized = await authorizations.find(subject.transfer)
  if (authorized === undefined) return undefined
  if (isUnderWay(subject, authorized)) return { kind: 'pending', payment: undefined }
  const payment = authorized.state === 'sent' ? await settlement.findById(authorized.id) : undefined
  if (payment === undefined || !isSame(subject, payment)) return undefined
  if (payment.state === 'confirmed') return handOver(settlement, call, payment)
  // Only the gateway with the relayer sends a reverted payment again, at another call.
  return payment.state === 'broadcast' ? { kind: 'pending', payment } : undefined
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
  const stored = await settlement.findById(payment.id)
  if (isOwn && stored?.delivery === 'delivered' && stored.state === 'confirmed') {
    return { kind: 'success', payment: stored, isReplay: true }
  }
  // A reorganisation removed the transaction, so no call may get its success now.
  if (stored?.state === 'broadcast' && stored.delivery === 'none') {
    return { kind: 'pending', payment: stored }
  }
  return spent(subject, payment)
}

export const otherMoney: Settled = {
  kind: 'conflict',
  detail: 'Idempotency-Key was used for another authorization: use another key.',
}

export const overShare: Settled = {
  kind: 'unavailable',
  detail:
    'The gas that one payee may have of the budget of today is spent; it starts again at 0:00 UTC.',
  retryAfterSeconds: 600,
}

/**
 * A refused call sends nothing, so its `transaction` is empty: x402 specification 2, section 5.3.2. The
 * message names the transaction of the call before, for a server that lost its success.
 */
export function spent({ transfer }: CheckedRequest, payment: Payment | undefined): Settled {
  const { reason, detail } = used(transfer)
  if (payment === undefined) return failed(reason, detail)
  return failed(reason, `${detail} The first call sent it in ${payment.transaction}.`)
}

export function notSigned(subject: CheckedRequest): Settled {
  return failed(Refusals.signatureReason(subject.transfer), expectedSigner(subject))
}

export function failed(reason: string, detail: string, transaction: Hex | '' = ''): Settled {
  return { kind: 'failed', reason, detail, transaction }
}
