import { afterEach, beforeEach, expect, test } from 'bun:test'
import type { Authorization } from '../db/Authorization'
import { createGas } from '../db/sqlite/gas'
import { createLedger } from '../db/sqlite/ledger'
import { type Db, openInMemory } from '../db/sqlite/open'
import { write } from '../db/sqlite/write'
import { account } from '../src/demo/accounts'

/** What the ledger of one process keeps in memory is what the database has. */

const network = 'eip155:8453'
const at = 20_000 * 86_400_000 + 5
let db: Db
beforeEach(() => {
  db = openInMemory({ now: () => at })
})
afterEach(() => db.close())

test('behavior: gas of changes that were rolled back does not count', () => {
  const gas = createGas(db)
  const spent = () => gas.gasSpentOn(network, 'gateway', at)
  write(db, () => void gas.addGas(network, 'gateway', at, 7n))
  expect(spent()).toBe(7n)
  const failing = () =>
    write(db, () => {
      gas.addGas(network, 'gateway', at, 100n)
      throw new Error('of the test')
    })
  expect(failing).toThrow('of the test')
  expect(spent()).toBe(7n)
  // A savepoint in a change that is committed.
  write(db, () => {
    gas.addGas(network, 'gateway', at, 1n)
    expect(failing).toThrow('of the test')
  })
  expect(spent()).toBe(8n)
  expect(gas.gasSpentOn(network, 'gateway', at + 86_400_000)).toBe(0n)
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

test('behavior: a failed settlement is found after the first one, and after a restart', async () => {
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
