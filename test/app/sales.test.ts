import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { idAt, type RequestCounts, type SalesReads, timeOf } from '../../db/sales'
import { openSalesBeside } from '../../db/sqlite/beside'
import { databaseName } from '../../db/sqlite/directory'
import { createLedger } from '../../db/sqlite/ledger'
import { migrate, migrations, noteProgram } from '../../db/sqlite/migrate'
import { type Db, open, openInMemory } from '../../db/sqlite/open'
import { cell } from '../../src/books/formats'
import * as Group from '../../src/books/Group'
import { readBooks } from '../../src/books/read'
import * as Since from '../../src/books/Since'
import { countFree, countRefusal, createTally, startRequestCounts } from '../../src/books/tally'
import { sales } from '../../src/cli/operate/sales'
import { account } from '../../src/demo/accounts'
import * as Problem from '../../src/protocol/Problem'
import { dayMs, hourMs } from '../../src/protocol/Time'
import { insertChannel, insertPayment } from '../harness/admin'
import { sync } from '../harness/channel-rows'
import { exitCode } from '../harness/command'
import { countsOf } from '../harness/requests'
import { temporary } from '../harness/settlement'

const at = Date.parse('2026-11-20T10:30:00Z')
const attempts = { attemptsMax: 6, cutAttemptsMax: 12 }
const asset = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'

test('figures begin with the time in the first id of a payment', async () => {
  expect([timeOf(`${idAt(at)}0123`), timeOf('pay_')]).toEqual([at, 0])
  const db = openInMemory({ now: () => at })
  const { sales } = createLedger(db)
  expect(await sales.firstAt()).toBeUndefined()
  insertPayment(db, { at })
  insertPayment(db, { at: at - hourMs })
  expect(await sales.firstAt()).toBe(at - hourMs)
  db.close()
})

test('a line has the members of its grouping, which are its name', () => {
  const has = { day: '2026-11-20', merchant: 'shop', route: '/item', payer: '0x1', client: 'curl' }
  const groups = (['merchant', 'route', 'payer', 'network', 'client', 'day'] as const).map((by) => {
    const group = Group.of(by, has)
    return [by, Object.keys(group).join(), Group.nameOf(group)]
  })
  expect(groups).toEqual([
    ['merchant', 'merchant', 'shop'],
    ['route', 'merchant,route', 'shop/item'],
    ['payer', 'payer', '0x1'],
    ['network', '', ''],
    ['client', 'client', 'curl'],
    ['day', 'day', '2026-11-20'],
  ])
  expect(Group.of('payer', { ...has, payer: undefined })).toStrictEqual({})
})

describe('the begin of a period', () => {
  const cases: readonly (readonly [string, string | undefined])[] = [
    ['30d', '2026-10-21T00:00:00Z'],
    ['0d', '2026-11-20T00:00:00Z'],
    ['24h', '2026-11-19T10:30:00Z'],
    ['2026-11-01', '2026-11-01T00:00:00Z'],
    ['2026-11-01T08:00', '2026-11-01T08:00:00Z'],
    ['2026-11-01T08:00:30Z', '2026-11-01T08:00:30Z'],
    ['2026-11-01T08:00+02:00', '2026-11-01T06:00:00Z'],
    ['1793000000', '2026-10-26T07:33:20Z'],
    ['1793000000000', '2026-10-26T07:33:20Z'],
    ['2026-11-31', undefined],
    ['2026-02-30T08:00Z', undefined],
    ['2027-01-01', undefined],
    ['yesterday', undefined],
    ['-1d', undefined],
    ['30', undefined],
    ['', undefined],
  ]
  test('days begin at midnight UTC, and times without a zone are UTC', () => {
    const found = cases.map(([text]) => [text, Since.parse(text, at)])
    expect(found).toEqual(cases.map(([text, iso]) => [text, iso && Date.parse(iso)]))
  })
})

describe('counts of requests', () => {
  test('counts belong to the UTC day in which they were gathered, and are added up', async () => {
    const db = openInMemory({ now: () => at })
    const { sales: ledger } = createLedger(db)
    let now = at
    const tally = createTally()
    const counts = startRequestCounts({ ledger, tally, now: () => now })
    const of = { merchant: 'shop', route: '/item' }
    tally.of(of, 'curl').asked += 2
    tally.of(of, 'browser').asked += 5
    await counts.flush()
    tally.of(of, 'curl').asked++
    tally.of(of, 'curl').paid++
    now += dayMs
    await counts.flush()
    countRefusal(tally.of(of, 'curl'), Problem.of('rate-limited', 'Wait.'))
    countRefusal(tally.of(of, 'curl'), new Error('of no kind'))
    countFree(tally.of(of, 'browser'), 'pass')
    countFree(tally.of(of, 'browser'), 'pass')
    await counts.stop()
    const rows = () => db.sqlite.query('SELECT * FROM requests ORDER BY day, client, detail').all()
    const [day, next] = [Date.parse('2026-11-20'), Date.parse('2026-11-21')]
    const [curl, browser] = [
      { ...of, client: 'curl' },
      { ...of, client: 'browser' },
    ]
    expect(rows()).toEqual([
      { day, ...browser, step: 'asked', detail: '', times: 5 },
      { day, ...curl, step: 'asked', detail: '', times: 3 },
      { day, ...curl, step: 'paid', detail: '', times: 1 },
      { day: next, ...browser, step: 'free', detail: 'pass', times: 2 },
      { day: next, ...curl, step: 'refused', detail: 'internal-error', times: 1 },
      { day: next, ...curl, step: 'refused', detail: 'rate-limited', times: 1 },
    ])
    // Without new counts nothing is written; days that are too old are deleted with the next ones.
    await ledger.addRequests(next + dayMs, [], next)
    expect(rows()).toHaveLength(3)
    db.close()
  })

  test('error: counts that could not be written are written later, once', async () => {
    const tally = createTally()
    const written: (readonly RequestCounts[])[] = []
    let isFull = true
    const ledger = {
      async addRequests(_: number, counts: readonly RequestCounts[]) {
        if (isFull) throw new Error('full')
        written.push(counts)
      },
    }
    const counts = startRequestCounts({ ledger, tally, now: () => at })
    const of = { merchant: 'shop', route: '/item' }
    tally.of(of, 'other').asked = 5
    await counts.flush()
    isFull = false
    await Promise.all([counts.flush(), counts.flush(), counts.stop()])
    expect(written).toEqual([[{ ...of, client: 'other', step: 'asked', detail: '', times: 5 }]])
  })
})

const directory = temporary()
let db: Db
beforeAll(() => {
  db = open({ dataDir: directory.path, now: () => at })
})
afterAll(() => {
  db.close()
  directory.remove()
})

let serial = 0
const hash = () => `0x${String(++serial).padStart(64, '0')}`

/** A confirmed and delivered payment in a transaction of its own. */
function insert({
  time = at - 1_000,
  amount = '5000',
  payer = account(1).address as string,
  route = '/item',
  product = 'gateway',
  costWei = '1000' as string | null,
} = {}): void {
  const transaction = hash()
  const id = `pay_${time.toString(16).padStart(12, '0')}${serial}`
  db.sqlite.run(
    `INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw, gas_limit,
      max_fee_wei, max_tip_wei, state, created_at, first_sent_at, block_number, cost_wei)
     VALUES (?, 'eip155:8453', ?, ?, 'payment', 'gateway', ?, '0x02', '1', '1', '1', 'mined', 1, 1, 1, ?)`,
    [transaction, account(0).address, serial, asset, costWei],
  )
  db.sqlite.run(
    `INSERT INTO payments (id, method, network, chain_id, asset, payer, payee, amount_atomic, nonce,
      valid_after, valid_before, signature, product, protocol, merchant, route, fingerprint, resource,
      bound, received_at, known_block, state, transaction_hash, log_index, block_number, confirmed_at,
      created_at, delivery, attempts, delivered_at)
     VALUES (?, 'eip3009', 'eip155:8453', 8453, ?, ?, ?, ?, ?, '0', '1', '0x', ?, 'x402', 'shop', ?,
      'f', 'r', 1, 1, 1, 'confirmed', ?, 0, 1, 1, 1, 'delivered', 1, 1)`,
    [id, asset, payer, account(7).address, amount, hash(), product, route, transaction],
  )
  db.sqlite.run('INSERT INTO transaction_members VALUES (?, 0, ?)', [transaction, id])
}

function clear(): void {
  for (const table of [
    'transaction_members',
    'payments',
    'transactions',
    'requests',
    'own_accounts',
  ])
    db.sqlite.run(`DELETE FROM ${table}`)
}

async function run(options: Partial<Parameters<typeof sales>[0]>) {
  let text = ''
  const out = (more: string) => {
    text += `${more}\n`
  }
  const code = await exitCode(sales, { dataDir: directory.path, now: () => at, out, ...options })
  return { code, text }
}

async function describeNetwork(): Promise<void> {
  const name = { networkName: 'Base', symbol: 'USDC', decimals: 6, coinUsd: '4000' }
  await createLedger(db).sales.describe({
    accounts: [account(0).address],
    assets: [{ network: 'eip155:8453', address: asset, ...name }],
    now: at,
  })
}

describe('the figures', () => {
  beforeEach(clear)

  test('people get aligned tables with totals and notes', async () => {
    await describeNetwork()
    insert()
    insert({ amount: '1000000', costWei: '250000000000000' })
    insert({ payer: account(0).address })
    await createLedger(db).sales.addRequests(Date.parse('2026-11-20T00:00Z'), countsOf(8, 3, 1), 0)
    const { code, text } = await run({})
    expect(code).toBe(0)
    expect(text).toBe(`Sales from 2026-10-21 00:00 to 2026-11-20 10:30 UTC, by merchant

merchant  network  asset  payments      paid  delivered  undelivered  refunded   swapped  revenue USD   gas USD  margin USD
shop      Base     USDC          2  1.005000   1.005000     0.000000  0.000000  0.000000     1.005000  1.000000    0.005000
total     Base     USDC          2  1.005000   1.005000     0.000000  0.000000  0.000000     1.005000  1.000000    0.005000
total     all      USD           2  1.005000                                                 1.005000  1.000000    0.005000

Payments of own accounts, not in the sums
merchant  network  asset  payments      paid  delivered  undelivered  refunded   swapped  revenue USD   gas USD  margin USD
shop      Base     USDC          1  0.005000   0.005000     0.000000  0.000000  0.000000     0.000000  0.000000    0.000000

USD: 1 stablecoin is 1 USD. revenue: delivered, without what was swapped for stock. margin: revenue, less gas.
Gas at the eth_price_usd of the configuration: 4000 USD an ETH on Base.
Gas of sales on Base: 0.000250000000001 ETH.

Requests by merchant, in whole UTC days
merchant  402  paid  failed  paid of 402
shop        8     3       1       37.5 %
`)
  })

  test('answers without a further payment are counted by their kind, in each form', async () => {
    const of = { merchant: 'shop', route: '/item', client: 'curl', step: 'free' } as const
    const free = (['pass', 'trial'] as const).map((detail, index) => {
      return { ...of, detail, times: 7 - index }
    })
    const day = Date.parse('2026-11-20T00:00Z')
    await createLedger(db).sales.addRequests(day, [...countsOf(8, 3, 1), ...free], 0)
    expect((await run({})).text).toEndWith(`
Requests by merchant, in whole UTC days
merchant  402  paid  failed  paid of 402  trial  pass
shop        8     3       1       37.5 %      6     7
trial, pass: answers without a further payment.
`)
    expect((await run({ csv: true })).text).toContain(',8,3,1,,,,,7,6,,,\r\n')
    expect(JSON.parse((await run({ json: true })).text).requests).toEqual([
      { merchant: 'shop', asked: 8, paid: 3, failed: 1, free: { pass: 7, trial: 6 } },
    ])
  })

  test('payments by channels are sales, and what is not on chain stands below, with their gas', async () => {
    await describeNetwork()
    const ledger = createLedger(db)
    const open = { claimedAtomic: 2_000n, withdrawAt: at }
    const id = await insertChannel({ ledger, db }, { salt: 1, charged: 12_000n, at, ...open })
    for (const base of [0n, 5_000n]) insertPayment(db, { at: at - 1_000, channel: { id, base } })
    const { id: job, hash: claim } = insertPayment(db, { at: at - 1_000 })
    for (const [table, key] of [
      ['transaction_members', 'payment_id'],
      ['payments', 'id'],
    ])
      db.sqlite.run(`DELETE FROM ${table} WHERE ${key} = ?`, [job])
    const cost = "UPDATE transactions SET kind = 'channel', cost_wei = ? WHERE hash = ?"
    db.sqlite.run(cost, ['25000000000000', claim])
    const { text } = await run({})
    expect(text).toMatch(/^shop +Base +USDC +2 +0\.010000 +0\.010000 /m)
    expect(text).toContain(
      'Sold by channels and not on chain yet: 0.010000 USDC on Base (1 open channel, 1 withdrawal).',
    )
    expect(text).toContain(
      'Not in the sums: deposits, claims and refunds of channels on Base, 0.000025 ETH, 0.100000 USD.',
    )
    const json = JSON.parse((await run({ json: true })).text)
    expect(json.channels).toEqual([
      {
        ...{ network: 'eip155:8453', asset, symbol: 'USDC', decimals: 6, channels: 1 },
        ...{
          withdrawals: 1,
          unsafeWithdrawals: 1,
          unclaimedAtomic: '10000',
          unclaimedUsd: '0.010000',
        },
      },
    ])
    expect((await run({ csv: true })).text).toContain(',1,10000,0.010000\r\n')
    // A channel is never deleted. One without money is not open.
    const all = { balanceAtomic: 12_000n, claimedAtomic: 12_000n, refundNonce: 0n }
    await sync(ledger.channels, { id }, { ...all, withdrawAt: undefined }, at)
    expect((await run({})).text).not.toContain('not on chain yet')
  })

  test('sums above 2^63 are exact, and a cost of an earlier version is reported as unknown', async () => {
    const most = '9007199254740993'
    for (let i = 0; i < 3; i++) insert({ amount: most, costWei: '9000000000000000001' })
    insert({ costWei: null })
    const { text } = await run({ json: true })
    const { totals, unknownGas } = JSON.parse(text)
    expect(totals).toMatchObject([
      { paidAtomic: '27021597764227979', gasWei: '27000000000000000003', unknownGas: 1 },
    ])
    expect(unknownGas).toBe(1)
  })

  test('a period begins and ends at its times, and days are UTC', async () => {
    await describeNetwork()
    const midnight = Date.parse('2026-11-20T00:00Z')
    for (const time of [midnight - 1, midnight, at - hourMs - 1, at - hourMs]) insert({ time })
    const counts = async (since: string, by: string) =>
      JSON.parse((await run({ since, by, json: true })).text).sales.map(
        ({ day, payments }: { day: string; payments: number }) => [day, payments],
      )
    expect(await counts('1h', 'network')).toEqual([[undefined, 1]])
    expect(await counts('0d', 'day')).toEqual([['2026-11-20', 3]])
    expect(await counts('7d', 'day')).toEqual([
      ['2026-11-19', 1],
      ['2026-11-20', 3],
    ])
  })

  test('the log can be written back between two reads, and writes continue', async () => {
    for (let hour = 0; hour < 5; hour++) insert({ time: at - 1 - hour * hourMs })
    const opened = openSalesBeside({ dataDir: directory.path })
    if (typeof opened === 'string') throw new Error(opened)
    const checkpoints: unknown[] = []
    const reads: SalesReads = {
      ...opened.sales,
      async ofSpan(span, query) {
        const found = await opened.sales.ofSpan(span, query)
        insert({ time: at - 40 * 24 * hourMs })
        checkpoints.push(db.sqlite.query('PRAGMA wal_checkpoint(TRUNCATE)').get())
        return found
      },
    }
    const report = await readBooks({
      sales: reads,
      by: 'network',
      from: at - 5 * hourMs,
      to: at,
      attempts,
    })
    opened.close()
    expect(report.totals[0]?.figures.payments).toBe(5)
    expect(checkpoints.length).toBeGreaterThan(4)
    for (const each of checkpoints) expect(each).toMatchObject({ busy: 0, log: 0 })
  })
})

describe('CSV', () => {
  test('the CSV has one header, and lines end as RFC 4180 says', async () => {
    clear()
    await describeNetwork()
    insert({ costWei: '250000000000000' })
    const { text } = await run({ csv: true })
    expect(text).toBe(
      [
        'class,day,merchant,route,payer,network,network_name,asset,symbol,decimals,payments,paid_atomic,delivered_atomic,undelivered_payments,undelivered_atomic,redeemable_payments,redeemable_atomic,refunded_atomic,swapped_atomic,pending_payments,pending_atomic,lost_payments,lost_atomic,gas_wei,gas_usd,profit_usd,loss_usd,requests_402,requests_paid,requests_failed,revenue_usd,swapped_usd,refunded_payments,requests_again,requests_pass,requests_trial,open_channels,unclaimed_atomic,unclaimed_usd',
        `sale,,shop,,,eip155:8453,Base,${asset},USDC,6,1,5000,5000,0,0,0,0,0,0,0,0,0,0,250000000000000,1.000000,0.000000,0.995000,,,,0.005000,0.000000,0,,,,,,`,
        '',
      ].join('\r\n'),
    )
  })

  test('error: no cell is a formula, whatever a route is called', async () => {
    clear()
    for (const route of ['=1+1', '+1', '-1', '@SUM(A1)', '\t=1', '"=1', 'a,"b"\r\n=1'])
      insert({ route })
    const { text } = await run({ csv: true, by: 'route' })
    const cells = [...text.matchAll(/(?:^|,|\r\n)(?:"((?:[^"]|"")*)"|([^",\r\n]*))/g)].map(
      ([, quoted, bare]) => quoted?.replaceAll('""', '"') ?? bare ?? '',
    )
    expect(cells).toContain("'=1+1")
    expect(cells.filter((each) => /^\s*[=+\-@]/.test(each))).toEqual([])
    expect(cell('a,"b"')).toBe('"a,""b"""')
    expect(cell("it's")).toBe("it's")
  })
})

describe('what is wrong', () => {
  const cases: readonly (readonly [Parameters<typeof run>[0], string])[] = [
    [
      { since: 'soon' },
      'turnpike: --since "soon" is not a past time: write 30d, 24h, 2026-11-20 or a Unix time\n',
    ],
    [
      { by: 'colour' },
      'turnpike: --by "colour" is unknown: write merchant, route, payer, network or day\n',
    ],
    [{ csv: true, json: true }, 'turnpike: choose --csv or --json, not both\n'],
  ]
  test('error: a wrong option is named with what to write', async () => {
    for (const [options, text] of cases) expect(await run(options)).toEqual({ code: 1, text })
  })

  test('error: a missing, an empty and a newer database are named with what to do', async () => {
    const dataDir = join(directory.path, 'other')
    const of = async () => {
      let text = ''
      const out = (more: string) => {
        text += `${more}\n`
      }
      await exitCode(sales, { dataDir, now: () => at, out })
      return text
    }
    const newest = migrations.at(-1)?.name
    expect(await of()).toBe(
      `turnpike: there is no database in ${dataDir}: name its directory by --data\n`,
    )
    mkdirSync(dataDir)
    const old = new Database(join(dataDir, databaseName))
    old.close()
    const file = join(dataDir, databaseName)
    expect(await of()).toBe(
      `turnpike: ${file} has no tables of turnpike: start serve once, which makes them\n`,
    )
    // As a newer program leaves it.
    const later = new Database(file)
    migrate(later, 1)
    noteProgram(later, '9.1.0')
    later.run("INSERT INTO migrations (name, hash, applied_at) VALUES ('9999_later', 'x', 1)")
    later.close()
    expect(await of()).toBe(
      `turnpike: ${file} was made by turnpike 9.1.0 (schema 9999_later); this turnpike knows schema ${newest}: start turnpike 9.1.0 or a newer one, or restore a copy from before the upgrade\n`,
    )
  })
})
