import {
  type About,
  type Applied,
  hashOf,
  type Migration,
  misfit,
  pendingOf,
  programKey,
  type Schema,
} from '../schemas'
import tables from './migrations/0001_tables.sql' with { type: 'text' }
import rules from './migrations/0002_rules.sql' with { type: 'text' }
import gateways from './migrations/0003_gateways.sql' with { type: 'text' }
import shared from './migrations/0004_shared.sql' with { type: 'text' }
import quickChecks from './migrations/0005_quick_checks.sql' with { type: 'text' }
import rulesAsFunctions from './migrations/0006_rules_as_functions.sql' with { type: 'text' }
import quickRules from './migrations/0007_quick_rules.sql' with { type: 'text' }
import shorterRules from './migrations/0008_shorter_rules.sql' with { type: 'text' }
import failedOrders from './migrations/0009_failed_orders.sql' with { type: 'text' }

/**
 * In order. Embedded as text, so that the compiled binary contains them. They only add, because
 * gateways of the version before may serve while they run.
 */
export const migrations: readonly Migration[] = [
  { name: '0001_tables', sql: tables },
  { name: '0002_rules', sql: rules },
  { name: '0003_gateways', sql: gateways },
  { name: '0004_shared', sql: shared },
  { name: '0005_quick_checks', sql: quickChecks },
  { name: '0006_rules_as_functions', sql: rulesAsFunctions },
  { name: '0007_quick_rules', sql: quickRules },
  { name: '0008_shorter_rules', sql: shorterRules },
  { name: '0009_failed_orders', sql: failedOrders },
]

/** A connection that nothing else uses meanwhile, such as a `Client` of `pg`. */
export type MigrationClient = {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

export type MigrateOptions = About & { list?: readonly Migration[] }

/** Serialises the migrations of gateways that start together. A number of this program. */
const migrating = 7_408_120

/** Reads what a database is. It has no `last` before its first migration. */
export async function schemaOf(client: MigrationClient): Promise<Schema> {
  const known = await knownOf(client)
  const program = (await hasTable(client, 'meta'))
    ? await all<{ value: string }>(client, 'SELECT value FROM meta WHERE key = $1', [programKey])
    : []
  return { last: known.at(-1)?.name, program: program[0]?.value }
}

/** Notes which program opens the database, for the message of an older one. */
export async function noteProgram(client: MigrationClient, program: string): Promise<void> {
  await client.query(
    `INSERT INTO meta (key, value) VALUES ($1, $2)
     ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE meta.value <> excluded.value`,
    [programKey, program],
  )
}

/**
 * Brings the schema up to date, each pending migration in a transaction of its own. Of several
 * gateways one applies it, and the others wait. Returns the names of those that this call applied.
 * Throws `MigrationError` when the database does not fit this program; nothing is changed then.
 */
export async function migrate(
  client: MigrationClient,
  now: number,
  { list = migrations, ...about }: MigrateOptions = {},
): Promise<string[]> {
  const pendingNow = async () =>
    pendingOf(await knownOf(client), list, await schemaOf(client), about)
  // A start of a service whose database is up to date waits for nothing.
  if ((await pendingNow()).length === 0) return []
  const applied: string[] = []
  for (;;) {
    const name = await locked(client, async () => {
      // Read under the lock: another gateway may have been faster.
      const [next] = await pendingNow()
      if (next === undefined) return undefined
      await client.query(next.sql)
      await client.query('INSERT INTO migrations (name, hash, applied_at) VALUES ($1, $2, $3)', [
        next.name,
        hashOf(next.sql),
        now,
      ])
      return next.name
    })
    if (name === undefined) return applied
    applied.push(name)
  }
}

/** Runs `change` in a transaction that has the lock of migrations. */
async function locked<T>(client: MigrationClient, change: () => Promise<T>): Promise<T> {
  await client.query('BEGIN')
  try {
    // A migration may take longer than a statement.
    await client.query('SET LOCAL statement_timeout = 0')
    await client.query('SELECT pg_advisory_xact_lock($1)', [migrating])
    await client.query(
      `CREATE TABLE IF NOT EXISTS migrations
       (name text COLLATE "C" PRIMARY KEY, hash text NOT NULL, applied_at bigint NOT NULL)`,
    )
    const result = await change()
    await client.query('COMMIT')
    return result
  } catch (error) {
    // A lost connection has rolled back already.
    await client.query('ROLLBACK').catch(() => undefined)
    throw error
  }
}

/**
 * Why a command cannot use a database as it is, because a program of another version made it;
 * undefined when its schema is that of this program. Changes nothing.
 */
export async function misfitOf(
  client: MigrationClient,
  about: About = {},
): Promise<string | undefined> {
  return misfit(await schemaOf(client), migrations, about)
}

async function knownOf(client: MigrationClient): Promise<readonly Applied[]> {
  if (!(await hasTable(client, 'migrations'))) return []
  return all<Applied>(client, 'SELECT name, hash FROM migrations ORDER BY name')
}

async function hasTable(client: MigrationClient, name: string): Promise<boolean> {
  const [row] = await all<{ found: boolean }>(
    client,
    'SELECT to_regclass($1) IS NOT NULL AS found',
    [name],
  )
  return row?.found === true
}

async function all<Row>(
  client: MigrationClient,
  text: string,
  values: unknown[] = [],
): Promise<readonly Row[]> {
  const { rows } = await client.query(text, values)
  return rows as Row[]
}
