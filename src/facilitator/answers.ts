import type * as Facilitation from '../protocol/Facilitation'
import * as Problem from '../protocol/Problem'
import type { Settled } from './conclude'
import type { CheckedRequest } from './verification'

/** Answers of the facilitator, as JSON and as problems. */

export type Operation = 'supported' | Facilitation.Operation

/** A 400 with both the JSON of the operation and a problem. A settlement has a CAIP-2 network. */
export function malformed(
  operation: Operation,
  { code, detail }: Problem.Fault,
  network: string,
  kind: 'bad-request' | 'body-too-large' = 'bad-request',
): Problem.ProblemError {
  const verdict =
    operation === 'verify'
      ? { isValid: false, invalidReason: code, invalidMessage: detail }
      : { success: false, errorReason: code, errorMessage: detail, transaction: '', network }
  return Problem.of(kind, detail, { members: { ...verdict, reason: code } })
}

export function conflict(detail: string, { request }: CheckedRequest): Problem.ProblemError {
  const { payer, requirements } = request
  const members = {
    ...{ success: false, errorReason: 'idempotency_conflict', errorMessage: detail },
    ...{ transaction: '', network: requirements.network, payer, field: 'Idempotency-Key' },
  }
  return Problem.of('idempotency-conflict', detail, { members })
}

/**
 * The network cannot settle now. The answer has no `isValid` and no `success`, which clients would
 * read as a result.
 */
export function notReady(state: {
  detail: string
  retryAfterSeconds: number
}): Problem.ProblemError {
  const headers = { 'Retry-After': String(state.retryAfterSeconds) }
  return Problem.of('not-ready', state.detail, { headers })
}

type Answered = Exclude<Settled, { kind: 'unavailable' | 'conflict' }>

export function toJson(settled: Answered, { request, network }: CheckedRequest): object {
  const { payer } = request
  switch (settled.kind) {
    case 'success': {
      const { transaction, transfer } = settled.payment
      const amount = String(transfer.amountAtomic)
      return { success: true, payer, transaction, network: network.id, amount }
    }
    case 'void':
      return { success: true, payer, transaction: '', network: network.id, amount: '0' }
    case 'pending': {
      const transaction = settled.payment?.transaction ?? ''
      const errorReason = 'settlement_pending'
      const errorMessage = 'The transfer is not confirmed yet; ask again with the same call.'
      const pending = { success: false, status: 'pending', errorReason, errorMessage }
      return { ...pending, payer, transaction, network: network.id }
    }
    case 'failed': {
      const { reason: errorReason, detail: errorMessage, transaction } = settled
      return { success: false, errorReason, errorMessage, payer, transaction, network: network.id }
    }
  }
}

/** Fields for the log: the answer, without the buyer. */
export function summaryOf(settled: Answered): Record<string, unknown> {
  if (settled.kind === 'failed') return { answer: settled.reason }
  if (settled.kind === 'void') return { answer: settled.kind }
  return { answer: settled.kind, payment: settled.payment?.id }
}
