import { afterEach, beforeEach, expect, test } from 'bun:test'
import type { Address } from 'viem'
import type { NewGrant } from '../../db/GrantLedger'
import type { Ledger } from '../../db/Ledger'
import type { JobRow, TransactionRow } from '../../db/schema'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, openInMemory } from '../../db/sqlite/open'
import { account } from '../../src/demo/accounts'
import { outcomeOf } from '../harness/outcome'

/** Grants are written with the transfer that gives them, or nothing is. */

const network = 'eip155:4663'
const day = 86_400_000
const at = 20_000 * day + 5
let db: Db
let ledger: Ledger
beforeEach(() => {
  db = openInMemory({ now: () => at })
  ledger = createLedger(db)
})
afterEach(() => db.close())

let nonce = 0

/** Writes a transfer of 10 wei that may cost 5 more, within a budget of 4 grants and 100 wei. */
function launch(address: Address, changes: Partial<NewGrant['budget']> & { isSigned?: boolean }) {
  const { isSigned = false, ...budget } = changes
  const hash = `0x${(++nonce).toString(16).padStart(64, '0')}` as const
  const common = {
    network,
    relayer: account(0).address,
    nonce,
    to: address,
    createdAt: at,
  } as const
  const transaction: TransactionRow = {
    ...common,
    hash,
    kind: 'grant',
    product: 'sponsor',
    raw: '0x02',
    gasLimit: 1n,
    maxFeeWei: 1n,
    maxTipWei: 1n,
    state: 'sent',
    firstSentAt: at,
    blockNumber: null,
  }
  const job: JobRow = {
    ...common,
    id: `grant:${nonce}`,
    kind: 'grant',
    product: 'sponsor',
    valueWei: 10n,
    state: 'broadcast',
    transactionHash: hash,
    blockNumber: null,
    receipt: null,
    endedAt: null,
  }
  const grant: NewGrant = {
    isTopUp: false,
    row: {
      ...{ network, address, token: account(3).address, kind: 'grant', approveHash: null },
      ...{ amountWei: 10n, feeWei: 5n, createdAt: at },
    },
    budget: { from: at - 5, grants: 4, wei: 100n, ...budget },
    isSigned,
  }
  return ledger.settling.launchJob({ transaction, job, rider: { kind: 'grant', grant } })
}

const counts = () =>
  ['grants', 'jobs', 'transactions'].map(
    (table) => db.sqlite.query<{ n: number }, []>(`SELECT count(*) AS n FROM ${table}`).get()?.n,
  )
const addresses = [4, 5, 6, 7, 8].map((index) => account(index).address) as [
  Address,
  Address,
  Address,
  Address,
  Address,
]
const tally = (from = at - 5) => ledger.grants.tallySince(network, from)

test('error: a second grant of an address is refused, and neither its bytes nor its cost is kept', async () => {
  expect(await tally()).toMatchObject({ grants: 0, wei: 0n })
  expect(await launch(addresses[0], {})).toBeUndefined()
  expect(await launch(addresses[0], {})).toBe('grant-exists')
  expect(counts()).toEqual([1, 1, 1])
  expect(await tally()).toMatchObject({ grants: 1, wei: 15n })
})

test('error: the commit checks the budget of the day: half is for any address, half for signers', async () => {
  const [first, second, third, fourth, fifth] = addresses
  const ends = await Promise.all([
    launch(first, {}),
    launch(second, {}),
    launch(third, {}),
    launch(third, { isSigned: true }),
    launch(fourth, { isSigned: true }),
    launch(fifth, { isSigned: true }),
  ])
  expect(ends).toEqual([
    undefined,
    undefined,
    'grants-signed-only',
    undefined,
    undefined,
    'grants-spent',
  ])
  expect(counts()).toEqual([4, 4, 4])
  expect(await tally()).toMatchObject({ grants: 4, wei: 60n })
})

test('error: a transfer that would pass the wei of the day is refused', async () => {
  expect(await launch(addresses[0], { wei: 14n })).toBe('grants-spent')
  expect(await launch(addresses[0], { wei: 15n })).toBeUndefined()
})

test('the sums in memory are those of the rows, after faults and when the gas is known', async () => {
  expect(await tally()).toMatchObject({ grants: 0 })
  expect(await launch(addresses[0], {})).toBeUndefined()
  db.sqlite.run(
    "CREATE TEMP TRIGGER full BEFORE INSERT ON grants BEGIN SELECT RAISE(FAIL, 'no'); END",
  )
  expect(await outcomeOf(launch(addresses[1], {}))).toThrow('no')
  db.sqlite.run('DROP TRIGGER full')
  expect(await tally()).toMatchObject({ grants: 1, wei: 15n })
  await ledger.grants.setFee({ network, address: addresses[0], isTopUp: false }, 2n)
  expect(await tally()).toMatchObject({ grants: 1, wei: 12n })
  expect(await createLedger(db).grants.tallySince(network, at - 5)).toMatchObject({ wei: 12n })
})

test('a request of the day before counts for the day on which it was made', async () => {
  expect(await tally(at - 5 + day)).toMatchObject({ grants: 0 })
  expect(await launch(addresses[0], {})).toBeUndefined()
  expect(await tally(at - 5 + day)).toMatchObject({ grants: 0 })
  expect(await tally()).toMatchObject({ grants: 1 })
})
