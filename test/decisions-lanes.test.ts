import { describe, expect, test } from 'bun:test'
import { createLedger } from '../db/sqlite/ledger'
import type { Settlement } from '../src/settlement/settlement'
import { relayerKeys } from './harness/cluster'
import { createFakeLanes } from './harness/fakelanes'
import { type Scripted, scripted } from './harness/scripted'
import { purposeOf, until } from './harness/settlement'

/** Two settlements over one database, each with the lanes that a test gives it. */
async function pair() {
  const lanes = createFakeLanes()
  const own = await scripted({ ledger: (ledger) => ({ ...ledger, lanes: lanes.of('a') }) })
  const other = await own.start({ ledger: { ...createLedger(own.db), lanes: lanes.of('b') } })
  await other.recover()
  return {
    own,
    lanes,
    other,
    async [Symbol.asyncDispose]() {
      await other.stop(0)
      await own[Symbol.asyncDispose]()
    },
  }
}

const payAt = (
  settlement: Settlement,
  { clock }: Scripted,
  transfer: ReturnType<Scripted['sign']>,
) =>
  settlement.settle(transfer, purposeOf(), {
    waitMs: 20_000,
    receivedAt: clock.ms,
    isKeySigned: () => true,
  })

const nodeOf = ({ network }: Scripted) => network.id

describe.concurrent('a process without lanes', () => {
  test('behavior: a process without lanes offers and signs nothing until it has a lane', async () => {
    await using both = await pair()
    const { own, other, lanes } = both
    expect(other.isReady(nodeOf(own))).toBe(false)
    const transfer = own.sign()
    expect((await payAt(other, own, transfer)).kind).toBe('unavailable')
    expect(own.rows()).toEqual([])
    await lanes.give('b')
    expect(other.isReady(nodeOf(own))).toBe(true)
    expect((await payAt(other, own, transfer)).kind).toBe('confirmed')
    expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
  })

  test('behavior: a process without lanes waits for a payment that another process drives, and sends nothing', async () => {
    await using both = await pair()
    const { own, other, lanes } = both
    await lanes.give('a')
    own.node.onSend = () => 'keep'
    const transfer = own.sign()
    await own.begin(transfer)
    const sends = own.node.sends.length
    const waiting = payAt(other, own, transfer)
    own.chain.mine()
    expect((await waiting).kind).toBe('confirmed')
    expect(own.node.sends.length).toBe(sends)
    expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
  })

  test('behavior: the sweeps of a process leave the payments of others alone', async () => {
    await using both = await pair()
    const { own, other, lanes } = both
    await lanes.give('a')
    own.node.onSend = () => 'keep'
    const transfer = own.sign()
    await own.begin(transfer)
    await other.recover()
    expect(await own.stateOf(transfer)).toBe('broadcast')
    expect(own.events.filter(({ event }) => event === 'transaction-recovered')).toEqual([])
    own.chain.mine()
    await own.reaches(transfer, 'confirmed')
  })
})

describe.concurrent('a takeover', () => {
  test('behavior: the transactions of a dead process are driven to their end, at their account nonces', async () => {
    await using both = await pair()
    const { own, other, lanes } = both
    await lanes.give('a')
    own.node.onSend = () => 'lose'
    const lost = own.sign()
    await own.begin(lost)
    await own.crash()
    lanes.free('a')
    own.node.onSend = () => 'include'
    lanes.setNonce(1)
    await lanes.give('b')
    await own.reaches(lost, 'confirmed')
    const next = own.sign({ from: 2 })
    expect((await payAt(other, own, next)).kind).toBe('confirmed')
    expect(own.rows()).toMatchObject([
      { nonce: 0, state: 'mined' },
      { nonce: 1, state: 'mined' },
    ])
    expect(new Set(own.node.sends.map(({ hash }) => hash)).size).toBe(2)
  })

  test('behavior: after a takeover nothing is signed below the account nonce in the database', async () => {
    await using both = await pair()
    const { own, other, lanes } = both
    lanes.setNonce(0)
    await lanes.give('a')
    own.node.onSend = () => 'keep'
    const first = own.sign()
    await own.begin(first)
    await own.crash()
    lanes.free('a')
    // The node has forgotten the transaction, and counts none.
    lanes.setNonce(1)
    await lanes.give('b')
    const second = own.sign({ from: 2 })
    const paying = payAt(other, own, second)
    await until(() => own.rows().length === 2)
    expect(own.rows()).toMatchObject([{ nonce: 0 }, { nonce: 1 }])
    own.chain.mine()
    own.node.onSend = () => 'include'
    expect((await paying).kind).toBe('confirmed')
  })

  test('behavior: a lane is given back only when nothing of it is open', async () => {
    await using both = await pair()
    const { own, lanes } = both
    await lanes.give('a')
    own.node.onSend = () => 'keep'
    const transfer = own.sign()
    await own.begin(transfer)
    // The duties of the network can be given at any time; the account cannot.
    expect(lanes.release('a')).toEqual([true, false])
    own.chain.mine()
    await own.reaches(transfer, 'confirmed')
    await until(() => lanes.release('a').every(Boolean))
    expect(own.settlement.isReady(nodeOf(own))).toBe(false)
  })
})

test('behavior: a relayer that another gateway needs takes no new payment, and is given when it is idle', async () => {
  const lanes = createFakeLanes()
  await using own = await scripted({
    ledger: (ledger) => ({ ...ledger, lanes: lanes.of('a') }),
    settlement: { relayerKeys: [...relayerKeys] },
  })
  await lanes.give('a')
  own.node.onSend = () => 'keep'
  const transfers = [own.sign(), own.sign({ from: 2 }), own.sign({ from: 3 })]
  const [first, second, third] = transfers
  if (!first || !second || !third) throw new Error('three are signed')
  await own.begin(first)
  await own.begin(second)
  const [leaving, staying] = own.node.sends.map(({ from }) => from)
  expect(leaving).not.toBe(staying)
  const asked = () => lanes.release('a').filter((isGiven) => isGiven).length
  // The keeper alone: both accounts have a payment.
  expect(asked()).toBe(1)
  await own.begin(third)
  expect(own.node.sends[2]?.from).toBe(staying)
  own.chain.mine()
  for (const each of transfers) await own.reaches(each, 'confirmed')
  await until(() => asked() > 1)
})
