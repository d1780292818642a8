import { describe, expect, test } from 'bun:test'
import { outcomes } from '../../db/admin'
import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, openInMemory } from '../../db/sqlite/open'
import { dayMs } from '../../src/protocol/Time'
import {
  begin,
  describeRows,
  hourMs,
  networks,
  payers,
  type Rows,
  randomRows,
  spanMs,
} from '../harness/book-rows'
import { hasPostgres } from '../harness/postgres'
import { type Books, openBooks } from '../harness/postgres-books'
import { createRandom, type Random } from '../soak/random'

/** The books in PostgreSQL, compared with those in SQLite over the same random rows. */

const seeds = Number(process.env.SEEDS ?? 2)
const attempts = { attemptsMax: 6, cutAttemptsMax: 12 }

type Both = { db: Db; sqlite: Ledger; books: Books; rows: Rows; random: Random }

async function openBoth(seed: string): Promise<Both> {
  const random = createRandom(seed)
  const db = openInMemory({ now: () => begin })
  const sqlite = createLedger(db)
  const books = await openBooks(sqlite)
  const rows = randomRows(random.fork('rows'))
  insert(db, rows)
  await books.insert(rows)
  for (const ledger of [sqlite, books]) await describeRows(ledger, random.fork('counts'))
  return { db, sqlite, books, rows, random }
}

function insert({ sqlite }: Db, rows: Rows): void {
  for (const [table, row] of rows) {
    const names = Object.keys(row)
    const places = names.map(() => '?')
    sqlite
      .prepare(`INSERT INTO ${table} (${names.map((name) => `"${name}"`)}) VALUES (${places})`)
      .run(...Object.values(row))
  }
}

type Asked = Pick<Ledger, 'sales' | 'admin'>

/** Asks both ledgers, and expects that they answer the same. */
async function same<T>(both: Both, what: string, ask: (ledger: Asked) => Promise<T>): Promise<T> {
  const expected = await ask(both.sqlite)
  expect([what, await ask(both.books)]).toEqual([what, expected])
  return expected
}

async function compareSales(both: Both): Promise<number> {
  const { random } = both
  let payments = 0
  await same(both, 'first', ({ sales }) => sales.firstAt())
  for (const day of [begin - (begin % dayMs), begin - (begin % dayMs) - dayMs])
    await same(both, 'requests', ({ sales }) => sales.requestsOf(day))
  await same(both, 'assets', ({ sales }) => sales.assets())
  for (let each = 0; each < 10; each++) {
    const from = begin - hourMs + random.between(0, 9) * (hourMs / 2)
    const span = {
      from,
      to: each === 0 ? begin + 9 * hourMs : from + random.between(0, 3) * hourMs,
    }
    const now = begin + random.between(0, 3) * spanMs
    await same(both, 'buyers', ({ sales }) => sales.buyersOf(span))
    for (const byPayer of [false, true]) {
      const query = { byPayer, redeemable: { now, ...attempts } }
      const { rows } = await same(both, 'span', ({ sales }) => sales.ofSpan(span, query))
      payments += rows.length
    }
  }
  return payments
}

/** What was refunded is no longer delivered or undelivered. Returns the number of refunds. */
async function checkRefunds({ sqlite, rows }: Both): Promise<number> {
  const query = { byPayer: false, redeemable: { now: begin, ...attempts } }
  const found = await sqlite.sales.ofSpan({ from: begin, to: begin + 9 * hourMs }, query)
  for (const { paidAtomic, deliveredAtomic, undeliveredAtomic, refundedAtomic } of found.rows)
    expect(deliveredAtomic + undeliveredAtomic + refundedAtomic).toBe(paidAtomic)
  const payments = new Map(rows.flatMap(([of, row]) => (of === 'payments' ? [[row.id, row]] : [])))
  const refunded = rows.filter(
    ([of, row]) =>
      (of === 'refunds' && row.paid_hash !== null) ||
      (of === 'orders' &&
        row.state === 'refunded' &&
        payments.get(row.payment_id)?.state === 'confirmed'),
  )
  expect(found.rows.reduce((sum, row) => sum + row.refunds, 0)).toBe(refunded.length)
  const kinds = found.otherGas.map(({ kind }) => kind)
  expect(kinds).toContain('refund')
  return refunded.length
}

async function compareLists(both: Both): Promise<void> {
  const { random, rows } = both
  const idOf = (table: string) =>
    rows.flatMap(([each, { id }]) => (each === table ? [String(id)] : []))
  for (let each = 0; each < 12; each++) {
    const payer = random.pick(payers)
    const filter = {
      payer: random.chance(0.3) ? (payer.toLowerCase() as typeof payer) : undefined,
      merchant: random.chance(0.3) ? random.pick(['shop', '', 'stock', 'no\0ne']) : undefined,
      route: random.chance(0.3) ? random.pick(['/a', '/B', '/b/c']) : undefined,
      outcome: random.chance(0.3) ? random.pick(outcomes) : undefined,
    }
    const [limit, size] = [random.between(1, 6), random.between(1, 20)]
    let before: string | undefined
    do {
      const page = { before, limit, rows: size }
      const found = await same(both, 'payments', ({ admin }) => admin.payments(filter, page))
      before = found.next
    } while (before !== undefined)
    const max = random.between(1, 40)
    const written = random.chance(0.5) ? payer : (payer.toLowerCase() as typeof payer)
    await same(both, 'payer', ({ admin }) => admin.ofPayer(written, max))
    const page = { before: random.chance(0.5) ? random.pick(idOf('payments')) : undefined, limit }
    await same(both, 'pending', ({ admin }) => admin.pendingPayments(page))
    const order = { before: random.chance(0.5) ? random.pick(idOf('orders')) : undefined, limit }
    await same(both, 'orders', ({ admin }) => admin.orders(order))
    const from = begin + random.between(0, 3) * hourMs
    const span = { from, to: from + 2 * hourMs }
    await same(both, 'payees', ({ admin }) => admin.payees(span))
    const range = { from: begin - 1, before: from + hourMs, limit }
    await same(both, 'grants', ({ admin }) => admin.grants(random.fork('g').pick(networks), range))
  }
}

async function compareEach(both: Both): Promise<number> {
  let members = 0
  for (const [table, { id, hash, transaction_hash: paid }] of both.rows) {
    const [text, at] = [String(id), String(hash ?? paid)]
    if (table === 'payments' || table === 'authorizations') {
      const story = await same(both, 'story', ({ admin }) => admin.story(text))
      members += story?.transactions.length ?? 0
    }
    if (table === 'orders') await same(both, 'order', ({ admin }) => admin.paymentOfOrder(text))
    if (table === 'jobs') await same(both, 'job', ({ admin }) => admin.jobAt(text))
    if (table === 'transactions' || table === 'payments')
      await same(both, 'in', ({ admin }) => admin.inTransaction(at.toUpperCase() as `0x${string}`))
  }
  await same(both, 'no story', ({ admin }) => admin.story('pay_00'))
  await same(both, 'no job', ({ admin }) => admin.jobAt('swap:ord_00'))
  return members
}

describe.skipIf(!hasPostgres)('the books in PostgreSQL', () => {
  for (let seed = 1; seed <= seeds; seed++)
    test(`figures, lists and stories are those of SQLite, seed ${seed}`, async () => {
      const both = await openBoth(`books ${seed}`)
      expect(await compareSales(both)).toBeGreaterThan(50)
      expect(await checkRefunds(both)).toBeGreaterThan(1)
      await compareLists(both)
      expect(await compareEach(both)).toBeGreaterThan(30)
      both.books.close()
      both.db.close()
    })
})
