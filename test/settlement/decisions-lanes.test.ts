import { describe, expect, test } from 'bun:test'
import type { Lane } from '../../db/LaneLedger'
import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import * as Crypto from '../../src/protocol/Crypto'
import type { Settlement } from '../../src/settlement/settlement'
import { relayerKeys } from '../harness/cluster'
import { createFakeLanes } from '../harness/fake-lanes'
import { type Scripted, scripted } from '../harness/scripted'
import { purposeOf, until } from '../harness/settlement'

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
  settlement.settle(
    { transfer, purpose: purposeOf(), receivedAt: clock.ms, isKeySigned: () => true },
    20_000,
  )

const nodeOf = ({ network }: Scripted) => network.id

describe.concurrent('a process without lanes', () => {
  test('a process without lanes offers and signs nothing until it has a lane', async () => {
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

  test('a process without lanes waits for a payment that another process drives, and sends nothing', async () => {
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

  test('the sweeps of a process leave the payments of others alone', async () => {
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
  test('the transactions of a dead process are driven to their end, at their account nonces', async () => {
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

  test('after a takeover nothing is signed below the account nonce in the database', async () => {
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

  test('a lane is given back only when nothing of it is open', async () => {
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

test('a relayer that another gateway needs takes no new payment, and is given when it is idle', async () => {
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

/** The scripted chain has no `upto`, so a payment names its account only until it is written. */
const unnamed = (ledger: Ledger): Ledger => ({
  ...ledger,
  settling: {
    ...ledger.settling,
    launch: (...inputs) =>
      ledger.settling.launch(
        ...inputs.map(({ fresh, ...input }) => ({
          ...input,
          fresh: fresh.map(({ row, ...each }) => ({
            ...each,
            row: { ...row, ceilingAtomic: null, facilitator: null },
          })),
        })),
      ),
  },
})

describe.concurrent('an account that another gateway needs, and payments that name it', () => {
  const [leaving, staying] = relayerKeys.map(Crypto.addressOf)
  if (!leaving || !staying) throw new Error('two relayers')
  const isLeaving = ({ relayer }: Lane) => relayer === leaving
  /** It names the account as a signature of `upto` does. */
  const named = (own: Scripted, from: number, facilitator = leaving) => ({
    ...own.sign({ from }),
    upto: { facilitator, ceilingAtomic: 5_000n },
  })

  /** A gateway whose first account has a payment that names it, and is needed. */
  async function start() {
    const lanes = createFakeLanes()
    const own = await scripted({
      ledger: (ledger) => ({ ...unnamed(ledger), lanes: lanes.of('a') }),
      settlement: { relayerKeys: [...relayerKeys] },
    })
    await lanes.give('a')
    // Without an account it looked for one soon. The next look comes after the test.
    await until(() => own.node.calls.filter(({ method }) => method === 'eth_chainId').length > 1)
    own.node.onSend = () => 'keep'
    const first = named(own, 1)
    await own.begin(first)
    expect(lanes.release('a', isLeaving)).toEqual([false])
    return { own, lanes, first, [Symbol.asyncDispose]: own[Symbol.asyncDispose] }
  }

  test('attack: a steady load of payments that name it does not keep it from being given', async () => {
    await using started = await start()
    const { own, lanes, first } = started
    const second = named(own, 2)
    const waiting = own.pay(second)
    // It came later, and is sent.
    await own.begin(named(own, 3, staying))
    expect(own.node.sends.map(({ from }) => from)).toEqual([leaving, staying])
    own.chain.mine()
    await own.reaches(first, 'confirmed')
    await until(() => lanes.release('a', isLeaving).every(Boolean))
    expect((await waiting).kind).toBe('unavailable')
    expect(await own.settlement.find(second)).toBeUndefined()
  })

  test('error: a payment that waits for others of its payer is sent when they have ended', async () => {
    const lanes = createFakeLanes()
    await using own = await scripted({
      ledger: (ledger) => ({ ...unnamed(ledger), lanes: lanes.of('a') }),
      settlement: { relayerKeys: [...relayerKeys] },
    })
    await lanes.give('a')
    await until(() => own.node.calls.filter(({ method }) => method === 'eth_chainId').length > 1)
    own.node.onSend = () => 'keep'
    // A payer may have 16 open, and each account has room for as many.
    const pay = (_: unknown, index: number) =>
      own.pay(named(own, 1, index % 2 === 0 ? leaving : staying))
    const open = Array.from({ length: 16 }, pay)
    await until(() => own.node.sends.length === 16)
    const last = pay(undefined, 0)
    // No other transaction ends after that one.
    own.chain.mine(own.node.sends.filter(({ nonce, from }) => nonce === 0 && from === leaving))
    await until(() => own.node.sends.length === 17)
    own.chain.mine()
    const ends = await Promise.all([...open, last])
    expect(ends.every(({ kind }) => kind === 'confirmed')).toBe(true)
  })

  test('payments that waited for an account are sent when it is kept', async () => {
    await using started = await start()
    const { own, lanes } = started
    const waiting = own.pay(named(own, 2))
    await own.begin(named(own, 3, staying))
    lanes.keep('a', own.network.id)
    await until(() => own.node.sends.length === 3)
    own.chain.mine()
    expect((await waiting).kind).toBe('confirmed')
  })
})
