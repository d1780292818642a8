import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { drizzle } from 'drizzle-orm/bun-sqlite'
import type { RowsRefusal } from '../../db/Ledger'
import { type Order, type State, states, transitions } from '../../db/Order'
import type { NewOrder, OrderLedger, OrderMove } from '../../db/orders'
import { jobs, orders, payments } from '../../db/schema'
import { type Db, open } from '../../db/sqlite/open'
import { createOrders } from '../../db/sqlite/orders'
import type { Riders } from '../../db/sqlite/settling'
import { createOutbox } from '../../db/sqlite/webhooks'
import { RefusedError, write } from '../../db/sqlite/write'
import type { StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import type { Job } from '../../src/settlement/send/Job'
import * as Instrument from '../../src/stock/Instrument'
import * as Orders from '../../src/stock/Order'
import { type DeskContext, step } from '../../src/stock/steps'
import { deskAddress, network, orderOf, paymentRow, stock } from '../harness/desk-orders'
import { failureOf } from '../harness/outcome'
import { temporary } from '../harness/settlement'
import { runModel } from '../soak/model-run'
import { createRandom } from '../soak/random'

const directory = temporary()
let db: Db
let ledger: OrderLedger
let riders: Riders['orders']
beforeAll(() => {
  db = open({ dataDir: directory.path, now: () => 1 })
  const made = createOrders(db, createOutbox(db))
  ledger = made.ledger
  riders = made.riders
})
afterAll(() => {
  db.close()
  directory.remove()
})

const random = createRandom('orders')
const hash = (digit: string): `0x${string}` => `0x${digit.repeat(64)}`
let serial = 0

const [token] = stock.tokens as [StockToken]

/** An order of a state, written as a whole. */
function insert(changes: Partial<Order> = {}): Order {
  const order = { ...orderOf(random), paymentId: `p${++serial}`, settlementTx: hash('a') }
  const full: Order = { ...order, ...changes }
  write(db, () => {
    drizzle(db.sqlite).insert(payments).values(paymentRow(full)).run()
    drizzle(db.sqlite).insert(orders).values(full).run()
  })
  return full
}

const move = (change: OrderMove) => ledger.move(change)

const settledAt = 2
const shapes: Readonly<Record<State, Partial<Order>>> = {
  settling: {},
  settled: { settledAt },
  swapping: { settledAt, swapTx: hash('b') },
  delivered: { settledAt, swapTx: hash('b'), deliveredAtomic: 5n },
  refunding: { settledAt, refundReason: 'below-floor' },
  refunded: {
    settledAt,
    refundReason: 'below-floor',
    refundTx: hash('c'),
    refundAttempts: 1,
  },
  held: { settledAt, swapTx: hash('b'), heldReason: 'delivery-not-found' },
  failed: {},
}
const shaped = (state: State) => insert({ ...shapes[state], state })

describe('the table of states', () => {
  test('the database accepts a row of each state', async () => {
    for (const state of states) {
      expect((await ledger.find(shaped(state).id))?.state).toBe(state)
    }
  })

  test('the database refuses exactly the transitions that the code does not have', async () => {
    for (const from of states) {
      for (const to of states) {
        if (from === to) continue
        const { id } = shaped(from)
        // Set everything that the target state requires, and nothing that would refuse it.
        const shape = { ...shapes[to] }
        const swapTx =
          shape.swapTx ?? (from === 'swapping' || from === 'delivered' ? hash('b') : null)
        const set = {
          swap_tx: to === 'settling' || to === 'settled' || to === 'failed' ? null : swapTx,
          refund_tx: shape.refundTx ?? null,
          refund_attempts: shape.refundAttempts ?? 0,
          refund_reason: shape.refundReason ?? null,
          held_reason: shape.heldReason ?? null,
          delivered_atomic: shape.deliveredAtomic === undefined ? null : '5',
          returned_atomic: null,
          settled_at: shape.settledAt ?? null,
        }
        const assignments = Object.keys(set).map((name) => `${name} = $${name}`)
        const change = () =>
          db.sqlite
            .query(`UPDATE orders SET state = $to, ${assignments.join(', ')} WHERE id = $id`)
            .run({ ...set, to, id })
        const isKnown = transitions[from].includes(to)
        // This swap succeeded: the transitions from held depend on the row.
        const isAllowed = isKnown && !(from === 'held' && (to === 'refunding' || to === 'settled'))
        if (isAllowed) expect(change, `${from} to ${to}`).not.toThrow()
        else expect(change, `${from} to ${to}`).toThrow()
        expect((await ledger.find(id))?.state).toBe(isAllowed ? to : from)
      }
    }
  })

  const impossible: readonly (readonly [string, Partial<Order>])[] = [
    ['delivered without an amount', { ...shapes.delivered, deliveredAtomic: undefined }],
    ['delivered nothing', { ...shapes.delivered, deliveredAtomic: 0n }],
    ['delivered with a return of zero', { ...shapes.delivered, returnedAtomic: 0n }],
    ['held with a returned part', { ...shapes.held, returnedAtomic: 1n }],
    ['delivered without a swap', { ...shapes.delivered, swapTx: undefined }],
    ['delivered and refunded', { ...shapes.delivered, ...shapes.refunded, state: 'delivered' }],
    ['delivered with a reason to refund', { ...shapes.delivered, refundReason: 'below-floor' }],
    ['refunded without a transaction', { ...shapes.refunded, refundTx: undefined }],
    ['refunded without a reason', { ...shapes.refunded, refundReason: undefined }],
    ['a refund without an attempt', { ...shapes.refunded, refundAttempts: 0 }],
    ['settled with a swap', { ...shapes.settled, swapTx: hash('b') }],
    ['failed with a refund', { ...shapes.failed, refundTx: hash('c'), refundAttempts: 1 }],
    ['held without a reason', { ...shapes.held, heldReason: undefined }],
    ['a retry of one that is not held', { ...shapes.settled, retryAt: 1 }],
    ['settled without a time', { ...shapes.settled, settledAt: undefined }],
    ['no money', { usdgAtomic: 0n }],
    ['no floor', { floorAtomic: 0n }],
    ['an invalid id', { id: 'x' }],
  ]
  for (const [name, shape] of impossible) {
    test(`error: no row can be ${name}`, () => {
      const state = states.find((each) => name.startsWith(each)) ?? 'settling'
      expect(() => insert({ state, ...shape })).toThrow()
    })
  }

  test('error: two orders for one payment are refused', () => {
    const { paymentId } = shaped('settled')
    const other = { ...orderOf(random), paymentId, settlementTx: hash('a') }
    expect(() => drizzle(db.sqlite).insert(orders).values(other).run()).toThrow()
  })

  test('error: the terms of an order never change, and no order is deleted', () => {
    const { id } = shaped('settled')
    const fixed = {
      payer: account(5).address,
      recipient: account(5).address,
      usdg_atomic: '1',
      total_atomic: '1',
      floor_atomic: '1',
      token: account(5).address,
      payment_id: 'p1',
      created_at: 5,
    }
    for (const [name, value] of Object.entries(fixed)) {
      const change = () =>
        db.sqlite.query(`UPDATE orders SET ${name} = ?1 WHERE id = ?2`).run(value, id)
      expect(change, name).toThrow()
    }
    expect(() => db.sqlite.query('DELETE FROM orders WHERE id = ?').run(id)).toThrow()
    const swapped = shaped('swapping')
    const forget = () =>
      db.sqlite.query('UPDATE orders SET swap_tx = NULL WHERE id = ?').run(swapped.id)
    expect(forget).toThrow()
  })

  test('the refunds of a payer are counted since a time', async () => {
    const payer = account(9).address
    const at = (now: number) => Orders.newId(now, crypto.getRandomValues(new Uint8Array(10)))
    for (const now of [1_000, 2_000, 3_000]) {
      insert({ ...shapes.refunded, state: 'refunded', id: at(now), payer })
    }
    insert({ ...shapes.delivered, state: 'delivered', id: at(3_000), payer })
    const since = [0, 2_000, 2_001, 9_000].map((now) =>
      ledger.countRefunds(payer, Orders.idSince(now)),
    )
    expect(await Promise.all(since)).toEqual([3, 2, 1, 0])
  })

  test('a swap that a reorganisation includes again is followed, also after a refund that failed', async () => {
    const { id } = insert({ ...shapes.refunding, state: 'refunding', swapTx: hash('b') })
    const attempt = { kind: 'attempt-refund', id, at: 3, attempts: 0, hash: hash('c') } as const
    const reswap = (refundTx: Order['refundTx'], at: number) =>
      move({ kind: 'reswap', id, at, refundTx })
    const resume = (attempts: number, digit: string) =>
      move({ kind: 'resume-attempt', id, at: 8, attempts, hash: hash(digit) })
    expect((await move(attempt))?.refundAttempts).toBe(1)
    expect(await reswap(undefined, 4)).toBeUndefined()
    expect(await reswap(hash('d'), 4)).toBeUndefined()
    const abandoned = await move({ kind: 'abandon-refund', id, at: 5, attempts: 1 })
    expect(abandoned).toMatchObject({ state: 'refunding', refundTx: undefined })
    expect(await reswap(hash('c'), 6)).toBeUndefined()
    expect((await reswap(undefined, 6))?.state).toBe('swapping')
    const refund = await move({ kind: 'refund', id, at: 7, reason: 'swap-failed' })
    expect(refund?.refundAttempts).toBe(1)
    expect(await resume(0, 'c')).toBeUndefined()
    expect((await resume(1, 'c'))?.refundTx).toBe(hash('c'))
    expect(await resume(1, 'd')).toBeUndefined()
  })

  test('error: of two concurrent changes of one order one fails', async () => {
    const { id } = shaped('settled')
    const swap = (digit: string) => move({ kind: 'swap', id, at: 3, hash: hash(digit) })
    const attempt = (digit: string) =>
      move({ kind: 'attempt-refund', id, at: 3, attempts: 0, hash: hash(digit) })
    expect((await swap('d'))?.state).toBe('swapping')
    expect((await move({ kind: 'refund', id, at: 3, reason: 'no-quote' }))?.state).toBe('refunding')
    expect(await swap('e')).toBeUndefined()
    const amounts = { amountAtomic: 1n, returnedAtomic: 0n }
    expect(await move({ kind: 'deliver', id, at: 3, hash: hash('d'), ...amounts })).toBeUndefined()
    expect((await attempt('e'))?.refundAttempts).toBe(1)
    expect(await attempt('f')).toBeUndefined()
    const refunded = await move({ kind: 'refunded', id, at: 3, hash: hash('e') })
    expect(refunded?.state).toBe('refunded')
    expect(await move({ kind: 'hold', id, at: 3, reason: 'refund-failed' })).toBeUndefined()
  })
})

describe('what is written with a payment or a job', () => {
  /** Why it was refused; undefined: it was written. */
  function refusal(change: () => void): RowsRefusal | undefined {
    try {
      write(db, change)
      return undefined
    } catch (error) {
      if (error instanceof RefusedError) return error.reason
      throw error
    }
  }
  const pay = (id: string) =>
    db.sqlite
      .query(
        "UPDATE payments SET state = 'confirmed', log_index = $log, block_number = 1, confirmed_at = 1 WHERE id = $id",
      )
      .run({ id, log: ++serial })
  const hashOf = (id: string) => Crypto.hex(Crypto.keccak256(id))

  /** The failed or unfinished job of an order. */
  function insertJob(id: string, state: 'broadcast' | 'replaced'): void {
    const sent = { kind: 'swap', product: 'desk', network: network.id, nonce: ++serial } as const
    const accounts = { relayer: deskAddress, to: deskAddress, valueWei: 0n }
    const endedAt = state === 'broadcast' ? null : 1
    const row = { id, ...sent, ...accounts, state, transactionHash: hashOf(id), createdAt: 1 }
    drizzle(db.sqlite)
      .insert(jobs)
      .values({ ...row, endedAt })
      .run()
  }

  test('error: a swap is not written for a payment that is not confirmed', async () => {
    const { id, paymentId } = shaped('settled')
    const ride = { kind: 'swap', id, at: 3 } as const
    const rider = { kind: 'order', ride, confirmed: paymentId } as const
    const swap = () => refusal(() => riders.ride(rider, hash('b')))
    expect(swap()).toBe('payment-not-confirmed')
    expect((await ledger.find(id))?.state).toBe('settled')
    pay(paymentId)
    expect(swap()).toBeUndefined()
    expect(await ledger.find(id)).toMatchObject({ state: 'swapping', swapTx: hash('b') })
    expect(swap()).toBe('order-changed')
  })

  for (const state of ['settled', 'refunding'] as const)
    test(`error: the money of an order that is ${state} stays when its payment is reopened before the write`, async () => {
      const order = shaped(state)
      const refusals: unknown[] = []
      const context = {
        stock,
        now: () => 3,
        unseen: new Map(),
        network,
        market: {
          snapshotOf: async () => ({ sharesAtomic: order.floorAtomic }),
          judge: () => ({ ok: true }),
        },
        settlement: {
          desk: deskAddress,
          // As it was read before.
          findById: async () => ({
            state: 'confirmed',
            transfer: { network: stock.network, payee: deskAddress },
          }),
          observationOf: async () => 'shown',
          async run(_: Job, { rider }: { rider: Parameters<Riders['orders']['ride']>[0] }) {
            refusals.push(refusal(() => riders.ride(rider, hash('b'))))
            return { kind: 'refused', reason: refusals[0] }
          },
        },
      }
      const stepping = step(context as unknown as DeskContext, order)
      expect(await failureOf(stepping)).toBeInstanceOf(Error)
      expect(refusals).toEqual(['payment-not-confirmed'])
      expect((await ledger.find(order.id))?.state).toBe(state)
    })

  test('error: a refund is not written while the swap or an earlier refund may have an effect', async () => {
    const { id, paymentId } = insert({ ...shapes.refunding, state: 'refunding', swapTx: hash('b') })
    pay(paymentId)
    const ride = { kind: 'attempt-refund', id, at: 3, attempts: 0 } as const
    const names = [`swap:${id}`, `refund:${id}`]
    const rider = { kind: 'order', ride, confirmed: paymentId, withoutEffect: names } as const
    const refund = () => refusal(() => riders.ride(rider, hash('c')))
    expect(refund()).toBe('job-may-have-effect')
    insertJob(`swap:${id}`, 'broadcast')
    insertJob(`refund:${id}`, 'replaced')
    expect(refund()).toBe('job-may-have-effect')
    db.sqlite
      .query("UPDATE jobs SET state = 'replaced', ended_at = 1 WHERE id = ?")
      .run(`swap:${id}`)
    expect((await ledger.find(id))?.refundTx).toBeUndefined()
    expect(refund()).toBeUndefined()
    expect(await ledger.find(id)).toMatchObject({ refundTx: hash('c'), refundAttempts: 1 })
  })

  test('error: the quota counts where the order is written, and then no payment is written either', async () => {
    const payer = account(8).address
    const place = (id: string) => {
      const made = orderOf(random, { payer })
      const order: NewOrder = made
      const row = paymentRow({ ...made, paymentId: id, settlementTx: hash('a') })
      const quota = { payer, since: Orders.idSince(0), max: 2 }
      return refusal(() => {
        drizzle(db.sqlite).insert(payments).values(row).run()
        riders.insert({ order, quota }, { id, transaction: hash('a') })
      })
    }
    const ids = ['q1', 'q2', 'q3']
    expect(ids.map(place)).toEqual([undefined, undefined, 'order-quota'])
    expect((await ledger.findByPayment('q2'))?.state).toBe('settling')
    // The orders of all payers have a quota of their own.
    const other = account(9).address
    const share = (max: number) => {
      const quota = { payer: other, since: Orders.idSince(0), max: 99 }
      const all = { since: Orders.idSince(0), max }
      const order = orderOf(random, { payer: other })
      return refusal(() => {
        const row = paymentRow({ ...order, paymentId: 'q4', settlementTx: hash('a') })
        drizzle(db.sqlite).insert(payments).values(row).run()
        riders.insert({ order, quota: { ...quota, all } }, { id: 'q4', transaction: hash('a') })
      })
    }
    expect([share(2), share(1_000_000)]).toEqual(['refund-share', undefined])
    expect(db.sqlite.query("SELECT id FROM payments WHERE id = 'q3'").all()).toEqual([])
  })
})

describe('the terms of an order', () => {
  test("the minimum is the quote less the slippage, or the buyer's minimum", () => {
    expect(Instrument.floorOf(token, 10_000n)).toBe(9_900n)
    expect(Instrument.floorOf(token, 10_000n, 9_950n)).toBe(9_950n)
    expect(Instrument.floorOf(token, 10_000n, 1n)).toBe(9_900n)
    expect(Instrument.floorOf(token, 0n)).toBe(1n)
  })

  test('a fee is added and rounded up; a fee of zero adds nothing', () => {
    expect(Instrument.totalOf({ feeBps: 0 }, 25_000_000n)).toBe(25_000_000n)
    expect(Instrument.totalOf({ feeBps: 50 }, 25_000_001n)).toBe(25_125_002n)
  })

  test('ids grow with time and contain no path', () => {
    const bytes = new Uint8Array(10)
    const ids = [1, 2, 1_000_000, 1_795_000_000_000].map((now) => Orders.newId(now, bytes))
    expect(ids).toEqual(ids.toSorted())
    expect(ids.every(Orders.isId)).toBe(true)
    expect(Orders.isId(`${ids[0]}/..`)).toBe(false)
  })
})

describe('orders on a chain with faults', () => {
  for (const reorganises of [false, true]) {
    const what = reorganises ? ', reorganisations among them' : ''
    test(`with random faults${what}, each order ends delivered or refunded, once`, async () => {
      const result = await runModel({ seed: `small ${reorganises}`, orders: 80, reorganises })
      expect(result.faults).toEqual([])
      expect(result.ends.delivered).toBeGreaterThan(5)
      expect(result.ends.refunded).toBeGreaterThan(5)
      expect(result.changed).toBeGreaterThan(0)
      expect(result.kills).toBeGreaterThan(2)
    })
  }
})
