import { afterEach, beforeEach, expect, test } from 'bun:test'
import { drizzle } from 'drizzle-orm/bun-sqlite'
import type { Authorization } from '../../db/Authorization'
import { payments } from '../../db/schema'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, openInMemory } from '../../db/sqlite/open'
import { createGas } from '../../db/sqlite/payments'
import { write } from '../../db/sqlite/write'
import { account } from '../../src/demo/accounts'
import { hashOf, paymentRow } from '../harness/settling-rows'

/** What the ledger of one process keeps in memory is what the database has, and what it writes. */

const network = 'eip155:8453'
const at = 20_000 * 86_400_000 + 5
let db: Db
beforeEach(() => {
  db = openInMemory({ now: () => at })
})
afterEach(() => db.close())

test('gas of changes that were rolled back does not count', () => {
  const gas = createGas(db)
  const spent = () => gas.spentOn(network, 'gateway', at)
  write(db, () => void gas.add(network, 'gateway', at, 7n))
  expect(spent()).toBe(7n)
  const failing = () =>
    write(db, () => {
      gas.add(network, 'gateway', at, 100n)
      throw new Error('of the test')
    })
  expect(failing).toThrow('of the test')
  expect(spent()).toBe(7n)
  // A savepoint in a change that is committed.
  write(db, () => {
    gas.add(network, 'gateway', at, 1n)
    expect(failing).toThrow('of the test')
  })
  expect(spent()).toBe(8n)
  expect(gas.spentOn(network, 'gateway', at + 86_400_000)).toBe(0n)
})

const payer = account(1).address
const authorization: Authorization = {
  id: 'pay_1',
  transfer: {
    method: 'permit2',
    network,
    chainId: 8453,
    asset: account(3).address,
    payer,
    payee: account(2).address,
    amountAtomic: 600n,
    nonce: `0x${'1'.repeat(64)}`,
    validAfter: 0n,
    validBefore: 2_000_000_000n,
    signature: '0x11',
    upto: { ceilingAtomic: 600n, facilitator: account(0).address },
  },
  purpose: {
    ...{ product: 'gateway', protocol: 'x402', merchant: 'm', route: '/r', fingerprint: 'f' },
    ...{ resource: 'http://localhost/m/r', idempotencyKey: undefined, challengeId: undefined },
    ...{ credentialHash: 'c'.repeat(64), bound: false },
  },
  state: 'metered',
  charge: { amountAtomic: 70n, units: { input: 7 } },
  delivered: undefined,
  failedAt: undefined,
  receivedAt: 1,
  knownBlock: 1n,
  createdAt: 1,
}

test('a failed settlement is found after the first one, and after a restart', async () => {
  const { authorizations } = createLedger(db)
  expect(await authorizations.hasFailedSince(payer, 0)).toBe(false)
  await authorizations.insert(authorization)
  await authorizations.markFailed(authorization.id, 50)
  expect(await authorizations.hasFailedSince(payer, 49)).toBe(true)
  expect(await authorizations.hasFailedSince(payer, 50)).toBe(false)
  expect(await authorizations.hasFailedSince(account(4).address, 0)).toBe(false)
  const next = createLedger(db)
  expect(await next.authorizations.hasFailedSince(payer, 49)).toBe(true)
  expect(await next.authorizations.hasFailedSince(payer, 50)).toBe(false)
})

test("a caller's key is free when its ceiling was charged nothing", async () => {
  const { authorizations } = createLedger(db)
  const purpose = { ...authorization.purpose, idempotencyKey: 'key' }
  await authorizations.insert({ ...authorization, purpose, state: 'authorized', charge: undefined })
  const scope = { merchant: 'm', route: '/r', payer, key: 'key' }
  expect(await authorizations.findByIdempotencyKey(scope)).toMatchObject({ id: authorization.id })
  await authorizations.void(authorization.id, { amountAtomic: 0n, units: {} }, undefined)
  expect(await authorizations.findByIdempotencyKey(scope)).toBeUndefined()
})

const failure = {
  delivered: false,
  upstreamStatus: 500,
  redeemTokenHash: 'e'.repeat(64),
  redeemUntil: at + 1,
} as const

/** A payment of this database, whose answer is being delivered. */
async function delivering() {
  const paid = { state: 'confirmed', logIndex: 0, blockNumber: 7n, confirmedAt: 1 } as const
  const row = paymentRow({ network, hash: hashOf(1) }, paid)
  drizzle(db.sqlite).insert(payments).values(row).run()
  let syncs = 0
  const sync: Db['sync'] = () => {
    syncs++
    return db.sync()
  }
  const { deliveries, payments: reads } = createLedger({ ...db, sync })
  await deliveries.begin(row.id)
  return { deliveries, id: row.id, find: () => reads.findById(row.id), syncs: () => syncs }
}

test('error: a failure that comes after the end of a delivery does not open it again', async () => {
  const { deliveries, id, find } = await delivering()
  await deliveries.deliver(id, { upstreamStatus: 200, truncated: false }, at)
  expect(await deliveries.fail(id, failure, at)).toBe(false)
  expect(await find()).toMatchObject({ delivery: 'delivered', redeemUntil: undefined })
})

test('the end of a delivery waits for the disk only when it gives out a redeem token', async () => {
  const { deliveries, id, find, syncs } = await delivering()
  await deliveries.fail(id, failure, at)
  expect([(await find())?.delivery, syncs()]).toEqual(['none', 2])
  await deliveries.begin(id)
  await deliveries.deliver(id, { upstreamStatus: 200, truncated: false }, at)
  expect([(await find())?.delivery, syncs()]).toEqual(['delivered', 3])
})
