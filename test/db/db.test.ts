import { Database } from 'bun:sqlite'
import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { copyFileSync, mkdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { MigrationError, misfit } from '../../db/schemas'
import { DatabaseLockedError } from '../../db/sqlite/directory'
import { migrate } from '../../db/sqlite/migrate'
import { createOffers } from '../../db/sqlite/offers'
import { type Db, open, openInMemory } from '../../db/sqlite/open'
import { createPayments } from '../../db/sqlite/payments'
import { isDuplicate, write } from '../../db/sqlite/write'
import * as Crypto from '../../src/protocol/Crypto'
import { temporary } from '../harness/settlement'

const now = () => 1_700_000_000_000
let directory: ReturnType<typeof temporary>
let db: Db

beforeEach(() => {
  directory = temporary()
  db = open({ dataDir: directory.path, now })
})

afterEach(() => {
  db.close()
  directory.remove()
})

const hash = (digit: string) => `0x${digit.repeat(64)}`
const payment: Readonly<Record<string, string | number | null>> = {
  id: 'pay_1',
  method: 'permit2',
  network: 'eip155:4663',
  chain_id: 4663,
  asset: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
  payer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  payee: '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955',
  amount_atomic: '5000',
  nonce: hash('1'),
  valid_after: '0',
  valid_before: '1700000300',
  signature: '0x00',
  product: 'gateway',
  protocol: 'mpp',
  merchant: 'weather',
  route: '/forecast',
  fingerprint: 'f',
  resource: 'http://localhost/',
  idempotency_key: null,
  bound: 1,
  received_at: 1,
  known_block: 1,
  state: 'broadcast',
  transaction_hash: hash('a'),
  created_at: 1,
}
const money = {
  network: 'eip155:4663',
  asset: '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168',
  payer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  nonce: hash('1') as `0x${string}`,
} as const
const confirmed = { state: 'confirmed', log_index: 0, block_number: 7, confirmed_at: 2 }

function insert(changes: Readonly<Record<string, string | number | null>> = {}): void {
  const row = { ...payment, ...changes }
  const names = Object.keys(row)
  db.sqlite.run(
    `INSERT INTO payments (${names.join(', ')}) VALUES (${names.map(() => '?').join(', ')})`,
    Object.values(row),
  )
}

describe('open', () => {
  test('a commit is durable, and the directory is for its owner only', () => {
    const pragma = (name: string) => Object.values(db.sqlite.query(`PRAGMA ${name}`).get() ?? {})[0]
    expect(pragma('journal_mode')).toBe('wal')
    expect(pragma('synchronous')).toBe(2)
    expect(pragma('foreign_keys')).toBe(1)
    expect(statSync(db.file).mode & 0o777).toBe(0o600)
    expect(statSync(join(directory.path, 'turnpike.lock')).mode & 0o777).toBe(0o600)
  })

  test('opens again with the same rows', () => {
    insert()
    db.close()
    db = open({ dataDir: directory.path, now })
    expect(db.sqlite.query('SELECT id FROM payments').all()).toEqual([{ id: 'pay_1' }])
  })

  test('a database in memory has the same schema and checks, and writes no file', async () => {
    const memory = openInMemory({ now })
    try {
      const schema = ({ sqlite }: Db) =>
        sqlite.query('SELECT type, name, sql FROM sqlite_master ORDER BY type, name').all()
      expect(schema(memory)).toEqual(schema(db))
      expect(memory.sqlite.query('PRAGMA foreign_keys').get()).toEqual({ foreign_keys: 1 })
      memory.withoutSync(() => memory.sqlite.run("INSERT INTO meta VALUES ('a', 'b')"))
      await memory.sync()
      memory.reserveLog()
      expect(memory.storage.fault()).toBeUndefined()
      const other = openInMemory({ now })
      expect(other.sqlite.query("SELECT * FROM meta WHERE key = 'a'").all()).toEqual([])
      other.close()
    } finally {
      memory.close()
    }
  })

  test('error: a second opening names the directory and the process', () => {
    try {
      open({ dataDir: directory.path, now }).close()
      throw new Error('opened')
    } catch (error) {
      expect(error).toBeInstanceOf(DatabaseLockedError)
      expect(error).toMatchObject({ directory: directory.path, pid: process.pid })
      expect(String(error)).toContain(directory.path)
      expect(String(error)).toContain(`process ${process.pid}`)
    }
  })

  test('the lock of a killed process is released, that of a live one is not', async () => {
    const path = join(directory.path, 'other')
    mkdirSync(path)
    const child = Bun.spawn(
      [
        process.execPath,
        '-e',
        `const { open } = await import(${JSON.stringify(join(import.meta.dir, '../../db/sqlite/open.ts'))})
         // Dropping the database may release the lock.
         globalThis.db = open({ dataDir: ${JSON.stringify(path)}, now: Date.now })
         console.log('open')
         setInterval(() => undefined, 1000)`,
      ],
      { stdout: 'pipe' },
    )
    try {
      const { value } = await child.stdout.getReader().read()
      expect(new TextDecoder().decode(value)).toBe('open\n')
      expect(() => open({ dataDir: path, now })).toThrow(`process ${child.pid}`)
    } finally {
      child.kill('SIGKILL')
      await child.exited
    }
    open({ dataDir: path, now }).close()
  })

  test('error: a command names an older, an empty and a foreign database', () => {
    const list = ['0001_a', '0002_b'].map((name) => ({ name, sql: name }))
    const applied = list.map(({ name, sql }) => ({ name, hash: Crypto.sha256(sql) }))
    const of = (all: typeof applied) =>
      misfit({ applied: all, program: '1.0.0' }, list, { file: 'f' })
    expect(of(applied)).toBeUndefined()
    expect(of(applied.slice(0, 1))).toBe(
      'f is of an older version (schema 0001_a, this program needs 0002_b): start serve once, which ' +
        'brings it up to date',
    )
    expect(of([])).toBe('f has no tables of turnpike: start serve once, which makes them')
    expect(of([{ name: '0001_x', hash: '' }])).toContain('from before the first release')
    expect(of([...applied, { name: '0003_c', hash: '' }])).toContain('was made by turnpike 1.0.0')
    expect(of([{ name: '0001_a', hash: '' }])).toContain('is not the one that was applied')
  })

  test('error: a newer or a changed database is refused', () => {
    db.sqlite.run("INSERT INTO migrations VALUES ('0999_future', 'x', 1)")
    db.close()
    expect(() => open({ dataDir: directory.path, now })).toThrow(MigrationError)
    const sqlite = new Database(':memory:')
    migrate(sqlite, 1, [{ name: '0001_a', sql: 'CREATE TABLE a (x)' }])
    expect(() => migrate(sqlite, 1, [{ name: '0001_a', sql: 'CREATE TABLE a (y)' }])).toThrow(
      'is not the one that was applied',
    )
    expect(() =>
      migrate(sqlite, 1, [
        { name: '0001_a', sql: 'CREATE TABLE a (x)' },
        { name: '0002_b', sql: 'CREATE TABLE b (x); CREATE TABLE a (x)' },
      ]),
    ).toThrow('already exists')
    expect(sqlite.query("SELECT name FROM sqlite_master WHERE name = 'b'").all()).toEqual([])
  })
})

describe('write', () => {
  test('error: a throw or a promise rolls everything back', () => {
    const attempt = (end: () => undefined) => () =>
      write(db, () => {
        insert()
        return end()
      })
    expect(
      attempt(() => {
        throw new Error('no')
      }),
    ).toThrow('no')
    // @ts-expect-error the type refuses a promise as well
    expect(() => write(db, async () => insert())).toThrow('must not wait')
    expect(db.sqlite.query('SELECT * FROM payments').all()).toEqual([])
  })

  test('a duplicate is distinguished from other faults', () => {
    insert()
    const fault = (run: () => void): unknown => {
      try {
        run()
        return undefined
      } catch (error) {
        return error
      }
    }
    expect(isDuplicate(fault(() => insert({ id: 'pay_2' })))).toBe(true)
    expect(isDuplicate(fault(() => insert({ id: 'pay_2', state: 'x' })))).toBe(false)
  })
})

describe('the tables', () => {
  test('error: the same money is refused a second time, in upper and lower case', () => {
    insert()
    const payer = String(payment.payer).toLowerCase()
    expect(() => insert({ id: 'pay_2', payer })).toThrow('UNIQUE')
    insert({ id: 'pay_3', network: 'eip155:8453', chain_id: 8453 })
  })

  test('error: one Transfer log pays once', () => {
    insert(confirmed)
    expect(() => insert({ ...confirmed, id: 'pay_2', nonce: hash('2') })).toThrow('UNIQUE')
    insert({ ...confirmed, id: 'pay_2', nonce: hash('2'), log_index: 1 })
  })

  const impossible: [string, Record<string, string | number | null>][] = [
    ['an unknown state', { state: 'paid' }],
    ['confirmed without a log', { ...confirmed, log_index: null }],
    ['confirmed without a block', { ...confirmed, block_number: null }],
    ['confirmed without a time', { ...confirmed, confirmed_at: null }],
    ['a log of what is not confirmed', { log_index: 1 }],
    ['a short transaction hash', { transaction_hash: '0xabc' }],
    ['an amount of nothing', { amount_atomic: '0' }],
    ['an amount with a leading zero', { amount_atomic: '05' }],
    ['an amount in hex', { amount_atomic: '0x5' }],
    ['a negative amount', { amount_atomic: '-5' }],
    ['a nonce in capitals', { nonce: hash('A') }],
    ['a network of another chain', { chain_id: 1 }],
    ['a payer that is no address', { payer: 'alice' }],
    ['delivered without a time', { ...confirmed, delivery: 'delivered', attempts: 1 }],
    ['delivering without an attempt', { ...confirmed, delivery: 'delivering' }],
    ['a redeem token for ever', { redeem_token_hash: 'x' }],
    ['a flag of two', { bound: 2 }],
  ]
  for (const [name, changes] of impossible) {
    test(`error: ${name} cannot be written`, () => {
      expect(() => insert(changes)).toThrow('CHECK')
    })
  }

  test('error: a sent transaction has a time, an included one a block, a nonce one winner', () => {
    const put = (digit: string, state: string, sentAt: number | null, block: number | null) =>
      db.sqlite.run(
        `INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw, gas_limit,
         max_fee_wei, max_tip_wei, state, created_at, first_sent_at, block_number)
         VALUES (?, 'eip155:4663', ?, 0, 'payment', 'gateway', ?, '0x02', '1', '1', '1', ?, 1, ?, ?)`,
        [hash(digit), String(payment.payer), String(payment.asset), state, sentAt, block],
      )
    expect(() => put('1', 'sent', null, null)).toThrow('CHECK')
    expect(() => put('1', 'signed', 1, null)).toThrow('CHECK')
    expect(() => put('1', 'mined', 1, null)).toThrow('CHECK')
    expect(() => put('1', 'sent', 1, 5)).toThrow('CHECK')
    put('1', 'mined', 1, 5)
    expect(() => put('2', 'failed', 1, 5)).toThrow('UNIQUE')
    put('2', 'replaced', 1, null)
    expect(() =>
      db.sqlite.run("INSERT INTO transaction_members VALUES (?, 0, 'pay_none')", [hash('1')]),
    ).toThrow('FOREIGN KEY')
  })

  test('a transaction that no longer carries a payment cannot revert or renew it', () => {
    insert()
    const store = createPayments(db)
    const [older, newer] = [hash('b'), hash('a')] as [`0x${string}`, `0x${string}`]
    expect(store.renew('pay_1', hash('c') as `0x${string}`, [older])).toBe(false)
    expect(store.revert('pay_1', [older])).toBe(false)
    expect(store.find(money)?.state).toBe('broadcast')
    expect(store.revert('pay_1', [older, newer])).toBe(true)
  })

  test('merchants mirror the configuration', async () => {
    const row = { slug: 'a', title: 'A', hash: '1', json: '{}' }
    const { replace } = createOffers(db)
    const ended = { ended: [], keptFrom: 0 }
    await replace({ merchants: [row, { ...row, slug: 'b' }], ...ended, now: 1 })
    await replace({ merchants: [row, { ...row, slug: 'c' }], ...ended, now: 2 })
    expect(db.sqlite.query('SELECT slug, updated_at FROM merchants ORDER BY slug').all()).toEqual([
      { slug: 'a', updated_at: 1 },
      { slug: 'c', updated_at: 2 },
    ])
  })
  test('a log that is made long at once holds nothing, and loses nothing', async () => {
    insert()
    const log = () => statSync(`${db.file}-wal`).size
    const before = log()
    db.reserveLog()
    expect(log()).toBeGreaterThan(before + 10_000_000)
    const reserved = log()
    const store = createPayments(db)
    expect(store.find(money)?.state).toBe('broadcast')
    insert({ id: 'pay_2', nonce: hash('2'), transaction_hash: hash('b') })
    // As after kill -9: the copy has the log as it stands.
    const copy = temporary()
    for (const end of ['', '-wal']) copyFileSync(db.file + end, join(copy.path, `x${end}`))
    const other = new Database(join(copy.path, 'x'))
    const tables = "SELECT count(*) n FROM sqlite_master WHERE name = 'reserve'"
    expect(other.query('SELECT id FROM payments ORDER BY id').values()).toEqual([
      ['pay_1'],
      ['pay_2'],
    ])
    expect(other.query(tables).values()).toEqual([[0]])
    expect(other.query('PRAGMA integrity_check').values()).toEqual([['ok']])
    other.close()
    copy.remove()
    expect(log()).toBe(reserved)
  })
})
