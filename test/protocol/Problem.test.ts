import { expect, test } from 'bun:test'
import * as Problem from '../../src/protocol/Problem'

test('MPP problems carry the type URIs and statuses of the draft', () => {
  const expected = {
    'payment-required': 402,
    'payment-expired': 402,
    'verification-failed': 402,
    'method-unsupported': 400,
    'malformed-credential': 402,
    'invalid-challenge': 402,
  } as const
  for (const [code, status] of Object.entries(expected)) {
    const problem = Problem.of(code as Problem.Code, 'why')
    expect(Problem.toJson(problem, 'https://gw.example')).toEqual({
      type: `https://paymentauth.org/problems/${code}`,
      title: problem.title,
      status,
      detail: 'why',
      code,
    })
  }
})

test('our problems live below the base URL', () => {
  const problem = Problem.of('settlement-pending', 'wait', {
    headers: { 'retry-after': '2' },
    members: { transaction: '0x1' },
  })
  expect(problem.retryable).toBe(true)
  expect(problem.headers).toEqual({ 'retry-after': '2' })
  expect(Problem.toJson(problem, 'https://gw.example')).toMatchObject({
    type: 'https://gw.example/problems/settlement-pending',
    status: 503,
    transaction: '0x1',
  })
})

test('a fault keeps its own kind, an x402 reason takes the fallback kind', () => {
  const own = Problem.ofFault({ code: 'payment-expired', detail: 'late' }, 'verification-failed')
  expect(own.code).toBe('payment-expired')
  const reason = Problem.ofFault({ code: 'invalid_payload', detail: 'bad' }, 'verification-failed')
  expect(reason).toMatchObject({ code: 'verification-failed', reason: 'invalid_payload' })
})

test('error: inherited names of objects are not codes', () => {
  const problem = Problem.ofFault({ code: 'toString', detail: 'x' }, 'bad-request')
  expect(problem).toMatchObject({ code: 'bad-request', status: 400, type: '/problems/bad-request' })
})

test('members cannot replace the standard ones', () => {
  const problem = Problem.of('not-found', 'no', { members: { status: 200, type: 'x' } })
  expect(Problem.toJson(problem)).toMatchObject({ status: 404, type: '/problems/not-found' })
})

test('further headers keep everything else', () => {
  const problem = Problem.of('not-ready', 'no', { members: { reason: 'r' }, cause: 'c' })
  const more = Problem.withHeaders(problem, { 'retry-after': '1' })
  expect(more).toMatchObject({ code: 'not-ready', status: 503, reason: 'r', cause: 'c' })
  expect(more.headers).toEqual({ 'retry-after': '1' })
  expect(more.retryable).toBe(true)
})
