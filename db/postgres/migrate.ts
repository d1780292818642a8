import * as Crypto from '../../src/protocol/Crypto'
import type { Upgrade } from '../Database'
import {
  type About,
  type Applied,
  lastMigrationOf,
  type Migration,
  MigrationError,
  misfit,
  pendingOf,
  programKey,
  type Schema,
} from '../schemas'
import type { Query } from './Line'
import shared from './migrations/0001_shared_ledger.sql' with { type: 'text' }
import { DatabaseStartError } from './reach'

/**
 * In order. Embedded as text, so that the compiled binary contains them. They only add, because
 * gateways of the version before may serve while they run.
 */
export const migrations: readonly Migration[] = [{ name: '0001_shared_ledger', sql: shared }]

type MigrateOptions = About & { list?: readonly Migration[] }

/** Serialises the migrations of gateways that start together. A number of this program. */
const migrating = 7_408_120

/** Reads what a database is. */
async function schemaOf(query: Query): Promise<Schema> {
  const applied = (await hasTable(query, 'migrations'))
    ? await query<Applied>('SELECT name, hash FROM migrations ORDER BY name')
    : []
  const program = (await hasTable(query, 'meta'))
    ? await query<{ value: string }>('SELECT value FROM meta WHERE key = $1', [programKey])
    : []
  return { applied, program: program[0]?.value }
}

/** Notes which program opens the database, for the message of an older one. */
export async function noteProgram(query: Query, program: string): Promise<void> {
  await query(
    `INSERT INTO meta (key, value) VALUES ($1, $2)
     ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE meta.value <> excluded.value`,
    [programKey, program],
  )
}

type UpgradeOptions = {
  /** Hosts and name of the database. */
  name: string
  /** Unix ms. */
  now: number
  /** The version of this program, which the database keeps. */
  program: string | undefined
}

/**
 * Brings a database up to date. Returns what was done; undefined when it was new or up to date. Throws
 * `DatabaseStartError` when another program has made it; then nothing was changed.
 */
export async function upgrade(
  query: Query,
  { name, program, now }: UpgradeOptions,
): Promise<Upgrade | undefined> {
  const from = lastMigrationOf(await schemaOf(query))
  const applied = await migrate(query, now, { file: `the database ${name}`, program }).catch(
    (error: unknown) => {
      if (error instanceof MigrationError) throw new DatabaseStartError(error.message)
      throw error
    },
  )
  if (program !== undefined) await noteProgram(query, program)
  if (from === undefined || applied.length === 0) return undefined
  return { from, to: migrations.at(-1)?.name ?? '', applied }
}

/**
 * Applies each pending migration in a transaction of its own. Of several
 * gateways one applies it, and the others wait. Returns the names of those that this call applied.
 * Throws `MigrationError` when the database does not fit this program; nothing is changed then.
 */
export async function migrate(
  query: Query,
  now: number,
  { list = migrations, ...about }: MigrateOptions = {},
): Promise<string[]> {
  const pendingNow = async () => pendingOf(await schemaOf(query), list, about)
  // A start of a service whose database is up to date waits for nothing.
  if ((await pendingNow()).length === 0) return []
  const applied: string[] = []
  for (;;) {
    const name = await locked(query, async () => {
      // Read under the lock: another gateway may have been faster.
      const [next] = await pendingNow()
      if (next === undefined) return undefined
      await query(next.sql)
      await query('INSERT INTO migrations (name, hash, applied_at) VALUES ($1, $2, $3)', [
        next.name,
        Crypto.sha256(next.sql),
        now,
      ])
      return next.name
    })
    if (name === undefined) return applied
    applied.push(name)
  }
}

/** Runs `change` in a transaction that has the lock of migrations. */
async function locked<T>(query: Query, change: () => Promise<T>): Promise<T> {
  await query('BEGIN')
  try {
    // A migration may take longer than a statement.
    await query('SET LOCAL statement_timeout = 0')
    await query('SELECT pg_advisory_xact_lock($1)', [migrating])
    await query(
      `CREATE TABLE IF NOT EXISTS migrations
       (name text COLLATE "C" PRIMARY KEY, hash text NOT NULL, applied_at bigint NOT NULL)`,
    )
    const result = await change()
    await query('COMMIT')
    return result
  } catch (error) {
    // A lost connection has rolled back already.
    await query('ROLLBACK').catch(() => undefined)
    throw error
  }
}

/**
 * Why a command cannot use a database as it is, because a program of another version made it;
 * undefined when its schema is that of this program. Changes nothing.
 */
export async function misfitOf(query: Query, about: About = {}): Promise<string | undefined> {
  return misfit(await schemaOf(query), migrations, about)
}

async function hasTable(query: Query, name: string): Promise<boolean> {
  const [row] = await query<{ found: boolean }>('SELECT to_regclass($1) IS NOT NULL AS found', [
    name,
  ])
  return row?.found === true
}
