import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import { type Order, type State, states } from '../../db/Order'
import { type NewOrder, type OrderMove, rules } from '../../db/orders'
import { type JobRow, jobs, orders, payments } from '../../db/schema'
import { account } from '../../src/demo/accounts'
import * as Orders from '../../src/stock/Order'
import { asset, network, orderOf, paymentRow } from '../harness/desk-orders'
import { outcomeOf } from '../harness/outcome'
import { hasPostgres } from '../harness/postgres'
import {
  eachProducts,
  freshProducts,
  newAddress,
  type Products,
  sqliteProducts,
} from '../harness/products'
import { createRandom } from '../soak/random'

/** Orders of the stock desk do the same on SQLite and on PostgreSQL. */

const random = createRandom('products')
const onEach = eachProducts()
const listed = eachProducts()
const hash = (digit: string): `0x${string}` => `0x${digit.repeat(64)}`
let serial = 0
const lower = (address: Address) => address.toLowerCase() as Address

/** An order and its payment, both as rows. */
async function insertOrder(ledger: Products, changes: Partial<Order> = {}): Promise<Order> {
  const bare = { ...orderOf(random), paymentId: `p${++serial}`, settlementTx: hash('a') }
  const order: Order = { ...bare, ...changes }
  await ledger.insert(payments, paymentRow(order))
  await ledger.insert(orders, order)
  return order
}

/** A payment, and the terms of an order that it may pay. */
async function paidTerms(ledger: Products, payer: Address) {
  const order = { ...orderOf(random), payer, paymentId: `p${++serial}`, settlementTx: hash('a') }
  await ledger.insert(payments, paymentRow(order))
  const { id, symbol, token, pool, poolFee, recipient, createdAt } = order
  const { usdgAtomic, totalAtomic, quotedAtomic, floorAtomic } = order
  const amounts = { usdgAtomic, totalAtomic, quotedAtomic, floorAtomic }
  const terms: NewOrder = {
    ...{ id, network: network.id, symbol, token, pool, poolFee, payer, recipient, createdAt },
    ...amounts,
  }
  return { terms, payment: { id: order.paymentId, hash: hash('b') } }
}

function jobOf(id: string, state: JobRow['state'], changes: Partial<JobRow> = {}): JobRow {
  const isIncluded = state === 'confirmed' || state === 'failed'
  return {
    id,
    state,
    kind: 'swap',
    product: 'desk',
    network: network.id,
    relayer: account(0).address,
    nonce: ++serial,
    to: account(0).address,
    valueWei: 0n,
    transactionHash: hash('e'),
    blockNumber: isIncluded ? 5n : null,
    receipt: isIncluded ? '{}' : null,
    createdAt: 1,
    endedAt: state === 'broadcast' ? null : 2,
    ...changes,
  }
}

const settledAt = 2
const refunding = { state: 'refunding', settledAt, refundReason: 'below-floor' } as const
const swapping = { state: 'swapping', settledAt, swapTx: hash('b') } as const

onEach('a new order has its payment, and is found by it and by its id', async (ledger) => {
  const { terms, payment } = await paidTerms(ledger, newAddress())
  const quota = { payer: terms.payer, since: 'ord_', max: 1 }
  expect(await ledger.order({ order: terms, quota }, payment)).toBeUndefined()
  const found = await ledger.orders.find(terms.id)
  expect(found).toMatchObject({
    ...{ ...terms, paymentId: payment.id, settlementTx: payment.hash, state: 'settling' },
    ...{
      refundAttempts: 0,
      updatedAt: terms.createdAt,
      settledAt: undefined,
      retryAt: undefined,
    },
  })
  expect(await ledger.orders.findByPayment(payment.id)).toEqual(found)
  expect(await ledger.orders.find('ord_none')).toBeUndefined()
  expect(await ledger.orders.findByPayment('none')).toBeUndefined()
  expect(ledger.events()).toEqual([])
})

onEach('error: a payment pays one order', async (ledger) => {
  const { terms, payment } = await paidTerms(ledger, newAddress())
  expect(await ledger.order({ order: terms, quota: undefined }, payment)).toBeUndefined()
  const other = { ...terms, id: Orders.newId(2_000, new Uint8Array(10)) }
  expect(await outcomeOf(ledger.order({ order: other, quota: undefined }, payment))).toThrow()
  expect(await ledger.orders.find(other.id)).toBeUndefined()
})

onEach(
  'error: the quota counts open orders, and refunds since an id, of the payer in any letter case',
  async (ledger) => {
    const payer = newAddress()
    const old = await insertOrder(ledger, { ...refunding, payer, id: Orders.newId(1, bytes(1)) })
    await insertOrder(ledger, { ...refunding, payer, id: Orders.newId(9_000_000, bytes(2)) })
    await insertOrder(ledger, { ...swapping, payer: lower(payer) })
    await insertOrder(ledger, { state: 'failed', payer })
    expect(await ledger.orders.countRefunds(lower(payer), old.id)).toBe(1)
    expect(await ledger.orders.countRefunds(payer, 'ord_')).toBe(2)
    expect(await ledger.orders.countUnderWay(payer)).toBe(1)
    const { terms, payment } = await paidTerms(ledger, payer)
    const quota = (max: number) => ({ payer, since: old.id, max })
    expect(await ledger.order({ order: terms, quota: quota(2) }, payment)).toBe('order-quota')
    expect(await ledger.orders.find(terms.id)).toBeUndefined()
    expect(await ledger.order({ order: terms, quota: quota(3) }, payment)).toBeUndefined()
    const next = await paidTerms(ledger, payer)
    expect(await ledger.order({ order: next.terms, quota: quota(3) }, next.payment)).toBe(
      'order-quota',
    )
  },
)

onEach(
  'error: the quota of all payers counts open orders, and refunds since an id, of every payer',
  async (ledger) => {
    const since = Orders.newId(8_000_000_000_000, bytes(0))
    const before = await ledger.orders.countRefundable(since)
    const idAt = (at: number) => Orders.newId(8_000_000_000_000 + at, bytes(1))
    await insertOrder(ledger, { ...refunding, id: idAt(1) })
    await insertOrder(ledger, { ...swapping, id: idAt(2) })
    await insertOrder(ledger, { state: 'failed', id: idAt(3) })
    await insertOrder(ledger, { ...refunding, id: Orders.newId(9, bytes(2)) })
    expect(await ledger.orders.countRefundable(since)).toBe(before + 2)
    const place = async (all: { since: string; max: number } | undefined) => {
      const { terms, payment } = await paidTerms(ledger, newAddress())
      const quota = { payer: terms.payer, since: 'ord_', max: 1, all }
      return ledger.order({ order: terms, quota }, payment)
    }
    expect(await place({ since, max: before + 2 })).toBe('refund-share')
    expect(await place({ since, max: before + 3 })).toBeUndefined()
    expect(await place({ since, max: before + 3 })).toBe('refund-share')
    // An order with the usual minimum is not refused, and counts.
    expect(await place(undefined)).toBeUndefined()
    expect(await ledger.orders.countRefundable(since)).toBe(before + 4)
  },
)

onEach('a swap rides while the payment is confirmed, once, with its event', async (ledger) => {
  const { id, paymentId } = await insertOrder(ledger, { state: 'settled', settledAt })
  const ride = { kind: 'swap', id, at: 9 } as const
  const rider = { kind: 'order', ride, confirmed: paymentId } as const
  expect(await ledger.ride(rider, hash('d'))).toBe('payment-not-confirmed')
  const paid = { ...rider, confirmed: await insertConfirmed(ledger) }
  expect(await ledger.ride({ ...rider, confirmed: 'none' }, hash('d'))).toBe(
    'payment-not-confirmed',
  )
  expect(ledger.events()).toEqual([])
  expect(await ledger.ride(paid, hash('d'))).toBeUndefined()
  const changed = { state: 'swapping', swapTx: hash('d'), updatedAt: 9 } as const
  expect(await ledger.orders.find(id)).toMatchObject(changed)
  expect(await ledger.ride(paid, hash('d'))).toBe('order-changed')
  expect(eventsOf(ledger)).toMatchObject([
    { type: 'order.swapping', data: { order: id, asset, swapTransaction: hash('d') } },
  ])
})

onEach('a refund rides when no earlier job can have an effect', async (ledger) => {
  const { id } = await insertOrder(ledger, refunding)
  const ids = ['failed', 'replaced', 'broadcast', 'confirmed'].map((state) => `${state}:${id}`)
  const [failed = '', replaced = '', broadcast = '', confirmed = ''] = ids
  for (const each of ids) {
    await ledger.insert(jobs, jobOf(each, each.split(':')[0] as JobRow['state']))
  }
  const ride = { kind: 'attempt-refund', id, at: 9, attempts: 0 } as const
  const refused = [[broadcast], [failed, confirmed], ['none'], [replaced, broadcast]]
  for (const withoutEffect of refused) {
    const rider = { kind: 'order', ride, withoutEffect } as const
    expect(await ledger.ride(rider, hash('d'))).toBe('job-may-have-effect')
  }
  const rider = { kind: 'order', ride, withoutEffect: [failed, replaced] } as const
  expect(await ledger.ride({ ...rider, ride: { ...ride, attempts: 1 } }, hash('d'))).toBe(
    'order-changed',
  )
  expect(await ledger.ride(rider, hash('d'))).toBeUndefined()
  const changed = { state: 'refunding', refundTx: hash('d'), refundAttempts: 1 } as const
  expect(await ledger.orders.find(id)).toMatchObject(changed)
  // The state is the same, so there is no event.
  expect(ledger.events()).toEqual([])
})

listed('they have the open ones, the newest ones and those whose end is undone', async (ledger) => {
  const [payer, other] = [newAddress(), newAddress()]
  const of = (at: number, changes: Partial<Order>) =>
    insertOrder(ledger, { payer, id: Orders.newId(at, bytes(at)), ...changes })
  const delivered = { ...swapping, state: 'delivered', deliveredAtomic: 5n } as const
  const refunded = { ...refunding, state: 'refunded', refundTx: hash('c') } as const
  const all = await Promise.all([
    of(5, { state: 'settling' }),
    of(3, { state: 'held', settledAt, heldReason: 'settlement-lost' }),
    of(4, { state: 'settled', settledAt, payer: lower(other) }),
    of(6, delivered),
    of(7, delivered),
    of(8, { ...refunded, refundAttempts: 1 }),
    of(9, { ...refunded, refundAttempts: 2 }),
    of(10, { ...refunded, refundAttempts: 1 }),
    of(11, { state: 'failed' }),
  ])
  const ids = all.map(({ id }) => id)
  const [settling = '', held = '', settled = '', undone = '', done = ''] = ids
  const [swapped = '', again = '', fine = ''] = ids.slice(5)
  await ledger.insert(jobs, jobOf(`swap:${undone}`, 'broadcast'))
  await ledger.insert(jobs, jobOf(`swap:${done}`, 'confirmed'))
  await ledger.insert(jobs, jobOf(`swap:${swapped}`, 'confirmed'))
  await ledger.insert(jobs, jobOf(`refund:${again}:2`, 'failed'))
  await ledger.insert(jobs, jobOf(`refund:${again}`, 'confirmed'))
  await ledger.insert(jobs, jobOf(`refund:${fine}`, 'confirmed'))

  expect((await ledger.orders.open()).map(({ id }) => id)).toEqual([held, settled, settling])
  expect(await ledger.orders.countOpen()).toBe(2)
  expect([...(await ledger.orders.toRecheck())].sort()).toEqual([undone, swapped, again].sort())
  const history = async (query: { limit: number; before?: string; payer?: Address }) =>
    (await ledger.orders.history({ payer: undefined, before: undefined, ...query })).map(
      ({ id }) => id,
    )
  expect(await history({ limit: 9 })).toEqual([fine, again, swapped, done, undone, settled, held])
  expect(await history({ limit: 2, before: swapped })).toEqual([done, undone])
  expect(await history({ limit: 9, payer: other })).toEqual([settled])
  expect(await history({ limit: 1, before: undone, payer: lower(payer) })).toEqual([held])
})

const shapes: readonly Partial<Order>[] = [
  { state: 'settling' },
  { state: 'failed' },
  { state: 'settled', settledAt },
  swapping,
  { ...swapping, state: 'delivered', deliveredAtomic: 5n },
  { ...swapping, state: 'delivered', deliveredAtomic: 5n, returnedAtomic: 1n },
  refunding,
  { ...refunding, swapTx: hash('b') },
  { ...refunding, refundAttempts: 1 },
  { ...refunding, refundAttempts: 1, refundTx: hash('c') },
  { ...refunding, swapTx: hash('b'), refundAttempts: 1, refundTx: hash('c') },
  { ...refunding, state: 'refunded', refundAttempts: 1, refundTx: hash('c') },
  { state: 'held', settledAt, heldReason: 'settlement-disputed' },
  { ...swapping, state: 'held', heldReason: 'delivery-not-found', retryAt: 7 },
  { ...refunding, state: 'held', heldReason: 'refund-failed', refundAttempts: 1, retryAt: 7 },
  {
    ...{ ...refunding, state: 'held', heldReason: 'refund-not-found' },
    ...{ refundAttempts: 1, refundTx: hash('c') },
  },
]

const [c, d] = [hash('c'), hash('d')]
type Moved<M> = M extends OrderMove ? Omit<M, 'id' | 'at'> : never
const moves: readonly Moved<OrderMove>[] = [
  { kind: 'settle', hash: d },
  { kind: 'unsettle' },
  { kind: 'fail' },
  { kind: 'revive' },
  { kind: 'swap', hash: d },
  { kind: 'deliver', hash: d, amountAtomic: 5n, returnedAtomic: 0n },
  { kind: 'deliver', hash: d, amountAtomic: 5n, returnedAtomic: 2n },
  { kind: 'deliver', hash: d, amountAtomic: 0n, returnedAtomic: 0n },
  { kind: 'undeliver' },
  { kind: 'reswap', refundTx: undefined },
  { kind: 'reswap', refundTx: c },
  { kind: 'refund', reason: 'too-late' },
  { kind: 'refunded', hash: d },
  { kind: 'unrefund' },
  { kind: 'attempt-refund', attempts: 0, hash: d },
  { kind: 'attempt-refund', attempts: 1, hash: d },
  { kind: 'abandon-refund', attempts: 0 },
  { kind: 'abandon-refund', attempts: 1 },
  { kind: 'resume-attempt', attempts: 0, hash: d },
  { kind: 'resume-attempt', attempts: 1, hash: d },
  { kind: 'hold', reason: 'refund-failed' },
  { kind: 'resume-settled' },
  { kind: 'resume-swap' },
  { kind: 'resume-refund', refundTx: undefined },
  { kind: 'resume-refund', refundTx: c },
  { kind: 'request-retry' },
  { kind: 'dismiss-retry', retryAt: 7 },
  { kind: 'dismiss-retry', retryAt: 8 },
]

describe.skipIf(!hasPostgres)('moves', () => {
  const ledgers: Products[] = []
  beforeAll(async () => void ledgers.push(sqliteProducts(), await freshProducts()))
  afterAll(() => {
    for (const ledger of ledgers) ledger.close()
  })

  test('the cases have every move and every state', () => {
    const kinds = new Set(Object.keys(rules))
    expect(new Set<string>(moves.map(({ kind }) => kind))).toEqual(kinds)
    expect(new Set(shapes.map(({ state }) => state))).toEqual(new Set<State | undefined>(states))
  })

  /** What a move does to an order; both are the same in all databases. */
  async function outcome(ledger: Products, order: Order, move: Moved<OrderMove>) {
    await ledger.insert(payments, paymentRow(order))
    await ledger.insert(orders, order)
    const moved = await ledger.orders
      .move({ ...move, id: order.id, at: 77 } as OrderMove)
      .catch(() => 'the database refuses it')
    return { moved, stored: await ledger.orders.find(order.id) }
  }

  for (const kind of Object.keys(rules) as OrderMove['kind'][]) {
    test(`${kind} ends equally from all states, with equal events`, async () => {
      const cases = moves
        .filter((move) => move.kind === kind)
        .flatMap((move) => shapes.map((shape) => ({ move, order: newOrder(shape) })))
      const [onSqlite, onPostgres] = await Promise.all(
        ledgers.map(async (ledger) => ({
          ends: await Promise.all(cases.map(({ order, move }) => outcome(ledger, order, move))),
          events: ledger.events().toSorted((one, other) => (one.body < other.body ? -1 : 1)),
        })),
      )
      expect<unknown>(onPostgres).toEqual(onSqlite)
      expect(onSqlite?.ends.some(({ moved }) => typeof moved === 'object')).toBe(true)
    })
  }
})

function newOrder(shape: Partial<Order>): Order {
  const id = Orders.newId(1_000 + ++serial, bytes(1))
  const ids = { id, paymentId: `p${serial}`, settlementTx: hash('a') }
  return { ...orderOf(random), ...ids, ...shape }
}

function bytes(seed: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(10).fill(seed)
}

/** Id of a payment that is confirmed. */
async function insertConfirmed(ledger: Products): Promise<string> {
  const order = { ...orderOf(random), paymentId: `p${++serial}`, settlementTx: hash('f') }
  const confirmed = {
    state: 'confirmed',
    logIndex: serial,
    blockNumber: 5n,
    confirmedAt: 3,
  } as const
  await ledger.insert(payments, { ...paymentRow(order), ...confirmed })
  return order.paymentId
}

function eventsOf(ledger: Products) {
  return ledger.events().map(({ type, body }) => ({ type, data: JSON.parse(body).data }))
}
