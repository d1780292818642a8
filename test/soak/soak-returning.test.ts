import { expect, test } from 'bun:test'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import type { Use } from './returning'
import { auditReturning, type Evidence } from './returning-audit'
import type { EntitlementRow, UseRow } from './rows'
import type { Wallet } from './setup'

/** The audit of buyers who come back, in soak:crash, soak:faults and soak:cluster. */

const wallet: Wallet = {
  index: 0,
  role: 'trial',
  account: privateKeyToAccount(account(1).privateKey),
}
const route = 'trial'
const id = `trial|club|/trial|${wallet.account.address.toLowerCase()}`
const answered = { kind: 'answered', entitlement: 'kind=trial, remaining=1' } as const
const use = (nonce: string, result: Use['result'], sentAt = 1_000): Use => ({
  ...{ serial: `r${nonce}`, wallet, route, sale: undefined, nonce, sentAt },
  ...{ endedAt: sentAt + 100, result },
})
const row = (nonce: string, state = 'delivered'): UseRow => ({
  ...{ id: nonce, entitlement_id: id, day_id: null, wallet: wallet.account.address },
  ...{ state, created_at: 1_000 },
})
const counter = (uses: number, attempts = uses): EntitlementRow => ({
  ...{ id, kind: 'trial', uses, uses_max: 3, attempts },
})
const denied = (reason: string) =>
  ({ kind: 'said', at: 0, status: 402, code: 'not-entitled', reason }) as const

/** Kinds of the findings. */
async function kindsOf(
  uses: readonly Use[],
  entitled: Partial<Evidence['entitled']>,
  changes: Partial<Evidence> = {},
): Promise<string[]> {
  const stop = async () => undefined
  const setup = {
    sites: [],
    payers: [],
    returning: [],
    fresh: [],
    channels: [],
    payee: '0x',
    stop,
  } as const
  const found = await auditReturning({
    ...{ setup, sales: [], uses, calls: [], payments: [], isSteady: true },
    ...{ isDisturbed: () => false, isOver: () => false },
    entitled: { entitlements: [], uses: [], refunds: [], ...entitled },
    ...changes,
  })
  return found.map(({ kind }) => kind)
}

const two = [use('a', answered), use('b', answered)]
const books = { entitlements: [counter(2)], uses: [row('a'), row('b')] }

test('uses that were answered and counted once are in order', async () => {
  expect(await kindsOf(two, books)).toEqual([])
})

test('error: an answer whose use was given back is free, unless there was a kill', async () => {
  const back = { entitlements: [counter(1, 2)], uses: [row('a'), row('b', 'failed')] }
  expect(await kindsOf(two, back)).toEqual(['unpaid'])
  expect(await kindsOf(two, back, { isDisturbed: () => true })).toEqual([])
  expect(await kindsOf(two, { ...back, uses: [row('a')] })).toEqual(['unpaid'])
})

test('error: counters that differ from the uses, and uses that have not ended', async () => {
  expect(await kindsOf(two, { ...books, entitlements: [counter(3)] })).toEqual(['mismatch'])
  expect(await kindsOf(two, { ...books, entitlements: [counter(2, 1)] })).toEqual(['mismatch'])
  expect(await kindsOf(two, { ...books, entitlements: [] })).toEqual(['mismatch', 'mismatch'])
  const open = { entitlements: [counter(2, 3)], uses: [...books.uses, row('c', 'running')] }
  expect(await kindsOf(two, open)).toEqual(['stuck'])
})

test('error: a nonce that was answered twice', async () => {
  expect(await kindsOf([...two, use('a', answered)], books)).toEqual(['double'])
})

test('error: a refusal while there was room, and a refused use that was counted', async () => {
  const late = use('c', denied('entitlement_spent'), 2_000)
  expect(await kindsOf([...two, late], books)).toEqual(['refused'])
  const third = use('d', answered)
  const all = { entitlements: [counter(3)], uses: [...books.uses, row('d')] }
  expect(await kindsOf([...two, third, late], all)).toEqual([])
  const counted = { entitlements: [counter(3)], uses: [...books.uses, row('c')] }
  expect(await kindsOf([...two, late], counted)).toEqual(['lost'])
  const poor = use('e', denied('trial_balance_too_low'), 2_000)
  expect(await kindsOf([poor], {})).toEqual(['refused'])
  expect(await kindsOf([poor], {}, { isSteady: false })).toEqual([])
})

test('error: the upstream works more often than there were attempts', async () => {
  const call = {
    serial: 'ra',
    paymentId: 'a',
    at: 0,
    endedAt: 0,
    gateway: 0,
    end: 'complete',
  } as const
  expect(await kindsOf(two, books, { calls: [call] })).toEqual([])
  expect(await kindsOf(two, books, { calls: [call, call] })).toEqual(['unpaid'])
})

test('error: a refund that is not on the chain', async () => {
  const refund = { payment_id: 'pay_1', amount_atomic: '5000', reason: 'operator', created_at: 0 }
  for (const paid_hash of [null, `0x${'1'.repeat(64)}`]) {
    const refunds = [{ ...refund, paid_hash, job: null }]
    expect(await kindsOf([], { refunds })).toEqual(['stuck'])
  }
})
