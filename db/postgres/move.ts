import { Database } from 'bun:sqlite'
import { markMoved, movedOf, unmarkMoved } from '../sqlite/moved'
import { type Db, open } from '../sqlite/open'
import { type AdmitOptions, type Admitted, admit } from './admit'
import { type Copied, copyRows } from './copy'
import {
  fingerprintsOf,
  type KeySecrets,
  markDatabase,
  readIdentity,
  writeIdentity,
} from './identity'
import { connect, type Line } from './Line'
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
