import { describe, expect, test } from 'bun:test'
import type { Kind } from './finding'
import type { Reported } from './model'
import type { Purchase } from './purchase'
import type { AuthorizationRow, PaymentRow } from './rows'
import type { Call } from './upstream'
import { type ByUseCase, type ByUseEnd, judgeByUse, lossOf } from './upto-audit'

/** The audit of purchases by use in the soaks, with consistent and inconsistent evidence. */

const id = 'pay_1'
const ceiling = 10_000n
/** 500 and 7 tokens in and 20 out. */
const cost = '707'

function call(changes: Partial<Call> = {}, reported: Reported = { input: 7, output: 20 }): Call {
  const model = { isStream: false, reported, bytes: 80, endedAt: 1_050 }
  const times = { at: 1_000, endedAt: 1_050 }
  return { paymentId: id, serial: '1-1', gateway: 0, ...times, end: 'complete', model, ...changes }
}

function authorization(changes: Partial<AuthorizationRow> = {}): AuthorizationRow {
  return {
    id,
    network: 'eip155:8453',
    payer: '0x1',
    nonce: '0x1',
    ceiling_atomic: String(ceiling),
    charge_atomic: cost,
    state: 'sent',
    is_delivered: 0,
    truncated: 0,
    failed_at: null,
    created_at: 990,
    valid_before: '300',
    ...changes,
  }
}

function payment(changes: Partial<PaymentRow> = {}): PaymentRow {
  return {
    id,
    network: 'eip155:8453',
    payer: '0x1',
    nonce: '0x1',
    method: 'permit2',
    amount_atomic: cost,
    state: 'confirmed',
    transaction_hash: '0x2',
    log_index: 0,
    delivery: 'delivered',
    attempts: 1,
    answered: 0,
    upstream_status: 200,
    delivered_at: 1_300,
    ...changes,
  }
}

type Buyer = ByUseCase['purchase']

function buyer(changes: Partial<Buyer> = {}): Buyer {
  const settled = { amount: cost, transaction: '0x2' }
  return {
    amountAtomic: ceiling,
    byUse: { isStream: false, leaveAfterMs: undefined, hasLeft: false, bytes: 80 },
    end: 'answered',
    received: [{ paymentId: id, call: 1, at: 1_310, settled }],
    said: [],
    ...changes,
  }
}

const byStream = (changes: Partial<NonNullable<Purchase['byUse']>> = {}) => ({
  isStream: true,
  leaveAfterMs: undefined,
  hasLeft: false,
  bytes: 80,
  ...changes,
})

/** A whole answer that was settled and answered. */
function sound(changes: Partial<ByUseCase> = {}): ByUseCase {
  return {
    purchase: buyer(),
    authorization: authorization(),
    payment: payment(),
    calls: [call()],
    isPaid: true,
    killedAt: [],
    ...changes,
  }
}

/** Nothing was settled, and the buyer has nothing. */
function unsettled(changes: Partial<ByUseCase> = {}): ByUseCase {
  return sound({
    purchase: buyer({ end: 'refused', received: [] }),
    authorization: void0,
    payment: undefined,
    isPaid: false,
    ...changes,
  })
}

const void0 = authorization({ state: 'void', charge_atomic: '0', failed_at: 1_200 })
const failed = call({ end: 'failed' })

describe('sound evidence', () => {
  const ends: readonly (readonly [string, ByUseEnd, ByUseCase])[] = [
    ['an answer that was settled', 'settled', sound()],
    ['an answer that failed', 'void, the answer failed', unsettled({ calls: [failed] })],
    [
      'an error that the buyer has for nothing',
      'void, the answer failed',
      unsettled({ purchase: buyer(), calls: [call({}, 'error')] }),
    ],
    [
      'a crash before a whole answer was metered',
      'void by a crash, whole answer',
      unsettled({ killedAt: [1_100] }),
    ],
    [
      'a crash before a stream was metered',
      'void by a crash, stream',
      unsettled({
        purchase: buyer({ end: 'refused', received: [], byUse: byStream() }),
        killedAt: [1_100],
      }),
    ],
    [
      'a crash after all of a stream and its charge',
      'settled, a crash cut the end of the stream',
      sound({ purchase: buyer({ end: 'refused', received: [], byUse: byStream() }) }),
    ],
    [
      'a buyer that left a stream which broke then',
      'settled, its buyer left',
      sound({
        purchase: buyer({
          end: 'left',
          received: [],
          byUse: byStream({ hasLeft: true }),
          said: [{ at: 1_020, status: 0, code: 'left', detail: '' }],
        }),
        authorization: authorization({ charge_atomic: String(ceiling) }),
        payment: payment({ amount_atomic: String(ceiling) }),
        calls: [failed],
      }),
    ],
  ]
  for (const [name, end, it] of ends)
    test(`${name} is no finding`, () => {
      expect(judgeByUse(it)).toEqual({ findings: [], end })
    })
})

const faults: readonly (readonly [name: string, kind: Kind, it: ByUseCase])[] = [
  [
    'a charge above what the upstream counted',
    'mismatch',
    sound({
      authorization: authorization({ charge_atomic: '708' }),
      payment: payment({ amount_atomic: '708' }),
    }),
  ],
  [
    'a settlement above the signed ceiling',
    'mismatch',
    sound({ payment: payment({ amount_atomic: '10001' }) }),
  ],
  [
    'a settlement that the ledger charged otherwise',
    'mismatch',
    sound({ payment: payment({ amount_atomic: '706' }) }),
  ],
  ['a settlement of a void authorization', 'mismatch', sound({ authorization: void0 })],
  ['a settlement of an answer that failed', 'lost', sound({ calls: [failed] })],
  ['a settlement without any answer', 'lost', sound({ calls: [] })],
  [
    'a paid buyer that was refused',
    'lost',
    sound({
      purchase: buyer({ end: 'refused', received: [] }),
      payment: payment({ delivery: 'none', delivered_at: null }),
    }),
  ],
  [
    'a paid stream of which a part never arrived',
    'lost',
    sound({ purchase: buyer({ end: 'refused', received: [], byUse: byStream({ bytes: 79 }) }) }),
  ],
  [
    'an answer that was delivered long after its buyer left',
    'lost',
    sound({
      purchase: buyer({
        end: 'refused',
        received: [],
        said: [{ at: 100, status: 0, code: 'left', detail: '' }],
      }),
    }),
  ],
  ['an answer without a settlement', 'unpaid', unsettled({ purchase: buyer(), killedAt: [1_100] })],
  [
    'a failed answer that is not counted',
    'unpaid',
    unsettled({ calls: [failed], authorization: { ...void0, failed_at: null } }),
  ],
  ['an answer that was made and not charged', 'unpaid', unsettled()],
  [
    'an answer before its settlement',
    'unpaid',
    sound({ purchase: buyer({ received: [{ paymentId: id, call: 1, at: 1_310 }] }) }),
  ],
  ['work without an authorization', 'unpaid', unsettled({ authorization: undefined })],
  ['two answers of one authorization', 'double', sound({ calls: [call(), call(), call()] })],
  ['work after the answer', 'double', sound({ calls: [call(), call({ at: 1_400 })] })],
  [
    'two authorizations of one request',
    'double',
    sound({ calls: [call(), call({ paymentId: 'pay_2' })] }),
  ],
  [
    'an open authorization',
    'stuck',
    unsettled({ authorization: authorization({ state: 'metered' }) }),
  ],
  ['a buyer that still asks', 'stuck', sound({ purchase: buyer({ end: 'open', received: [] }) })],
  [
    'a charge that was given up',
    'refused',
    unsettled({ authorization: authorization({ state: 'failed' }), killedAt: [1_100] }),
  ],
  [
    'a valid credential that was refused',
    'refused',
    unsettled({ authorization: undefined, calls: [] }),
  ],
]

test('what a payer paid is taken off what it had for nothing', () => {
  const rows = ['a', 'b', 'c'].map((each, index) => ({
    ...void0,
    id: `pay_${each}`,
    payer: index === 2 ? '0x2' : '0x1',
    ceiling_atomic: '100',
  }))
  const sold = authorization({ id: 'pay_d' })
  expect(lossOf(rows, [])).toBe(300n)
  expect(lossOf([...rows, sold], [payment({ id: 'pay_d', amount_atomic: '150' })])).toBe(150n)
  expect(lossOf([...rows, sold], [payment({ id: 'pay_d', amount_atomic: '900' })])).toBe(100n)
})

describe('unsound evidence', () => {
  for (const [name, kind, it] of faults)
    test(`error: ${name} is ${kind}`, () => {
      const { findings, end } = judgeByUse(it)
      expect(findings.map((finding) => finding.kind)).toContain(kind)
      expect(end).toBeUndefined()
    })
})
