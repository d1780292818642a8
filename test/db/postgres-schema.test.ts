import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { getTableConfig } from 'drizzle-orm/sqlite-core'
import { Client } from 'pg'
import { migrate, migrations, misfitOf, noteProgram, upgrade } from '../../db/postgres/migrate'
import { DatabaseStartError } from '../../db/postgres/reach'
import * as authorizations from '../../db/schema'
import * as books from '../../db/schema'
import * as grants from '../../db/schema'
import * as jobs from '../../db/schema'
import * as offers from '../../db/schema'
import * as orders from '../../db/schema'
import * as schema from '../../db/schema'
import * as webhooks from '../../db/schema'
import { MigrationError } from '../../db/schemas'
import { type Db, openInMemory } from '../../db/sqlite/open'
import { emptyDatabase, freshDatabase, hasPostgres, queryOf, use } from '../harness/postgres'
import { impossible, rows } from '../harness/table-rows'

if (!hasPostgres)
  process.stderr.write(
    'SKIPPED: the schema of PostgreSQL needs it (apt-get install --no-install-recommends postgresql)\n',
  )

const tables = [schema.payments, schema.transactions, schema.transactionMembers, schema.answers]
  .map((table) => getTableConfig(table))
  .concat([schema.merchants, schema.gasSpent, schema.meta].map((table) => getTableConfig(table)))
  .concat([authorizations.authorizations, orders.orders].map((table) => getTableConfig(table)))
  .concat([jobs.jobs, jobs.jobTransactions, offers.offers].map((table) => getTableConfig(table)))
  .concat([grants.grants, grants.grantTopUps].map((table) => getTableConfig(table)))
  .concat([books.requests, books.ownAccounts, books.assets].map((table) => getTableConfig(table)))
  .concat(
    [webhooks.webhooks, schema.refunds, schema.channels].map((table) => getTableConfig(table)),
  )
  .concat([schema.entitlements, schema.entitlementUses].map((table) => getTableConfig(table)))
const names = tables.map(({ name }) => name).sort()

const ownTables = ['commits', 'gateways', 'grant_days', 'lanes', 'payer_failures']
const ownColumns = [
  'payments.answering_by',
  'authorizations.authorized_by',
  'channels.reserved_by',
  'entitlement_uses.gateway',
  'payments.delivering_by',
  'transactions.epoch',
  'transactions.seq',
]
const ownIndexes = ['payments_key', 'payments_payer_open', 'authorizations_payer_open'].concat([
  'authorizations_relayer_open',
])
/** Types of PostgreSQL by those of SQLite. */
const types: Readonly<Record<string, string>> = { text: 'text', integer: 'bigint', blob: 'bytea' }

type Column = { name: string; type: string; isRequired: boolean; initial: string | null }
type Index = { name: string; isUnique: boolean; columns: string; literals: string }

describe.skipIf(!hasPostgres)('the schema of PostgreSQL', () => {
  let db: Db
  let client: Client
  beforeAll(async () => {
    db = openInMemory({ now: () => 1 })
    client = new Client({ connectionString: await freshDatabase() })
    await client.connect()
  })
  afterAll(async () => {
    db.close()
    await client.end()
  })

  const ask = async <Row extends object>(text: string, values: unknown[] = []) =>
    (await client.query<Row>(text, values)).rows
  const pragma = <Row>(name: string, of: string) =>
    db.sqlite.query<Row, [string]>(`SELECT * FROM pragma_${name}(?)`).all(of)
  const plain = (value: string | null) => value?.replace(/::\w+$/, '').replaceAll("'", '') ?? null

  test('PostgreSQL has the tables of SQLite, and those that gateways share', async () => {
    const found = await ask<{ name: string }>(
      'SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema()',
    )
    const all = found.map(({ name }) => name).filter((name) => name !== 'migrations')
    expect(all.sort()).toEqual([...names, ...ownTables].sort())
    expect(Object.keys(rows).sort()).toEqual(names)
  })

  const columnsOf = async (table: string): Promise<Column[]> =>
    (
      await ask<Column>(
        `SELECT column_name AS name, data_type AS type, is_nullable = 'NO' AS "isRequired",
           column_default AS initial
         FROM information_schema.columns
         WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position`,
        [table],
      )
    ).map((column) => ({ ...column, initial: plain(column.initial) }))

  for (const { name: table, columns } of tables) {
    test(`${table} has the columns of SQLite's, and own ones may be NULL`, async () => {
      const known = new Map(columns.map((column) => [column.name, column]))
      const expected = pragma<{ name: string; type: string; notnull: 0 | 1; dflt_value: string }>(
        'table_info',
        table,
      ).map(({ name, type, notnull, dflt_value }) => {
        const column = known.get(name)
        const isFlag = column?.dataType === 'boolean'
        const isSum = table === 'gas_spent' && name.endsWith('wei')
        return {
          name,
          type: isFlag
            ? 'boolean'
            : isSum
              ? 'numeric'
              : types[type.split(' ', 1)[0]?.toLowerCase() ?? ''],
          isRequired: notnull === 1,
          initial: plain(dflt_value),
        }
      })
      const found = await columnsOf(table)
      const own = found.filter(({ name }) => ownColumns.includes(`${table}.${name}`))
      const byName = (left: { name: string }, right: { name: string }) =>
        left.name < right.name ? -1 : 1
      expect(found.filter((column) => !own.includes(column)).sort(byName) as unknown).toEqual(
        expected.sort(byName),
      )
      expect(own.filter(({ isRequired }) => isRequired).map(({ name }) => name)).toEqual(
        table === 'transactions' ? ['seq'] : [],
      )
    })

    test(`${table} has the keys and indexes of SQLite's`, async () => {
      const found = (
        await ask<Index & { predicate: string | null }>(
          `SELECT i.indexrelid::regclass::text AS name, i.indisunique AS "isUnique",
             (SELECT string_agg(pg_get_indexdef(i.indexrelid, n, true), ',' ORDER BY n)
              FROM generate_series(1, i.indnkeyatts) AS n) AS columns,
             pg_get_expr(i.indpred, i.indrelid) AS predicate
           FROM pg_index AS i WHERE i.indrelid = $1::regclass`,
          [table],
        )
      ).filter(({ name }) => !ownIndexes.includes(name))
      const shape = ({ isUnique, columns, literals }: Omit<Index, 'name'>) =>
        `${isUnique ? 'unique ' : ''}(${columns}) ${literals}`
      const own = found.map(({ predicate, columns, ...index }) =>
        shape({ ...index, columns: columns.replaceAll('"', ''), literals: literalsOf(predicate) }),
      )
      expect(own.sort()).toEqual(indexesOf(table).map(shape).sort())
      const named = indexesOf(table).filter(({ name }) => !name.startsWith('sqlite_'))
      expect(found.map(({ name }) => name)).toEqual(
        expect.arrayContaining(named.map(({ name }) => name)),
      )
    })

    test(`${table} has the CHECKs of SQLite's, each with a row that it refuses`, async () => {
      // The rules of some tables are in functions, which their only CHECK and a trigger call.
      const found = await ask<{ name: string }>(
        `SELECT conname AS name FROM pg_constraint
         WHERE contype = 'c' AND conrelid = $1::regclass AND conname <> $2
         UNION SELECT (regexp_matches(prosrc, 'IS FALSE THEN\\s+''(\\w+)''', 'g'))[1]
         FROM pg_proc WHERE proname IN ($2, $3)`,
        [table, `${table}_rules`, `${table}_fixed_rules`],
      )
      const config = tables.find(({ name }) => name === table)
      const checks = config?.checks.map(({ name }) => name).sort() ?? []
      expect(found.map(({ name }) => name).sort()).toEqual(checks)
      const tried = Object.entries(impossible).filter(([, [of]]) => of === table)
      expect(tried.map(([name]) => name).sort()).toEqual(checks)
    })
  }

  /** Indexes of a table of SQLite, with that of its primary key. */
  function indexesOf(table: string): Index[] {
    const listed = pragma<{ name: string; unique: 0 | 1 }>('index_list', table).map((index) => {
      const columns = pragma<{ name: string; coll: string; key: 0 | 1 }>('index_xinfo', index.name)
      const text = db.sqlite
        .query<{ sql: string | null }, [string]>('SELECT sql FROM sqlite_schema WHERE name = ?')
        .get(index.name)?.sql
      return {
        name: index.name,
        isUnique: index.unique === 1,
        columns: columns
          .filter(({ key }) => key === 1)
          .map(({ name, coll }) => (coll === 'NOCASE' ? `lower(${name})` : name))
          .join(','),
        literals: literalsOf(text?.split(' WHERE ')[1]),
      }
    })
    // The number of a row is a primary key without an index.
    if (table !== 'webhooks') return listed
    return [...listed, { name: 'sqlite_rowid', isUnique: true, columns: 'seq', literals: '' }]
  }

  test('PostgreSQL has the foreign keys and the triggers of SQLite', async () => {
    const found = await ask<{ of: string; on: string }>(
      `SELECT conrelid::regclass::text AS of, confrelid::regclass::text AS on
       FROM pg_constraint WHERE contype = 'f' AND confrelid <> 'gateways'::regclass`,
    )
    const expected = names.flatMap((of) =>
      [...new Set(pragma<{ id: number; table: string }>('foreign_key_list', of))].map(
        ({ table }) => ({ of, on: table }),
      ),
    )
    const text = ({ of, on }: { of: string; on: string }) => `${of} ${on}`
    // Letter case does not count for a trigger, so this one is a trigger.
    const viaTrigger = 'grant_top_ups grants'
    expect(found.map(text).sort()).toEqual(
      expected
        .map(text)
        .filter((each) => each !== viaTrigger)
        .sort(),
    )
    const triggers = await ask<{ name: string }>(
      'SELECT tgname AS name FROM pg_trigger WHERE NOT tgisinternal',
    )
    const old = db.sqlite
      .query<{ name: string }, []>("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
      .all()
    // Foreign keys without letter case, and CHECKs of columns that never change.
    const own = ['grant_top_ups_granted', 'payments_fixed', 'transactions_fixed', 'lanes_fixed']
    expect(triggers.map(({ name }) => name).sort()).toEqual(
      [...old.map(({ name }) => name), ...own].sort(),
    )
  })

  test('error: of two commits that authorize and pay the same money one is refused', async () => {
    const put = (on: Client, table: string, id: string) => {
      const row: Record<string, unknown> = { ...rows[table], id, nonce: rows.payments?.nonce }
      const columns = Object.keys(row).map((name) => `"${name}"`)
      const values = columns.map((_, index) => `$${index + 1}`)
      return on.query(
        `INSERT INTO ${table} (${columns.join(', ')}) VALUES (${values.join(', ')})`,
        Object.values(row),
      )
    }
    const url = await freshDatabase()
    await use(url, (first) =>
      use(url, async (second) => {
        await first.query('BEGIN')
        await put(first, 'payments', 'pay_1')
        const other = put(second, 'authorizations', 'pay_2').then(
          () => undefined,
          (error: unknown) => error,
        )
        const waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while ((await first.query(waits)).rows.length === 0) await Bun.sleep(1)
        await first.query('COMMIT')
        expect(await other).toMatchObject({
          code: 'TP003',
          message: 'money-paid',
          constraint: 'authorizations_paid',
        })
      }),
    )
  })
})

describe.skipIf(!hasPostgres)('migrate', () => {
  const tablesOf = async (client: Client) =>
    (
      await client.query(
        'SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1',
      )
    ).rows.map(({ name }) => name)

  test('of processes that migrate at once one applies each migration', async () => {
    const url = await emptyDatabase()
    const script = `
      const { Client } = await import('pg')
      const { migrate } = await import(${JSON.stringify(join(import.meta.dir, '../../db/postgres/migrate.ts'))})
      const { queryOf } = await import(${JSON.stringify(join(import.meta.dir, '../harness/postgres.ts'))})
      const client = new Client({ connectionString: process.env.DATABASE })
      await client.connect()
      console.log(JSON.stringify(await migrate(queryOf(client), 1)))
      await client.end()`
    const all = await Promise.all(
      [1, 2].map(async () => {
        const child = Bun.spawn([process.execPath, '-e', script], {
          cwd: join(import.meta.dir, '../..'),
          env: { ...process.env, DATABASE: url },
          stdout: 'pipe',
          stderr: 'pipe',
        })
        const [out, err] = await Promise.all([
          new Response(child.stdout).text(),
          new Response(child.stderr).text(),
        ])
        return { code: await child.exited, err, applied: out === '' ? [] : JSON.parse(out) }
      }),
    )
    expect(all.map(({ code, err }) => ({ code, err }))).toEqual([
      { code: 0, err: '' },
      { code: 0, err: '' },
    ])
    expect(all.flatMap(({ applied }) => applied).sort()).toEqual(migrations.map(({ name }) => name))
  })

  test('error: a migration that fails or loses its connection leaves nothing of it', async () => {
    const url = await emptyDatabase()
    const good = { name: '0001_a', sql: 'CREATE TABLE a (x int)' }
    for (const end of ['CREATE TABLE a (x int)', 'SELECT pg_terminate_backend(pg_backend_pid())']) {
      const list = [good, { name: '0002_b', sql: `CREATE TABLE b (x int); ${end}` }]
      const client = new Client({ connectionString: url })
      client.on('error', () => undefined)
      await client.connect()
      expect(await migrate(queryOf(client), 1, { list }).catch((error) => error)).toBeInstanceOf(
        Error,
      )
      await client.end()
      await use(url, async (later) => expect(await tablesOf(later)).toEqual(['a', 'migrations']))
    }
    await use(url, async (client) => {
      const list = [good, { name: '0002_b', sql: 'CREATE TABLE b (x int)' }]
      expect(await migrate(queryOf(client), 2, { list })).toEqual(['0002_b'])
      expect(await tablesOf(client)).toEqual(['a', 'b', 'migrations'])
    })
  })

  test('error: a newer, an older and a changed database are named', async () => {
    const about = { file: 'the database shop', program: '1.0.0' }
    await use(await emptyDatabase(), async (client) => {
      expect(await misfitOf(queryOf(client), about)).toContain('start serve once')
      await migrate(queryOf(client), 1)
      await noteProgram(queryOf(client), '1.1.0')
      await noteProgram(queryOf(client), '1.2.0')
      expect(await misfitOf(queryOf(client), about)).toBeUndefined()
      expect(await migrate(queryOf(client), 1)).toEqual([])
      await client.query("INSERT INTO migrations VALUES ('0999_future', 'x', 1)")
      const last = migrations.at(-1)?.name
      const newer =
        'the database shop was made by turnpike 1.2.0 (schema 0999_future); this is turnpike 1.0.0 ' +
        `and knows schema ${last}: start turnpike 1.2.0 or a newer one, or restore a copy from before ` +
        'the upgrade'
      expect(await misfitOf(queryOf(client), about)).toBe(newer)
      expect(await migrate(queryOf(client), 1, about).catch((error) => error)).toEqual(
        new MigrationError(newer),
      )
      const list = migrations.map((each) => ({ ...each, sql: `${each.sql} ` }))
      const changed = await migrate(queryOf(client), 1, { ...about, list }).catch((error) => error)
      expect(changed).toBeInstanceOf(MigrationError)
      expect(String(changed)).toContain('is not the one that was applied')
    })
  })

  test('error: a database from before the first release is refused, with the way out', async () => {
    await use(await emptyDatabase(), async (client) => {
      // As the commits of that time left it, in short.
      await client.query(`
        CREATE TABLE payments (id text PRIMARY KEY);
        CREATE TABLE migrations (name text PRIMARY KEY, hash text NOT NULL, applied_at bigint NOT NULL);
        INSERT INTO migrations VALUES ('0001_tables', 'a', 1), ('0009_failed_orders', 'b', 1)`)
      const why =
        'the database shop was made by a turnpike from before the first release (schema ' +
        '0009_failed_orders), and this turnpike cannot read it: sell it out with the turnpike that made ' +
        'it, until no payment and no order is open, or start anew with another directory in --data or ' +
        'an empty database in DATABASE_URL'
      const about = { name: 'shop', now: 1, program: '0.1.0' }
      expect(await upgrade(queryOf(client), about).catch((error) => error)).toEqual(
        new DatabaseStartError(why),
      )
      expect(await misfitOf(queryOf(client), { file: 'the database shop' })).toBe(why)
      expect(await tablesOf(client)).toEqual(['migrations', 'payments'])
    })
  })
})

/** What a condition of an index names: PostgreSQL writes conditions anew. */
function literalsOf(condition: string | null | undefined): string {
  const literals = [...(condition ?? '').matchAll(/'([^']*)'/g)].map(([, literal]) => literal)
  const isNotNull = /(\w+) IS NOT NULL/.exec(condition ?? '')?.[1]
  return [...literals, ...(isNotNull ? [isNotNull] : [])].join(' ')
}
