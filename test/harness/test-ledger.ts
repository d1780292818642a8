import { Database as Sqlite } from 'bun:sqlite'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Database } from '../../db/Database'
import type { Ledger } from '../../db/Ledger'
import type { Times } from '../../db/postgres/gateways'
import { databaseName } from '../../db/sqlite/directory'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open, openInMemory } from '../../db/sqlite/open'
import type { ServerContext } from '../../src/app/options'
import type { Secrets } from '../../src/config/env'
import { placeDatabase } from './database'
import { postgresSql, type Sql, sqliteSql } from './sql'

/**
 * The ledger of a test: SQLite, or with TURNPIKE_TEST_LEDGER=postgres a PostgreSQL database of which
 * this process is one gateway. `bun run test:postgres` runs the tests of money with it.
 */
export const isPostgres = process.env.TURNPIKE_TEST_LEDGER === 'postgres'

/** On a busy machine a gateway may be late: none may count as dead for that. */
const times: Partial<Times> = { deadMs: 60_000, steadyMs: 60_000, gapMs: 30_000, freshMs: 45_000 }
/** For the same reason. */
const answerMs = 60_000

/** The ledger of one process, or what stands for it. */
export type OpenedLedger = { ledger: Ledger; close(): Promise<void> }

export type TestLedger = {
  sql: Sql
  /** SQLite's own; a test that needs it is not one of both ledgers. */
  readonly db: Db
  /** The ledger of a process that starts now; the one before has closed its own. */
  open(): Promise<OpenedLedger>
  /** Ends everything that is still open, and removes the rows unless a directory keeps them. */
  close(): Promise<void>
}

type Options = {
  now: () => number
  /** Keeps the rows; memory without it. */
  dataDir?: string | undefined
}

export async function createTestLedger({ now, dataDir }: Options): Promise<TestLedger> {
  if (isPostgres) return createPostgres({ now, dataDir })
  if (dataDir !== undefined) placeDatabase(dataDir)
  const db = dataDir === undefined ? openInMemory({ now }) : open({ dataDir, now })
  return {
    sql: sqliteSql(db.sqlite),
    db,
    // The rows outlive it, because the connection is the test's.
    open: async () => ({ ledger: createLedger(db), close: async () => undefined }),
    close: async () => db.close(),
  }
}

async function createPostgres({ now, dataDir }: Options): Promise<TestLedger> {
  const [{ startGateway }, { gatewayDatabase }] = await Promise.all([
    import('./gateway-pair'),
    import('./postgres'),
  ])
  const url = dataDir === undefined ? await gatewayDatabase() : await databaseOf(dataDir)
  const sql = postgresSql(url)
  const opened: OpenedLedger[] = []
  return {
    sql,
    get db(): Db {
      return notSqlite()
    },
    async open() {
      const { ledger, leave } = await startGateway(url, { now, times, answerMs })
      const one = { ledger, close: leave }
      opened.push(one)
      return one
    },
    async close() {
      for (const each of opened) await each.close()
      sql.close()
      if (dataDir === undefined) await drop(url)
    },
  }
}

export function notSqlite(): never {
  throw new Error('this test is about SQLite: run it without TURNPIKE_TEST_LEDGER')
}

const nameOfUrl = 'postgres-url'

/** URL of the database that stands for the file in a data directory, also in other processes. */
export async function databaseOf(dataDir: string): Promise<string> {
  const file = join(dataDir, nameOfUrl)
  const { gatewayDatabase } = await import('./postgres')
  if (!existsSync(file)) writeFileSync(file, await gatewayDatabase())
  return readFileSync(file, 'utf8')
}

/** Drops the database of a directory that is removed. Resolves also when there is none. */
export function dropDatabaseOf(dataDir: string): Promise<void> {
  return dropOf(dataDir)()
}

/** What removes the database of a directory, even when the directory is gone by then. */
export function dropOf(dataDir: string): () => Promise<void> {
  const file = join(dataDir, nameOfUrl)
  const url = existsSync(file) ? readFileSync(file, 'utf8') : undefined
  return async () => {
    if (url !== undefined) await drop(url)
  }
}

async function drop(url: string): Promise<void> {
  const { dropDatabase } = await import('./postgres')
  await dropDatabase(url)
}

/** Gives a data directory its database, for the processes that a test starts. */
export async function prepareLedger(dataDir: string): Promise<void> {
  if (isPostgres) await databaseOf(dataDir)
}

/**
 * Environment in which the program itself serves from the database of a data directory, beside that
 * of every ledger.
 */
export async function programEnv(dataDir: string): Promise<Record<string, string>> {
  if (!isPostgres) return {}
  const file = join(dataDir, nameOfUrl)
  mkdirSync(dataDir, { recursive: true })
  const { durableDatabase } = await import('./postgres')
  if (!existsSync(file)) writeFileSync(file, await durableDatabase())
  return {
    DATABASE_URL: readFileSync(file, 'utf8'),
    CHALLENGE_SECRETS: '11'.repeat(32),
    RECEIPT_KEY: '22'.repeat(32),
    ADMIN_TOKEN: 'an-admin-token-of-mine',
  }
}

/** Environment in which a command finds the database of a data directory. */
export function commandEnv(dataDir: string): Record<string, string> {
  return isPostgres ? { DATABASE_URL: readFileSync(join(dataDir, nameOfUrl), 'utf8') } : {}
}

/**
 * Removes the gateways of a directory whose processes have all ended, so that a test need not wait ten
 * seconds for another gateway to do it.
 */
export function bury(dataDir: string): void {
  if (!isPostgres) return
  const sql = sqlBeside(dataDir)
  // A program that did not start has made no table.
  const table = sql.query<{ name: string | null }>("SELECT to_regclass('gateways')::text AS name")
  if (table.get()?.name) sql.run('DELETE FROM gateways')
  sql.close()
}

/** What a service opens in place of the file in its data directory. */
export async function openTestServer(
  { dataDir, ...context }: ServerContext,
  secrets: Secrets,
): Promise<Database> {
  const [{ openPostgres }, Url] = await Promise.all([
    import('../../db/postgres/open'),
    import('../../db/postgres/Url'),
  ])
  return openPostgres({
    ...context,
    dataDir,
    secrets,
    target: Url.parse(await databaseOf(dataDir)),
    warn: () => undefined,
    onFenced: () => undefined,
    // A cluster of tests does not wait for the disk, and tests move one clock without the others.
    tests: { acceptsLoss: true, acceptsSkew: true, times, answerMs },
  })
}

/** The database of a data directory, which was opened before, as another process sees it. */
export function sqlBeside(dataDir: string, { isReader = false } = {}): Sql & { close(): void } {
  if (isPostgres) return postgresSql(readFileSync(join(dataDir, nameOfUrl), 'utf8'))
  const sqlite = new Sqlite(join(dataDir, databaseName), isReader ? { readonly: true } : undefined)
  sqlite.run('PRAGMA busy_timeout = 5000')
  return { ...sqliteSql(sqlite), close: () => sqlite.close() }
}

/** Makes each write of this kind fail, until the returned function is called. */
export function failWrites(sql: Sql, kind: 'INSERT' | 'UPDATE', table: string): () => void {
  const name = `fails_${kind.toLowerCase()}`
  if (isPostgres) {
    sql.run(`CREATE FUNCTION ${name}() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'disk full'; END $$`)
    sql.run(`CREATE TRIGGER ${name} BEFORE ${kind} ON ${table} EXECUTE FUNCTION ${name}()`)
    return () => void sql.run(`DROP TRIGGER ${name} ON ${table}`)
  }
  sql.run(
    `CREATE TRIGGER ${name} BEFORE ${kind} ON ${table} BEGIN SELECT RAISE(ABORT, 'disk full'); END`,
  )
  return () => void sql.run(`DROP TRIGGER ${name}`)
}

/**
 * Makes changes of payments fail with the error of a full disk; in SQLite it makes all writes fail.
 */
export function fillDisk(sql: Sql): () => void {
  if (isPostgres) return failWrites(sql, 'UPDATE', 'payments')
  sql.run('PRAGMA query_only = ON')
  return () => void sql.run('PRAGMA query_only = OFF')
}

/** Changes rows as another process does. */
export function tamper(dataDir: string, text: string, values?: string[]): void {
  const sql = sqlBeside(dataDir)
  try {
    sql.run(text, values)
  } finally {
    sql.close()
  }
}
