import * as Problem from '../protocol/Problem'
import type { Case } from './judge'
import type { Settled } from './settle'

/** What the facilitator answers, as JSON and as problems. */

export type Operation = 'supported' | 'verify' | 'settle'

/** 400 in the JSON of the operation and as a problem at once. A settlement has a CAIP-2 network. */
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

export function conflict(detail: string, { request }: Case): Problem.ProblemError {
  const { payer, requirements } = request
  const members = {
    ...{ success: false, errorReason: 'idempotency_conflict', errorMessage: detail },
    ...{ transaction: '', network: requirements.network, payer, field: 'Idempotency-Key' },
  }
  return Problem.of('idempotency-conflict', detail, { members })
}

/** No verdict: without `isValid` and `success`, which would be read as one. */
export function notReady(state: {
  detail: string
  retryAfterSeconds: number
}): Problem.ProblemError {
  const headers = { 'Retry-After': String(state.retryAfterSeconds) }
  return Problem.of('not-ready', state.detail, { headers })
}

type Answered = Exclude<Settled, { kind: 'unavailable' | 'conflict' }>

export function toJson(settled: Answered, { request, network }: Case): object {
  const { payer } = request
  switch (settled.kind) {
    case 'success': {
      const { transaction, transfer } = settled.payment
      const amount = String(transfer.amountAtomic)
      return { success: true, payer, transaction, network: network.id, amount }
    }
    case 'pending': {
      const { transaction } = settled.payment
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

/** For the log: what was answered, without the buyer. */
export function told(settled: Answered): Record<string, unknown> {
  if (settled.kind === 'failed') return { answer: settled.reason }
  return { answer: settled.kind, payment: settled.payment.id }
}
