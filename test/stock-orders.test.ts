import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { type Db, open } from '../db/open'
import { orderStates } from '../db/orders'
import { payments } from '../db/schema'
import { write } from '../db/write'
import type { StockToken } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import * as Instrument from '../src/stock/Instrument'
import type { Order } from '../src/stock/Order'
import * as Orders from '../src/stock/Order'
import { createStore, type Store } from '../src/stock/store'
import { orderOf, paymentRow, stock } from './harness/deskorders'
import { temporary } from './harness/settlement'
import { runModel } from './soak/modelrun'
import { createRandom } from './soak/random'

const directory = temporary()
let db: Db
let store: Store
beforeAll(() => {
  db = open({ dataDir: directory.path, now: () => 1 })
  store = createStore(db)
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
    db.orm.insert(payments).values(paymentRow(full)).run()
    store.insert(full)
  })
  return full
}

const settledAt = 2
const shapes: Readonly<Record<Orders.State, Partial<Order>>> = {
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
const shaped = (state: Orders.State) => insert({ ...shapes[state], state })

describe('the table of states', () => {
  test('behavior: the database accepts the states of the code, and a row of each', () => {
    expect([...orderStates]).toEqual([...Orders.states])
    for (const state of Orders.states) expect(store.find(shaped(state).id)?.state).toBe(state)
  })

  test('behavior: the database refuses exactly the transitions that the code does not have', () => {
    for (const from of Orders.states) {
      for (const to of Orders.states) {
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
        const isKnown = Orders.transitions[from].includes(to)
        // This swap succeeded: the transitions from held depend on the row.
        const isAllowed = isKnown && !(from === 'held' && (to === 'refunding' || to === 'settled'))
        if (isAllowed) expect(change, `${from} to ${to}`).not.toThrow()
        else expect(change, `${from} to ${to}`).toThrow()
        expect(store.find(id)?.state).toBe(isAllowed ? to : from)
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
      const state = Orders.states.find((each) => name.startsWith(each)) ?? 'settling'
      expect(() => insert({ state, ...shape })).toThrow()
    })
  }

  test('error: two orders for one payment are refused', () => {
    const { paymentId } = shaped('settled')
    const other = { ...orderOf(random), paymentId, settlementTx: hash('a') }
    expect(() => write(db, () => store.insert(other))).toThrow()
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

  test('behavior: the refunds of a payer are counted since a time', () => {
    const payer = account(9).address
    const at = (now: number) => Orders.newId(now, crypto.getRandomValues(new Uint8Array(10)))
    for (const now of [1_000, 2_000, 3_000]) {
      insert({ ...shapes.refunded, state: 'refunded', id: at(now), payer })
    }
    insert({ ...shapes.delivered, state: 'delivered', id: at(3_000), payer })
    const since = [0, 2_000, 2_001, 9_000].map((now) =>
      store.countRefunds(payer, Orders.idSince(now)),
    )
    expect(since).toEqual([3, 2, 1, 0])
  })

  test('behavior: a swap that a reorganisation includes again is followed, also after a refund that failed', () => {
    const { id } = insert({ ...shapes.refunding, state: 'refunding', swapTx: hash('b') })
    expect(store.attemptRefund(id, 0, hash('c'), 3)?.refundAttempts).toBe(1)
    expect(store.reswap(id, undefined, 4)).toBeUndefined()
    expect(store.reswap(id, hash('d'), 4)).toBeUndefined()
    expect(store.abandonRefund(id, 1, 5)?.refundTx).toBeUndefined()
    expect(store.reswap(id, hash('c'), 6)).toBeUndefined()
    expect(store.reswap(id, undefined, 6)?.state).toBe('swapping')
    expect(store.refund(id, 'swap-failed', 7)?.refundAttempts).toBe(1)
    expect(store.resumeAttempt(id, 0, hash('c'), 8)).toBeUndefined()
    expect(store.resumeAttempt(id, 1, hash('c'), 8)?.refundTx).toBe(hash('c'))
    expect(store.resumeAttempt(id, 1, hash('d'), 8)).toBeUndefined()
  })

  test('error: of two concurrent changes of one order one fails', () => {
    const { id } = shaped('settled')
    expect(store.swap(id, hash('d'), 3)?.state).toBe('swapping')
    expect(store.refund(id, 'no-quote', 3)?.state).toBe('refunding')
    expect(store.swap(id, hash('e'), 3)).toBeUndefined()
    expect(
      store.deliver(id, { hash: hash('d'), amountAtomic: 1n, returnedAtomic: 0n }, 3),
    ).toBeUndefined()
    expect(store.attemptRefund(id, 0, hash('e'), 3)?.refundAttempts).toBe(1)
    expect(store.attemptRefund(id, 0, hash('f'), 3)).toBeUndefined()
    expect(store.refunded(id, hash('e'), 3)?.state).toBe('refunded')
    expect(store.hold(id, 'refund-failed', 3)).toBeUndefined()
  })
})

describe('the terms of an order', () => {
  test("behavior: the minimum is the quote less the slippage, or the buyer's minimum", () => {
    expect(Instrument.floorOf(token, 10_000n)).toBe(9_900n)
    expect(Instrument.floorOf(token, 10_000n, 9_950n)).toBe(9_950n)
    expect(Instrument.floorOf(token, 10_000n, 1n)).toBe(9_900n)
    expect(Instrument.floorOf(token, 0n)).toBe(1n)
  })

  test('behavior: a fee is added and rounded up; a fee of zero adds nothing', () => {
    expect(Instrument.totalOf({ feeBps: 0 }, 25_000_000n)).toBe(25_000_000n)
    expect(Instrument.totalOf({ feeBps: 50 }, 25_000_001n)).toBe(25_125_002n)
  })

  test('behavior: ids grow with time and contain no path', () => {
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
    test(`behavior: with random faults${what}, each order ends delivered or refunded, once`, async () => {
      const result = await runModel({ seed: `small ${reorganises}`, orders: 80, reorganises })
      expect(result.faults).toEqual([])
      expect(result.ends.delivered).toBeGreaterThan(5)
      expect(result.ends.refunded).toBeGreaterThan(5)
      expect(result.changed).toBeGreaterThan(0)
      expect(result.kills).toBeGreaterThan(2)
    })
  }
})
