import { Database } from 'bun:sqlite'
import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLedger } from '../db/sqlite/ledger'
import { migrate, migrations } from '../db/sqlite/migrate'
import { type Db, databaseName, open } from '../db/sqlite/open'
import { fill, read, sumsOf } from './harness/oldrows'
import { temporary } from './harness/settlement'

/** Databases of earlier schemas: opened, copied, migrated and checked. */

const start = Date.UTC(2026, 0, 2, 3, 4, 5)
const now = () => start
let directory: ReturnType<typeof temporary>
let db: Db | undefined

beforeEach(() => {
  directory = temporary()
})
afterEach(() => {
  db?.close()
  db = undefined
  directory.remove()
})

const newest = migrations.at(-1)?.name ?? ''
const extra = (sql: string) => [...migrations, { name: '9998_extra', sql }]
const path = (name = databaseName) => join(directory.path, name)
const copies = () => readdirSync(directory.path).filter((name) => name.includes('.backup'))

/** A database whose last migration is number `count`, with rows. */
function writeOld(count: number): ReturnType<typeof read> {
  mkdirSync(directory.path, { recursive: true })
  const old = new Database(path(), { create: true })
  migrate(old, 1, migrations.slice(0, count))
  fill(old)
  expect(old.query('PRAGMA foreign_key_check').all()).toEqual([])
  const rows = read(old)
  old.close()
  return rows
}

function reopen(options: { program?: string; list?: typeof migrations; at?: number } = {}): Db {
  db?.close()
  const { at = start, ...rest } = options
  db = open({ dataDir: directory.path, now: () => at, ...rest })
  return db
}

/** What was read before, with what the later migrations mean to change. */
function expected(before: ReturnType<typeof read>): ReturnType<typeof read> {
  const after = new Map(before)
  after.set(
    'transactions',
    (before.get('transactions') ?? []).map((row) =>
      row.state === 'signed'
        ? { ...row, state: 'sent', first_sent_at: row.created_at ?? null }
        : row,
    ),
  )
  return after
}

const isBefore = (name: string, count: number) =>
  migrations.findIndex((migration) => migration.name === name) >= count

describe.each(migrations.slice(0, -1).map(({ name }, index) => [name, index + 1] as const))(
  'a database whose last migration is %s',
  (name, count) => {
    test('behavior: an upgrade copies and migrates the database, and keeps each row and sum of money', () => {
      const before = writeOld(count)
      const { sqlite, upgrade } = reopen({ program: '2.0.0' })
      expect(upgrade).toMatchObject({ from: name, to: newest })
      expect(upgrade?.applied).toEqual(migrations.slice(count).map((each) => each.name))
      const wanted = isBefore('0013_transactions_sent', count) ? expected(before) : before
      const found = read(sqlite)
      for (const [table, rows] of wanted) {
        const kept = found.get(table) ?? []
        if (table === 'meta') expect(kept).toContainEqual({ key: 'program', value: '2.0.0' })
        const all = table === 'meta' ? kept.filter(({ key }) => key !== 'program') : kept
        expect([table, all.length]).toEqual([table, rows.length])
        for (const [index, row] of rows.entries()) expect(all[index]).toMatchObject(row)
      }
      // A column of money that is new has its default, which is nothing.
      const sums = sumsOf(found)
      for (const [column, sum] of sumsOf(wanted))
        expect([column, sums.get(column)]).toEqual([column, sum])
      expect(sumsOf(wanted).get('payments.amount_atomic')).toBe(123456789014353478n)

      const copy = upgrade?.backup ?? ''
      expect(copy).toStartWith(`${path()}.backup-${name.slice(0, 4)}-`)
      expect(statSync(copy).mode & 0o777).toBe(0o600)
      const saved = new Database(copy, { readonly: true })
      expect(read(saved)).toEqual(before)
      expect(saved.query('PRAGMA integrity_check').values()).toEqual([['ok']])
      saved.close()
    })

    test('behavior: an upgraded database has the schema, the checks and the triggers of a new one', async () => {
      writeOld(count)
      const opened = reopen()
      const { sqlite } = opened
      expect(sqlite.query('PRAGMA integrity_check').values()).toEqual([['ok']])
      expect(sqlite.query('PRAGMA foreign_key_check').all()).toEqual([])
      const other = temporary()
      const fresh = open({ dataDir: other.path, now })
      const schema = 'SELECT type, name, sql FROM sqlite_schema ORDER BY type, name'
      expect(sqlite.query(schema).all()).toEqual(fresh.sqlite.query(schema).all())
      expect(fresh.upgrade).toBeUndefined()
      expect(readdirSync(other.path).filter((each) => each.includes('backup'))).toEqual([])
      fresh.close()
      other.remove()
      const refused: readonly (readonly [sql: string, why: string])[] = [
        ["UPDATE payments SET amount_atomic = '0'", 'payments_amount'],
        ["UPDATE payments SET network = 'eip155:1'", 'payments_network'],
        ['UPDATE payments SET nonce = (SELECT nonce FROM payments LIMIT 1)', 'UNIQUE'],
        ["DELETE FROM payments WHERE id = 'pay_delivered'", 'FOREIGN KEY'],
        ["UPDATE transactions SET state = 'paid'", 'transactions_state'],
        ["UPDATE gas_spent SET wei = '-1'", 'gas_spent_wei'],
      ]
      const later: typeof refused = [
        ['DELETE FROM orders', 'an order is never deleted'],
        ["UPDATE orders SET state = 'settled'", 'does not change its state like that'],
        ["UPDATE orders SET usdg_atomic = '1'", 'agreed on does not change'],
      ]
      const hasOrders = !isBefore('0005_orders', count)
      for (const [sql, why] of [...refused, ...(hasOrders ? later : [])])
        expect(() => sqlite.run(sql)).toThrow(why)
      // The program of today reads what was written.
      const { payments } = createLedger(opened)
      expect(await payments.findById('pay_redeemable')).toMatchObject({
        state: 'confirmed',
        attempts: 2,
      })
    })
  },
)

const count = migrations.length

describe('an upgrade', () => {
  test('behavior: upgrades keep the two newest copies, which name schema, program and time', () => {
    writeOld(count)
    reopen({ program: '1.4.0-rc.1+3' })
    const list: { name: string; sql: string }[] = [...migrations]
    for (const step of [0, 1, 2]) {
      list.push({ name: `999${step}_x`, sql: `CREATE TABLE x${step} (a)` })
      reopen({ program: `2.${step}.0`, list: [...list], at: start + step * 1000 })
    }
    expect(copies().sort()).toEqual([
      `${databaseName}.backup-9990-2.0.0-20260102T030406000Z`,
      `${databaseName}.backup-9991-2.1.0-20260102T030407000Z`,
    ])
    // Files of the operator that look alike stay.
    writeFileSync(path(`${databaseName}.backup-mine`), '')
    list.push({ name: '9993_x', sql: 'CREATE TABLE x3 (a)' })
    reopen({ program: '3', list, at: start + 9000 })
    expect(copies().sort()).toEqual([
      `${databaseName}.backup-9991-2.1.0-20260102T030407000Z`,
      `${databaseName}.backup-9992-2.2.0-20260102T030414000Z`,
      `${databaseName}.backup-mine`,
    ])
  })

  test('behavior: a restored copy is the database from before, and is migrated again', () => {
    const before = writeOld(count - 1)
    const copy = reopen().upgrade?.backup ?? ''
    db?.close()
    for (const end of ['', '-wal', '-shm']) rmSync(path(databaseName + end), { force: true })
    renameSync(copy, path())
    const old = new Database(path(), { readonly: true })
    expect(read(old)).toEqual(before)
    old.close()
    expect(reopen({ at: start + 1 }).upgrade?.from).toBe(migrations.at(-2)?.name ?? '')
  })

  test('error: a migration that fails changes nothing, and leaves no copy', () => {
    const before = writeOld(count)
    const failing = extra("UPDATE payments SET amount_atomic = '0'")
    expect(() => reopen({ list: failing })).toThrow('payments_amount')
    const orphans = extra(
      'DELETE FROM answers; PRAGMA defer_foreign_keys = ON; DELETE FROM payments',
    )
    expect(() => reopen({ list: orphans })).toThrow()
    expect(copies()).toEqual([])
    const { sqlite, upgrade } = reopen()
    expect(upgrade).toBeUndefined()
    expect(read(sqlite)).toEqual(before)
  })

  test('error: a migration that leaves rows with missing references is refused', () => {
    writeOld(count)
    const sqlite = new Database(path())
    sqlite.run('PRAGMA foreign_keys = OFF')
    expect(() => migrate(sqlite, 1, extra("DELETE FROM payments WHERE id = 'pay_order'"))).toThrow(
      'without what they name: start the turnpike that you ran before',
    )
    expect(sqlite.query("SELECT id FROM payments WHERE id = 'pay_order'").all()).toHaveLength(1)
    sqlite.close()
  })

  test('behavior: the files of a killed upgrade are removed by the next one', () => {
    writeOld(count - 1)
    for (const end of ['', '-journal'])
      writeFileSync(path(`${databaseName}.backup-0001-20250101T000000000Z.partial${end}`), 'x')
    reopen()
    expect(copies()).toHaveLength(1)
    expect(copies()[0]).not.toContain('partial')
  })

  test('error: a newer database is refused by the name of the program that made it', () => {
    writeOld(count)
    reopen({ program: '2.0.0', list: extra('CREATE TABLE x (a)') })
    expect(() => reopen({ program: '1.9.0' })).toThrow(
      `${path()} was made by turnpike 2.0.0 (schema 9998_extra); this is turnpike 1.9.0 and knows ` +
        `schema ${newest}: start turnpike 2.0.0 or a newer one, or restore a copy from before the upgrade`,
    )
    // It stays the database of the newer program.
    const { sqlite } = reopen({ program: '2.0.1', list: extra('CREATE TABLE x (a)') })
    expect(sqlite.query("SELECT value FROM meta WHERE key = 'program'").values()).toEqual([
      ['2.0.1'],
    ])
  })

  test('error: without the name of a program the schemas are named', () => {
    writeOld(count)
    reopen({ list: extra('CREATE TABLE x (a)') })
    expect(() => reopen()).toThrow(
      `was made by a newer turnpike (schema 9998_extra); this turnpike knows schema ${newest}`,
    )
    const changed = migrations.map((each, index) => (index === 0 ? { ...each, sql: 'x' } : each))
    expect(() => reopen({ list: changed })).toThrow(
      `the migration 0001_payments of ${path()} is not the one that was applied: start the turnpike ` +
        'that made it',
    )
  })

  const canMount =
    process.platform === 'linux' &&
    Bun.spawnSync(['unshare', '-rm', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'], {
      stderr: 'ignore',
    }).success
  test.if(canMount)('error: a full disk refuses the start and changes nothing', async () => {
    const before = writeOld(count - 1)
    const sqlite = new Database(path())
    sqlite.run("INSERT INTO meta VALUES ('long', ?)", ['x'.repeat(300_000)])
    sqlite.close()
    const size = statSync(path()).size
    const disk = join(directory.path, 'disk')
    mkdirSync(disk)
    // Room for the database and its log, not for a copy.
    const program = `
      const { open } = await import(${JSON.stringify(join(import.meta.dir, '../db/sqlite/open.ts'))})
      try { open({ dataDir: '.', now: () => ${start} }); console.log('opened') }
      catch (error) { console.log(error.name + ': ' + error.message) }`
    writeFileSync(path('open.ts'), program)
    const script = `mount -t tmpfs -o size=${size + 200_000} tmpfs ${disk} && cd ${disk} &&
      cp ../${databaseName} . && ${process.execPath} ../open.ts && ls && cp ${databaseName} ../after`
    const child = Bun.spawn(['unshare', '-rm', 'sh', '-c', script], {
      cwd: directory.path,
      stderr: 'inherit',
    })
    const [said = '', ...files] = (await child.stdout.text()).trim().split('\n')
    const from = migrations.at(-2)?.name
    expect(said).toBe(
      `UpgradeError: ${databaseName} has schema ${from} and needs ${newest}. It is copied before it ` +
        `is migrated, and ${databaseName} cannot be copied: the disk is full: free space on it and ` +
        'try again. Nothing was changed.',
    )
    expect(files.filter((name) => name.includes('backup'))).toEqual([])
    const after = new Database(path('after'), { readonly: true })
    const rows = read(after)
    after.close()
    for (const [table, old] of before) if (table !== 'meta') expect(rows.get(table)).toEqual(old)
    expect(rows.get('meta')).toHaveLength(2)
  })
})
