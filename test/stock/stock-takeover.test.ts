import { expect, test } from 'bun:test'
import { drizzle } from 'drizzle-orm/bun-sqlite'
import type { Order } from '../../db/Order'
import { orders, payments } from '../../db/schema'
import { open } from '../../db/sqlite/open'
import { write } from '../../db/sqlite/write'
import { createDesk } from '../../src/stock/desk'
import { createModel } from '../harness/desk-model'
import { network, orderOf, paymentRow, stock } from '../harness/desk-orders'
import { temporary } from '../harness/settlement'
import { until } from '../harness/world'
import { createRandom } from '../soak/random'

/** Two gateways with a desk, of which one at a time has the account of the desk. */

/** Desks over a modelled ledger and a modelled chain. `holder` is the process that has the account. */
function twoDesks() {
  const directory = temporary()
  const db = open({ dataDir: directory.path, now: () => 1_000 })
  const random = createRandom('takeover')
  const model = createModel(db, random.fork('model'))
  const held = { by: 'one', takes: 1 }
  const start = (name: string) => {
    const parts = model.connect()
    const read: string[] = []
    const rechecks: number[] = []
    const events: unknown[] = []
    const settlement = {
      ...parts.settlement,
      hasDesk: () => held.by === name,
      deskEpoch: () => (held.by === name ? `${held.takes}` : undefined),
      isShared: true,
    }
    const ledger: typeof parts.orders = {
      ...parts.orders,
      async find(id) {
        const order = await parts.orders.find(id)
        read.push(id)
        return order
      },
      toRecheck() {
        rechecks.push(read.length)
        return parts.orders.toRecheck()
      },
    }
    const log = (event: string, { order }: { order?: unknown } = {}) =>
      void events.push([event, order])
    const options = { stock, network, now: () => 1_000, log, sweepMs: 5, laterMs: 1 }
    const desk = createDesk({ ...parts, settlement, orders: ledger, ...options })
    return { desk, read, rechecks, events }
  }
  return {
    ...{ model, held, random },
    one: start('one'),
    other: start('other'),
    /** Writes an order as a whole. */
    insert(changes: Partial<Order>): string {
      const order = { ...orderOf(random), paymentId: `p${changes.state}` }
      const full: Order = { ...order, settlementTx: `0x${'a'.repeat(64)}`, ...changes }
      write(db, () => {
        drizzle(db.sqlite).insert(payments).values(paymentRow(full)).run()
        drizzle(db.sqlite).insert(orders).values(full).run()
      })
      return full.id
    },
    remove() {
      model.kill()
      db.close()
      directory.remove()
    },
  }
}

test("only the gateway with the desk's account drives an order", async () => {
  const own = twoDesks()
  const { model, one, other, held } = own
  try {
    await Promise.all([one, other].map(({ desk }) => desk.recover()))
    for (const [holder, idle] of [
      [one, other],
      [other, one],
    ] as const) {
      held.by = holder === one ? 'one' : 'other'
      const before = idle.events.length
      const { id, paymentId } = model.buy(orderOf(own.random))
      await model.endPayment(paymentId, true)
      await until('the order has ended', async () => {
        model.mine(false)
        return (await model.orders.find(id))?.state === 'delivered'
      })
      // The state of a swap, then the state of its end.
      expect(holder.events).toContainEqual(['order', id])
      expect(idle.events).toHaveLength(before)
    }
    expect(model.swaps).toHaveLength(2)
  } finally {
    await Promise.all([one, other].map(({ desk }) => desk.stop()))
    own.remove()
  }
})

test('error: who gets the account looks again at orders that the one before had held or ended', async () => {
  const own = twoDesks()
  const { other, held } = own
  held.by = 'none'
  const swapTx = `0x${'b'.repeat(64)}` as const
  const settled = { settledAt: 2, swapTx }
  const ids = [
    own.insert({ ...settled, state: 'held', heldReason: 'delivery-not-found' }),
    own.insert({ ...settled, state: 'delivered', deliveredAtomic: 5n }),
  ]
  try {
    await other.desk.recover()
    const looks = () => ids.map((id) => other.read.filter((each) => each === id).length)
    // At its start it does not have the account.
    await until('it has read them at its start', () => looks().every((count) => count > 0))
    const atStart = looks()
    held.by = 'other'
    await until('it has read both again', () =>
      looks().every((count, index) => count > (atStart[index] ?? 0)),
    )
    const { rechecks } = other
    expect(rechecks).toHaveLength(2)
    // Lost and taken again between two of its searches.
    held.takes++
    await until('it looks at all once more', () => rechecks.length === 3)
  } finally {
    await other.desk.stop()
    own.remove()
  }
})
