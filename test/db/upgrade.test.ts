import { Database } from 'bun:sqlite'
import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { BesideError } from '../../db/fault'
import { MigrationError } from '../../db/schemas'
import { openLedgerBeside, openSalesBeside } from '../../db/sqlite/beside'
import { databaseName } from '../../db/sqlite/directory'
import { createLedger } from '../../db/sqlite/ledger'
import { migrate, migrations } from '../../db/sqlite/migrate'
import { type Db, open } from '../../db/sqlite/open'
import { fill, read, sumsOf } from '../harness/money-rows'
import { temporary } from '../harness/settlement'

/** Databases of the schema before: opened, copied, migrated and checked. */

const start = Date.UTC(2026, 0, 2, 3, 4, 5)
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
const later = extra(`
  ALTER TABLE payments ADD later text DEFAULT 'added' NOT NULL CHECK (later <> '');
  UPDATE transactions SET state = 'sent', first_sent_at = created_at WHERE state = 'signed'`)
const path = (name = databaseName) => join(directory.path, name)
const copies = () => readdirSync(directory.path).filter((name) => name.includes('.backup'))

/** A database of this program, with rows. */
function writeOld(): ReturnType<typeof read> {
  mkdirSync(directory.path, { recursive: true })
  const old = new Database(path(), { create: true })
  migrate(old, 1)
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

describe('a database of the schema before', () => {
  test('an upgrade copies and migrates the database, and keeps each row and sum of money', async () => {
    const before = writeOld()
    const opened = reopen({ program: '2.0.0', list: later })
    const { sqlite, upgrade } = opened
    expect(upgrade).toMatchObject({ from: newest, to: '9998_extra', applied: ['9998_extra'] })
    const found = read(sqlite)
    for (const [table, rows] of before) {
      const wanted = rows.map((row) => {
        if (table === 'payments') return { ...row, later: 'added' }
        return row.state === 'signed'
          ? { ...row, state: 'sent', first_sent_at: row.created_at ?? null }
          : row
      })
      if (table === 'meta') wanted.push({ key: 'program', value: '2.0.0' })
      expect([table, found.get(table)]).toEqual([table, wanted])
    }
    expect(sumsOf(found)).toEqual(sumsOf(before))
    expect(sumsOf(before).get('payments.amount_atomic')).toBe(123456789014354156n)
    expect(sqlite.query('PRAGMA integrity_check').values()).toEqual([['ok']])
    expect(sqlite.query('PRAGMA foreign_key_check').all()).toEqual([])

    const copy = upgrade?.backup ?? ''
    expect(copy).toStartWith(`${path()}.backup-${newest.slice(0, 4)}-`)
    expect(statSync(copy).mode & 0o777).toBe(0o600)
    const saved = new Database(copy, { readonly: true })
    expect(read(saved)).toEqual(before)
    expect(saved.query('PRAGMA integrity_check').values()).toEqual([['ok']])
    saved.close()
    // The program of today reads what was written.
    const { payments } = createLedger(opened)
    expect(await payments.findById('pay_redeemable')).toMatchObject({
      state: 'confirmed',
      attempts: 2,
    })
  })

  test('an upgraded database has the checks and the triggers of a new one', () => {
    writeOld()
    const { sqlite } = reopen({ list: later })
    const refused: readonly (readonly [sql: string, why: string])[] = [
      ["UPDATE payments SET later = ''", 'CHECK'],
      ["UPDATE payments SET amount_atomic = '0'", 'payments_amount'],
      ["UPDATE payments SET network = 'eip155:1'", 'payments_network'],
      ["UPDATE payments SET ceiling_atomic = '1', method = 'eip3009'", 'payments_ceiling'],
      ['UPDATE payments SET nonce = (SELECT nonce FROM payments LIMIT 1)', 'UNIQUE'],
      ["DELETE FROM payments WHERE id = 'pay_delivered'", 'FOREIGN KEY'],
      ["UPDATE transactions SET state = 'paid'", 'transactions_state'],
      ["UPDATE transactions SET cost_wei = '7' WHERE state = 'sent'", 'transactions_cost'],
      ["UPDATE gas_spent SET wei = '-1'", 'gas_spent_wei'],
      ['DELETE FROM orders', 'an order is never deleted'],
      ["UPDATE orders SET state = 'settled'", 'does not change its state like that'],
      ["UPDATE orders SET usdg_atomic = '1'", 'agreed on does not change'],
    ]
    for (const [sql, why] of refused) expect(() => sqlite.run(sql)).toThrow(why)
  })

  test('error: a database from before the first release is refused, with the way out', () => {
    mkdirSync(directory.path, { recursive: true })
    const old = new Database(path(), { create: true })
    // As the commits of that time left it, in short.
    old.run(`
      CREATE TABLE meta (key text PRIMARY KEY NOT NULL, value text NOT NULL);
      CREATE TABLE payments (id text PRIMARY KEY NOT NULL, amount_atomic text NOT NULL);
      CREATE TABLE transactions (hash text PRIMARY KEY NOT NULL);
      CREATE TABLE migrations (name TEXT PRIMARY KEY NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL);
      INSERT INTO meta VALUES ('program', '0.1.0');
      INSERT INTO payments VALUES ('pay_1', '5000');
      INSERT INTO migrations VALUES ('0001_payments', 'a', 1), ('0018_failed_orders', 'b', 1)`)
    const before = [read(old), old.query('SELECT * FROM migrations').all()]
    old.close()
    const why =
      `${path()} was made by a turnpike from before the first release (schema 0018_failed_orders), and ` +
      'this turnpike cannot read it: sell it out with the turnpike that made it, until no payment and ' +
      'no order is open, or start anew with another directory in --data or an empty database in ' +
      'DATABASE_URL'
    expect(() => reopen({ program: '0.1.0' })).toThrow(new MigrationError(why))
    expect(() => openLedgerBeside({ dataDir: directory.path })).toThrow(new BesideError(why))
    expect(() => openSalesBeside({ dataDir: directory.path })).toThrow(new BesideError(why))
    expect(copies()).toEqual([])
    const after = new Database(path(), { readonly: true })
    expect([read(after), after.query('SELECT * FROM migrations').all()]).toEqual(before)
    after.close()
  })
})

describe('an upgrade', () => {
  test('upgrades keep the two newest copies, which name schema, program and time', () => {
    writeOld()
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

  test('a restored copy is the database from before, and is migrated again', () => {
    const before = writeOld()
    const copy = reopen({ list: later }).upgrade?.backup ?? ''
    db?.close()
    for (const end of ['', '-wal', '-shm']) rmSync(path(databaseName + end), { force: true })
    renameSync(copy, path())
    const old = new Database(path(), { readonly: true })
    expect(read(old)).toEqual(before)
    old.close()
    expect(reopen({ at: start + 1, list: later }).upgrade?.from).toBe(newest)
  })

  test('error: a migration that fails changes nothing, and leaves no copy', () => {
    const before = writeOld()
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
    writeOld()
    const sqlite = new Database(path())
    sqlite.run('PRAGMA foreign_keys = OFF')
    expect(() => migrate(sqlite, 1, extra("DELETE FROM payments WHERE id = 'pay_order'"))).toThrow(
      'without what they name: start the turnpike that you ran before',
    )
    expect(sqlite.query("SELECT id FROM payments WHERE id = 'pay_order'").all()).toHaveLength(1)
    sqlite.close()
  })

  test('the files of a killed upgrade are removed by the next one', () => {
    writeOld()
    for (const end of ['', '-journal'])
      writeFileSync(path(`${databaseName}.backup-0001-20250101T000000000Z.partial${end}`), 'x')
    reopen({ list: later })
    expect(copies()).toHaveLength(1)
    expect(copies()[0]).not.toContain('partial')
  })

  test('error: a newer database is refused by the name of the program that made it', () => {
    writeOld()
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
    writeOld()
    reopen({ list: extra('CREATE TABLE x (a)') })
    expect(() => reopen()).toThrow(
      `was made by a newer turnpike (schema 9998_extra); this turnpike knows schema ${newest}`,
    )
    const changed = migrations.map((each, index) => (index === 0 ? { ...each, sql: 'x' } : each))
    expect(() => reopen({ list: changed })).toThrow(
      `the migration ${newest} of ${path()} is not the one that was applied: start the turnpike ` +
        'that made it',
    )
  })

  const canMount =
    process.platform === 'linux' &&
    Bun.spawnSync(['unshare', '-rm', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'], {
      stderr: 'ignore',
    }).success
  test.if(canMount)('error: a full disk refuses the start and changes nothing', async () => {
    const before = writeOld()
    const sqlite = new Database(path())
    sqlite.run("INSERT INTO meta VALUES ('long', ?)", ['x'.repeat(300_000)])
    sqlite.close()
    const size = statSync(path()).size
    const disk = join(directory.path, 'disk')
    mkdirSync(disk)
    // Room for the database and its log, not for a copy.
    const program = `
      const { open } = await import(${JSON.stringify(join(import.meta.dir, '../../db/sqlite/open.ts'))})
      try { open({ dataDir: '.', now: () => ${start}, list: ${JSON.stringify(later)} }); console.log('opened') }
      catch (error) { console.log(error.name + ': ' + error.message) }`
    writeFileSync(path('open.ts'), program)
    const script = `mount -t tmpfs -o size=${size + 200_000} tmpfs ${disk} && cd ${disk} &&
      cp ../${databaseName} . && ${process.execPath} ../open.ts && ls && cp ${databaseName} ../after`
    const child = Bun.spawn(['unshare', '-rm', 'sh', '-c', script], {
      cwd: directory.path,
      stderr: 'inherit',
    })
    const [said = '', ...files] = (await child.stdout.text()).trim().split('\n')
    expect(said).toBe(
      `UpgradeError: ${databaseName} has schema ${newest} and needs 9998_extra. It is copied before it ` +
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
