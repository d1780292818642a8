import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Span } from '../../db/sales'
import { adminStatements } from '../../db/sqlite/admin'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open } from '../../db/sqlite/open'
import { createRecent } from '../../src/books/read'
import { sales } from '../../src/cli/operate/sales'
import { attemptsMax, cutAttemptsMax } from '../../src/paywall/answer/undelivered'
import { dayMs, hourMs } from '../../src/protocol/Time'
import { findPayments } from '../../src/web/admin/payments'
import { adminPages, describeAsset, insertPayment } from '../harness/admin'
import { exitCode } from '../harness/command'
import { countsOf } from '../harness/requests'
import { temporary } from '../harness/settlement'

const now = Date.parse('2026-11-20T10:30:00Z')
const attempts = { attemptsMax, cutAttemptsMax }
const other = '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC'

describe('the plans of the statements', () => {
  const directory = temporary()
  let db: Db
  beforeAll(() => {
    db = open({ dataDir: directory.path, now: () => now })
  })
  afterAll(() => {
    db.close()
    directory.remove()
  })
  const planOf = (sql: string) =>
    (db.sqlite.query(`EXPLAIN QUERY PLAN ${sql}`).all() as { detail: string }[]).map(
      ({ detail }) => detail,
    )

  test('no statement of the pages scans or sorts a table that grows', () => {
    const statements = Object.entries(adminStatements)
    expect(statements.length).toBeGreaterThan(14)
    for (const [name, sql] of statements) {
      const plan = planOf(sql)
      // `assets` has a row for each asset that was ever configured.
      const scans = plan.filter((step) => /^SCAN (?!a\b|assets|n\b|json_each|CONSTANT)/.test(step))
      expect([name, scans]).toEqual([name, []])
    }
  })

  test('windows are read in the order of the ids, without a sort', () => {
    for (const sql of [
      adminStatements.window,
      adminStatements.windowStart,
      adminStatements.orders,
    ]) {
      const plan = planOf(sql).join('; ')
      expect(plan).toContain('sqlite_autoindex')
      expect(plan).not.toContain('TEMP B-TREE')
    }
    expect(planOf(adminStatements.rowsOfPayer).join('; ')).toContain('payments_money')
    expect(planOf(adminStatements.unfinished).join('; ')).toContain('payments_unfinished')
  })
})

describe('the search', () => {
  const app = adminPages()
  const { db, ledger } = app
  const all: string[] = []
  beforeAll(async () => {
    await describeAsset(ledger, now)
    db.sqlite.transaction(() => {
      for (let index = 0; index < 2_500; index++) {
        const at = now - (2_500 - index) * 1_000
        const rare = index === 3
        const payer = index % 500 === 0 ? { payer: other } : {}
        all.push(
          insertPayment(db, { at, ...payer, ...(rare && { route: '/rare', isDelivered: false }) })
            .id,
        )
      }
    })()
  })
  const sources = { ledger: ledger.admin }
  const ids = async (
    ...input: Parameters<typeof findPayments> extends [unknown, ...infer Rest] ? Rest : never
  ) => (await findPayments(sources, ...input)).lines.map(({ id }) => id)

  test('pages follow each other without a gap, the newest first', async () => {
    const seen: string[] = []
    let before: string | undefined
    do {
      const found = await findPayments(sources, { before }, 300)
      seen.push(...found.lines.map(({ id }) => id))
      before = found.next
    } while (before !== undefined)
    expect(seen).toEqual(all.toReversed())
  })

  test('an old payment is found over many windows, by each of its properties', async () => {
    const rare = [all[3] ?? '']
    expect(await ids({ route: '/rare' }, 50)).toEqual(rare)
    expect(await ids({ state: 'undelivered' }, 50)).toEqual(rare)
    expect(await ids({ merchant: 'shop', route: '/rare' }, 50)).toEqual(rare)
    expect(await ids({ merchant: 'stock' }, 50)).toEqual([])
    expect(await ids({ q: all[3] }, 50)).toEqual(rare)
    const story = await ledger.admin.story(rare[0] ?? '')
    expect(await ids({ q: story?.transactions[0]?.hash }, 50)).toEqual(rare)
    const ofOther = all.filter((_, index) => index % 500 === 0).toReversed()
    expect(await ids({ q: other.toLowerCase() }, 50)).toEqual(ofOther)
    expect(await ids({ q: other, before: ofOther[1] }, 2)).toEqual(ofOther.slice(2, 4))
    // A payer with more payments than that is searched like all.
    expect(await ids({ q: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8' }, 2)).toEqual(
      all.slice(-2).toReversed(),
    )
  })

  test('error: a text of no known form is named, and an unknown id finds nothing', async () => {
    expect((await findPayments(sources, { q: 'weather' }, 50)).fault).toContain('pay_')
    for (const q of ['pay_00', `0x${'0'.repeat(64)}`, `ord_${'0'.repeat(32)}`])
      expect(await findPayments(sources, { q }, 50)).toEqual({ lines: [], next: undefined })
  })
})

describe('the figures of the last days', () => {
  const directory = temporary()
  let db: Db
  beforeAll(async () => {
    db = open({ dataDir: directory.path, now: () => now })
    await describeAsset(createLedger(db), now)
    for (let day = 0; day < 40; day++)
      for (const [hour, product] of [
        [1, 'gateway'],
        [5, 'gateway'],
        [9, 'facilitator'],
      ] as const) {
        const at = now - (now % dayMs) - day * dayMs + hour * hourMs + day * 1_000
        insertPayment(db, { at, product, amount: String(5_000 + day) })
      }
    insertPayment(db, { at: now - 3 * dayMs, isDelivered: false })
    insertPayment(db, { at: now - 1_000, state: 'broadcast' })
    await createLedger(db).sales.addRequests(now - (now % dayMs), countsOf(9, 4, 1), 0)
  })
  afterAll(() => {
    db.close()
    directory.remove()
  })

  /** The page over this database. */
  function pages() {
    const ledger = createLedger(db)
    const asked: Span[] = []
    const counting = {
      ...ledger.sales,
      ofSpan: (...input: Parameters<typeof ledger.sales.ofSpan>) => {
        asked.push(input[0])
        return ledger.sales.ofSpan(...input)
      },
    }
    const recent = createRecent({ sales: counting, attempts, now: () => now })
    const assets = ledger.sales.assets
    const app = adminPages({ sources: { recent, assets, ledger: ledger.admin } })
    return { app, recent, asked }
  }
  type Line = Record<string, string | number>
  type Sales = { totals: Line[]; requests: Line[]; sales: Line[] }
  const salesOf = async (since: string, by: string): Promise<Sales> => {
    let text = ''
    const out = (more: string) => {
      text += more
    }
    await exitCode(sales, { dataDir: directory.path, since, by, json: true, now: () => now, out })
    return JSON.parse(text)
  }
  const microOf = (atomic: string | number | undefined) => String(atomic ?? 0)
  const wordsOf = (text: string, name: string): string[] => {
    const row = new RegExp(`<th scope="row">${name}</th>(.*?)</tr>`, 's').exec(text)?.[1] ?? ''
    return [...row.matchAll(/<data value="([^"]*)">/g)].map(([, value = '']) => value)
  }

  test('every figure of the overview is that of turnpike sales', async () => {
    const { app } = pages()
    const session = await app.signIn()
    const text = await (await app.get('/admin', session)).text()
    const reports = await Promise.all(['0d', '6d', '29d'].map((since) => salesOf(since, 'day')))
    const columns = (name: string) => reports.map(({ totals }) => microOf(totals[0]?.[name]))
    // USDC has six decimals, so that atomic amounts are millionths of a USD.
    expect(wordsOf(text, 'Paid')).toEqual(columns('paidAtomic'))
    expect(wordsOf(text, 'Delivered')).toEqual(columns('deliveredAtomic'))
    expect(wordsOf(text, 'Not delivered')).toEqual(columns('undeliveredAtomic'))
    expect(wordsOf(text, 'Payments')).toEqual(columns('payments'))
    const dollars = (name: string) =>
      reports.map(({ totals }) => String(Math.round(Number(totals[0]?.[name] ?? 0) * 1e6)))
    expect(wordsOf(text, 'Revenue')).toEqual(dollars('revenueUsd'))
    expect(wordsOf(text, 'Swapped for stock')).toEqual(dollars('swappedUsd'))
    expect(wordsOf(text, 'Gas of sales')).toEqual(dollars('gasUsd'))
    expect(wordsOf(text, 'Margin after gas')).toEqual(dollars('marginUsd'))
    const requests = (name: string) => reports.map(({ requests: [own] }) => microOf(own?.[name]))
    expect(wordsOf(text, 'Requests answered 402')).toEqual(requests('asked'))
    expect(wordsOf(text, 'Paid requests')).toEqual(requests('paid'))
    expect(wordsOf(text, 'Failed requests')).toEqual(requests('failed'))
    for (const { day = '', revenueUsd } of reports[2]?.sales ?? [])
      expect(wordsOf(text, String(day))).toEqual([String(Math.round(Number(revenueUsd) * 1e6))])
    expect(reports[2]?.totals[0]?.payments).toBe(61)
  })

  test('a closed hour is read once, and again after a change in it', async () => {
    const { recent, asked } = pages()
    const first = await recent.read(30)
    const cold = asked.length
    asked.length = 0
    expect(await recent.read(30)).toEqual(first)
    // Today's last hours, and the one with an answer that its buyer can still fetch.
    const again = new Set(asked.map(({ from }) => from - (from % hourMs)))
    expect(cold).toBeGreaterThan(29 * 24)
    expect([...again].sort()).toEqual(
      [now - 3 * dayMs, now - hourMs, now].map((at) => at - (at % hourMs)).sort(),
    )
    const changed = now - 10 * dayMs
    db.sqlite.run("UPDATE payments SET amount_atomic = '9' WHERE id >= ? AND id < ?", [
      idAt(changed - (changed % dayMs)),
      idAt(changed - (changed % dayMs) + 2 * hourMs),
    ])
    expect(await recent.read(30)).toEqual(first)
    recent.changed(changed - (changed % dayMs) + hourMs)
    expect(await recent.read(30)).not.toEqual(first)
  })

  test('changes are reported once, from before the first read', async () => {
    const { sales } = adminPages().ledger
    const calls: string[] = []
    const watching = {
      ...sales,
      firstAt() {
        calls.push('read')
        return sales.firstAt()
      },
    }
    const follow = () => void calls.push('follow')
    const recent = createRecent({ sales: watching, attempts, now: () => now, follow })
    expect(calls).toEqual([])
    await Promise.all([recent.read(1), recent.read(1)])
    expect(calls).toEqual(['follow', 'read', 'read'])
  })

  test('no read is of more than a part of an hour where there are many payments', async () => {
    const busy = adminPages()
    await describeAsset(busy.ledger, now)
    busy.db.sqlite.transaction(() => {
      for (let index = 0; index < 2_000; index++)
        insertPayment(busy.db, { at: now - 4 * hourMs + index * 7_000 })
    })()
    const sizes: number[] = []
    const { ofSpan } = busy.ledger.sales
    const watching = {
      ...busy.ledger.sales,
      async ofSpan(...input: Parameters<typeof ofSpan>) {
        const found = await ofSpan(...input)
        sizes.push(found.rows.reduce((sum, row) => sum + row.payments, 0))
        return found
      },
    }
    const recent = createRecent({ sales: watching, attempts, now: () => now })
    const { days } = await recent.read(2)
    const total = days
      .flatMap(({ spans }) => spans.flatMap(({ rows }) => rows))
      .reduce((sum, row) => sum + row.payments, 0)
    expect(total).toBe(2_000)
    // The first reads of a busy time are as long as those of the quiet time before it.
    expect(sizes.filter((size) => size > 250).length).toBeLessThanOrEqual(2)
  })
})

const idAt = (at: number) => `pay_${at.toString(16).padStart(12, '0')}`
