import { Database } from 'bun:sqlite'
import * as Crypto from '../../src/protocol/Crypto'
import { markMoved, movedOf, unmarkMoved } from '../sqlite/moved'
import { type Db, open } from '../sqlite/open'
import {
  type AdmitOptions,
  type Admitted,
  admit,
  fingerprintsOf,
  type KeySecrets,
  markDatabase,
  readIdentity,
  writeIdentity,
} from './admit'
import { PostgresError } from './errors'
import { connect, type Line, type Query } from './Line'
import { upgrade } from './migrate'
import { DatabaseStartError, startErrorOf } from './reach'
import * as Url from './Url'

type MoveOptions = Omit<AdmitOptions, 'isMove' | 'service'> & {
  /** Only their fingerprints are kept. */
  secrets: KeySecrets
  /** Version of this program. */
  program: string | undefined
}

/** A statement that compares a large table takes longer than one of a payment. */
const statementMs = 3_600_000

/**
 * Copies the file of a data directory into an empty database in one transaction, and marks the file
 * as moved. Throws `DatabaseStartError`, and what `open` of SQLite throws; then the file is in use as
 * before. A move that was interrupted can be repeated.
 */
export async function copyToServer(options: MoveOptions): Promise<readonly Copied[]> {
  const { dataDir, now, program } = options
  const db = open({ dataDir, now, program, isMove: true })
  try {
    const admitted = await admit({
      ...options,
      service: fingerprintsOf(options.secrets),
      isMove: true,
    })
    try {
      return await moveInto(db, admitted, options)
    } catch (error) {
      throw startErrorOf(error, options.target)
    } finally {
      admitted.line.close()
    }
  } finally {
    db.close()
  }
}

async function moveInto(
  db: Db,
  admitted: Admitted,
  { dataDir, target, secrets, now, program }: MoveOptions,
): Promise<readonly Copied[]> {
  const before = movedOf(db.sqlite)
  const identity = await admitted.line.run(readIdentity)
  const to = Url.describe(target)
  if (identity !== undefined && identity.id === before?.id) {
    markDatabase(dataDir, identity.id)
    throw new DatabaseStartError(
      `${db.file} is moved to ${to} already: start serve with DATABASE_URL`,
    )
  }
  if (identity !== undefined)
    throw new DatabaseStartError(
      `the database ${to} is in use by a service: create a new one for the move`,
    )
  // Repeated with the same id: the answer to an earlier commit may have been lost.
  const id = before?.id ?? crypto.randomUUID()
  await admitted.line.run((query) => upgrade(query, { now: now(), program, name: to }))
  const line = await connect({
    client: admitted.server.client,
    session: ['SET statement_timeout = 0', 'SET lock_timeout = 2000'],
    onEnd: () => undefined,
    answerMs: statementMs,
  })
  // Integers as bigint, so that none is rounded.
  const rows = new Database(db.file, { readonly: true, safeIntegers: true })
  try {
    const copied = await inTransaction(line, db, { id, to, at: now() }, async (query) => {
      const tables = await copyRows(rows, query)
      await writeIdentity(query, fingerprintsOf(secrets), id)
      return tables
    })
    await line.run((query) => query('ANALYZE'))
    markDatabase(dataDir, id)
    return copied
  } catch (error) {
    throw before === undefined ? error : stillMarked(db.file, startErrorOf(error, target))
  } finally {
    rows.close()
    line.close()
  }
}

/**
 * Marks the file before the commit: after a crash between both the file is not used, and the move is
 * repeated. The other order could leave two services with the same account nonces.
 */
async function inTransaction<T>(
  line: Line,
  db: Db,
  moved: Parameters<typeof markMoved>[1],
  work: Parameters<typeof line.run<T>>[0],
): Promise<T> {
  const isOwnMark = movedOf(db.sqlite) === undefined
  return await line.run(async (query) => {
    await query('BEGIN')
    let result: T
    try {
      result = await work(query)
      markMoved(db.sqlite, moved)
    } catch (error) {
      await query('ROLLBACK').catch(() => undefined)
      // A commit of the move that has set the mark may still arrive.
      if (isOwnMark) unmarkMoved(db.sqlite)
      throw error
    }
    try {
      await query('COMMIT')
    } catch (cause) {
      throw new DatabaseStartError(
        `the answer of ${moved.to} to the commit was lost: run turnpike move again, which finds out ` +
          'whether the rows are there',
        { cause },
      )
    }
    return result
  })
}

/** A move fails, and an earlier one has marked the file. */
function stillMarked(file: string, cause: unknown): DatabaseStartError {
  const said = cause instanceof Error ? cause.message : String(cause)
  return new DatabaseStartError(
    `${file} stays marked by an earlier move, whose commit may have come or may still come: run ` +
      'turnpike move again with the same DATABASE_URL, which finds out whether the rows are there. ' +
      `This move failed: ${said}`,
    { cause },
  )
}

/** A column that both databases have. */
type Column = { name: string; type: string; isIdentity: boolean }
type Table = { name: string; columns: readonly Column[] }

/** A table with the number of its rows. */
type Copied = { name: string; rows: number }

/** Rows and bytes of one statement. */
const rowsMax = 500
const bytesMax = 4 * 1024 * 1024
/** Tables and rows that describe a database itself. */
const ownTables = new Set(['migrations'])
const ownKeys = ['program', 'storage-probe', 'moved', 'database', 'service']

/**
 * Copies every row of a file into the empty tables of a server, within the transaction of `query`.
 * Then compares the number of rows, and a checksum of each column. Throws `DatabaseStartError` when a
 * table is not empty or not equal.
 */
async function copyRows(sqlite: Database, query: Query): Promise<readonly Copied[]> {
  const tables = await tablesOf(sqlite, query)
  await assertEmpty(query)
  // Rows of every state are inserted, which the rules for changes do not expect.
  for (const { name } of tables) await query(`ALTER TABLE "${name}" DISABLE TRIGGER USER`)
  const copied: Copied[] = []
  for (const table of tables) {
    const sent = await explained(table.name, () => copyTable(sqlite, query, table))
    const stored = await checksumsOf(query, table)
    if (sent.join() !== stored.join())
      throw new DatabaseStartError(
        `the table ${table.name} is not equal after the copy: nothing was moved; report this`,
      )
    copied.push({ name: table.name, rows: Number(sent[0]) })
  }
  for (const { name } of tables) await query(`ALTER TABLE "${name}" ENABLE TRIGGER USER`)
  return copied
}

async function explained<T>(name: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof PostgresError)) throw error
    const { code, constraint, message } = error
    throw new DatabaseStartError(
      `PostgreSQL refuses a row of the table ${name} (${constraint ?? message}, ${code}): nothing was ` +
        'moved; report this',
    )
  }
}

/** The tables of the file with their columns, each after those that it refers to. */
async function tablesOf(sqlite: Database, query: Query): Promise<readonly Table[]> {
  const names = sqlite
    .query<{ name: string }, []>(
      "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    )
    .all()
    .map(({ name }) => name)
    .filter((name) => !ownTables.has(name))
  const known = await query<{ table: string; name: string; type: string; identity: string }>(
    `SELECT table_name AS table, column_name AS name, udt_name AS type, is_identity AS identity
     FROM information_schema.columns
     WHERE table_schema = current_schema() AND is_generated = 'NEVER'`,
  )
  const tables = names.map((name): Table => {
    const own = sqlite.query<{ name: string }, []>(`PRAGMA table_info("${name}")`).all()
    const columns = own.map((column): Column => {
      const found = known.find((each) => each.table === name && each.name === column.name)
      if (found === undefined)
        throw new DatabaseStartError(
          `PostgreSQL has no column ${name}.${column.name}: nothing was moved; report this`,
        )
      return { name: column.name, type: found.type, isIdentity: found.identity === 'YES' }
    })
    return { name, columns }
  })
  return inOrder(tables, await referencesOf(query))
}

async function referencesOf(query: Query): Promise<ReadonlyMap<string, readonly string[]>> {
  const rows = await query<{ from: string; to: string }>(
    `SELECT child.relname AS from, parent.relname AS to
     FROM pg_constraint
     JOIN pg_class child ON child.oid = conrelid JOIN pg_class parent ON parent.oid = confrelid
     WHERE contype = 'f' AND connamespace = current_schema()::regnamespace`,
  )
  const references = new Map<string, string[]>()
  for (const { from, to } of rows) references.set(from, [...(references.get(from) ?? []), to])
  return references
}

function inOrder(
  tables: readonly Table[],
  references: ReadonlyMap<string, readonly string[]>,
): readonly Table[] {
  const ordered = new Set<Table>()
  const visit = (table: Table, trail: readonly string[]) => {
    if (trail.includes(table.name)) return
    for (const name of references.get(table.name) ?? []) {
      const parent = tables.find((each) => each.name === name)
      if (parent !== undefined) visit(parent, [...trail, table.name])
    }
    ordered.add(table)
  }
  for (const table of tables) visit(table, [])
  return [...ordered]
}

/** Throws when a table of the server has rows. */
async function assertEmpty(query: Query): Promise<void> {
  const tables = await query<{ name: string }>(
    `SELECT table_name AS name FROM information_schema.tables
     WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'`,
  )
  for (const { name } of tables) {
    if (ownTables.has(name)) continue
    const own = name === 'meta' ? `WHERE key <> ALL (ARRAY['${ownKeys.join("', '")}'])` : ''
    const rows = await query(`SELECT 1 FROM "${name}" ${own} LIMIT 1`)
    if (rows.length > 0)
      throw new DatabaseStartError(
        `the database of DATABASE_URL is not empty (table ${name}): create a new one for the move`,
      )
  }
}

/** Copies the rows of a table in their order. Returns the checksums of what was sent. */
async function copyTable(sqlite: Database, query: Query, table: Table): Promise<bigint[]> {
  const { name, columns } = table
  const list = columns.map((column) => `"${column.name}"`).join(', ')
  const own = name === 'meta' ? `WHERE key NOT IN ('${ownKeys.join("', '")}')` : ''
  const sums: bigint[] = [0n, ...columns.map(() => 0n)]
  const insert = async (rows: readonly string[]) => {
    if (rows.length === 0) return
    await query(
      `INSERT INTO "${name}" (${list}) OVERRIDING SYSTEM VALUE
       SELECT ${list} FROM jsonb_populate_recordset(NULL::"${name}", $1::jsonb)`,
      [`[${rows.join()}]`],
    )
  }
  let waiting: string[] = []
  let bytes = 0
  const read = sqlite.query<Record<string, unknown>, []>(
    `SELECT ${list} FROM "${name}" ${own} ORDER BY ${orderOf(sqlite, name)}`,
  )
  for (const row of read.iterate()) {
    const values = columns.map((column) => textOf(row[column.name], column.type))
    sums[0] = (sums[0] ?? 0n) + 1n
    for (const [index, value] of values.entries())
      sums[index + 1] = (sums[index + 1] ?? 0n) + checksumOf(value)
    const json = JSON.stringify(
      Object.fromEntries(columns.map((column, index) => [column.name, values[index]])),
    )
    waiting.push(json)
    bytes += json.length
    if (waiting.length < rowsMax && bytes < bytesMax) continue
    await insert(waiting)
    waiting = []
    bytes = 0
  }
  await insert(waiting)
  for (const column of columns.filter(({ isIdentity }) => isIdentity))
    await query(
      `SELECT setval(pg_get_serial_sequence('"${name}"', '${column.name}'),
         greatest(1, (SELECT max("${column.name}") FROM "${name}")))`,
    )
  return sums
}

/** The order of insertion, which later reads may depend on. */
function orderOf(sqlite: Database, name: string): string {
  const row = sqlite
    .query<{ sql: string }, [string]>('SELECT sql FROM sqlite_schema WHERE name = ?')
    .get(name)
  return /WITHOUT ROWID/i.test(row?.sql ?? '') ? '1' : 'rowid'
}

/** A value as JSON that `jsonb_populate_recordset` reads, and as the text of the type. */
function textOf(value: unknown, type: string): string | null {
  if (value === null || value === undefined) return null
  // SQLite keeps a text in a column of bytes as it is.
  if (type === 'bytea' || value instanceof Uint8Array)
    return `\\x${Buffer.from(typeof value === 'string' ? value : (value as Uint8Array)).toString('hex')}`
  return type === 'bool' ? String(Number(value) === 1) : String(value)
}

/** 32 bits of a hash of a text; the sum of a column does not depend on the order of rows. */
function checksumOf(value: string | null): bigint {
  if (value === null) return 0n
  return BigInt(`0x${Crypto.sha256(value).slice(0, 8)}`)
}

/** The same of what the server has. */
async function checksumsOf(query: Query, { name, columns }: Table): Promise<bigint[]> {
  const own = name === 'meta' ? `WHERE key NOT IN ('${ownKeys.join("', '")}')` : ''
  const sums = columns.map(
    (column) =>
      `coalesce(sum(('x' || left(encode(sha256(convert_to("${column.name}"::text, 'UTF8')), 'hex'), 8))::bit(32)::bigint), 0)::text`,
  )
  const [row] = await query<string[]>(
    `SELECT ${['count(*)::text', ...sums].join(', ')} FROM "${name}" ${own}`,
    [],
    { rowMode: 'array' },
  )
  return (row ?? []).map(BigInt)
}
