import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { hasPostgres } from './postgres'

/**
 * Runs the tests of money, delivery, jobs, orders, grants, keys, redemption and recovery once more, with
 * PostgreSQL in place of SQLite. Tests within these files that are about SQLite itself skip themselves:
 * its transactions and faults, how many payments share one batch, and how few calls a start makes.
 *
 * Files with such names that are not in it:
 * - decisions-lanes, postgres-*: have ledgers of their own;
 * - *-crash, sponsor-ledger, sponsor-topup: kill a process, whose accounts are free ten seconds later;
 *   test/postgres-gateways.test.ts has that takeover;
 * - settlement-heads, -lies, -metrics, -time, -wallets, -fees, -hostile, -late-receipts: the chain
 *   decides there, and the ledger does what it does in the others;
 * - stock-orders, stock-late, ledger-grants, facilitator-payees: are about SQLite's statements;
 *   test/postgres-orders.test.ts and test/postgres-products.test.ts compare both;
 * - storage, storage-faults, upgrade, payment-costs: files, disks and counts of SQLite.
 */
const files = [
  ...['decisions-budgets', 'decisions-ledger', 'decisions-payment'],
  ...['decisions-recovery', 'decisions-sending', 'external-settlement'],
  ...['idempotency', 'late-ledger', 'lost-answers', 'paying', 'pending', 'redeem'],
  ...['settlement', 'settlement-batch', 'settlement-budgets', 'settlement-cancelled'],
  ...['settlement-deliver-on-confirm', 'settlement-desk', 'settlement-faults', 'settlement-jobs'],
  ...['settlement-products', 'settlement-recovery', 'settlement-reorg', 'settlement-shared-code'],
  ...['settlement-signers', 'settlement-waiting', 'stock-edges', 'stock-once', 'upto-ledger'],
]

if (!hasPostgres) {
  process.stderr.write('there is no PostgreSQL: install it, or name its programs by POSTGRES\n')
  process.exit(1)
}
const directory = join(import.meta.dir, '..')
const there = new Set(readdirSync(directory))
const missing = files.filter((name) => !there.has(`${name}.test.ts`))
if (missing.length > 0) throw new Error(`no such tests: ${missing.join()}`)
const child = Bun.spawn(
  [
    ...[process.execPath, 'test', '--parallel=3', '--no-isolate'],
    ...files.map((name) => join(directory, `${name}.test.ts`)),
  ],
  {
    env: { ...process.env, TURNPIKE_TEST_LEDGER: 'postgres' },
    stdout: 'inherit',
    stderr: 'inherit',
  },
)
process.exit(await child.exited)
