import { expect, test } from 'bun:test'
import { auditOverlaps } from './overlaps'
import type { Call } from './upstream'

/** The audit of calls of one payment that overlap, in soak:cluster. */

function call(gateway: number, at: number, endedAt: number | undefined, paymentId = 'pay_1'): Call {
  return { paymentId, serial: '1-1', gateway, at, endedAt, end: 'complete' }
}

test('calls one after the other, and those of different payments, are in order', () => {
  const calls = [call(0, 100, 200), call(1, 200, 300), call(2, 150, 250, 'pay_2')]
  expect(auditOverlaps(calls, [])).toEqual([])
})

test('error: a second call during the first one is a finding', () => {
  expect(auditOverlaps([call(1, 150, 300), call(0, 100, 200)], [])).toMatchObject([
    { kind: 'double' },
  ])
  expect(auditOverlaps([call(0, 100, undefined), call(1, 900, 950)], [])).toHaveLength(1)
})

test('uses of what was bought may run at once, and only after its whole answer', () => {
  const uses = [call(1, 150, 300), call(1, 160, 200)]
  expect(auditOverlaps([call(0, 100, 150), ...uses], [])).toEqual([])
  expect(auditOverlaps([{ ...call(0, 100, 150), end: 'failed' }, ...uses], [])).toHaveLength(1)
})

test('only the fault of the gateway with the first call excuses a second one', () => {
  const calls = [call(0, 100, 200), call(1, 150, 300)]
  const excused = (gateway: number, from: number, until: number) =>
    auditOverlaps(calls, [{ gateway, from, until }]).length === 0
  expect([excused(0, 120, 140), excused(0, 50, 100), excused(0, 150, 400)]).toEqual([
    true,
    true,
    true,
  ])
  expect([excused(1, 120, 140), excused(0, 20, 99), excused(0, 151, 400)]).toEqual([
    false,
    false,
    false,
  ])
})
