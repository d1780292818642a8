import { expect, test } from 'bun:test'
import type { Order } from '../../db/Order'
import { createDriver, createOrderWaits } from '../../src/stock/desk'
import { orderOf } from '../harness/desk-orders'
import { createRandom } from '../soak/random'

// A ledger that answers late: no change of an order may be lost between a read and its answer.

const made = orderOf(createRandom('late'))
const base: Order = { ...made, paymentId: 'p1', settlementTx: `0x${'a'.repeat(64)}` }
const { id } = base
const forMinutes = 10 * 60_000

/**
 * Reads of one order. Each returns the state at its start, and is answered when the test calls
 * `answer`.
 */
function createReads() {
  const held: (() => void)[] = []
  const reads = {
    state: 'settling' as Order['state'],
    isHeld: true,
    find(): Promise<Order | undefined> {
      const order = { ...base, state: reads.state }
      if (!reads.isHeld) return Promise.resolve(order)
      return new Promise((resolve) => held.push(() => resolve(order)))
    },
    asked: () => held.length,
    /** Gives the answer of the n-th read. */
    answer: (index: number) => held[index]?.(),
  }
  return reads
}

const turn = () => new Promise((resolve) => setImmediate(resolve))

test('a change during the read of an order wakes the request that waits for it', async () => {
  const reads = createReads()
  const waits = createOrderWaits(reads.find)
  const waiting = waits.wait(id, ({ state }) => state === 'delivered', forMinutes)
  expect(reads.asked()).toBe(1)
  reads.state = 'delivered'
  waits.notify(id)
  expect(reads.asked()).toBe(2)
  // The older answer ends no wait.
  reads.answer(0)
  await turn()
  reads.answer(1)
  expect((await waiting).state).toBe('delivered')
})

test('a change while an order is read for its step causes another step', async () => {
  const reads = createReads()
  const seen: Order['state'][] = []
  const driver = createDriver({
    find: reads.find,
    async step({ state }) {
      seen.push(state)
      return 'wait'
    },
    isOurs: () => true,
    toDrive: async () => [],
    laterMs: forMinutes,
    sweepMs: forMinutes,
    log: () => undefined,
  })
  driver.start([id])
  expect(reads.asked()).toBe(1)
  reads.state = 'settled'
  driver.drive(id)
  expect(reads.asked()).toBe(1)
  reads.isHeld = false
  reads.answer(0)
  await turn()
  expect(seen).toEqual(['settling', 'settled'])
  await driver.stop()
})

test('error: a look that fails at once does not end the later ones', async () => {
  const looked = Promise.withResolvers<void>()
  let looks = 0
  const driver = createDriver({
    find: async () => undefined,
    step: async () => 'wait',
    isOurs: () => true,
    toDrive() {
      if (++looks > 1) looked.resolve()
      throw new Error('no ledger')
    },
    laterMs: forMinutes,
    sweepMs: 1,
    log: () => undefined,
  })
  driver.start([])
  await looked.promise
  expect(looks).toBeGreaterThan(1)
  await driver.stop()
})

test('a stop waits for the look that is under way, and nothing is driven after it', async () => {
  const look = Promise.withResolvers<readonly string[]>()
  let reads = 0
  const driver = createDriver({
    async find() {
      reads++
      return base
    },
    step: async () => 'wait',
    isOurs: () => true,
    toDrive: () => look.promise,
    laterMs: forMinutes,
    sweepMs: forMinutes,
    log: () => undefined,
  })
  driver.start([])
  let hasStopped = false
  const stopped = driver.stop().then(() => {
    hasStopped = true
  })
  await turn()
  expect(hasStopped).toBe(false)
  look.resolve([base.id])
  await stopped
  // Work that a start found is requested after the stop.
  driver.start([id])
  driver.drive(id)
  await turn()
  expect(reads).toBe(0)
})
