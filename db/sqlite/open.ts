import { Database } from 'bun:sqlite'
import { chmodSync, existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Upgrade } from '../Database'
import { storageCode } from '../fault'
import { assertNotLost, databaseName, lock, markUsed, openDirectory } from './directory'
import { UpgradeError, type UpgradeOptions, upgrade } from './migrate'
import { assertNotMoved } from './moved'
import { isDamage, type Storage, watchStorage } from './storage'
import { createSync, syncOnce } from './sync'

/** The open database. Make changes inside `write`. */
export type Db = {
  sqlite: Database
  /** Path of the database file. */
  file: string
  /** Whether the file can be written. */
  storage: Storage
  /** What the opening changed in a database of an earlier schema. */
  upgrade: Upgrade | undefined
  /** Commits in `run` return early: `sync`, or 100 ms, brings them to the disk. */
  withoutSync<T>(run: () => T): T
  /**
   * Resolves when all commits are on the disk. While that refuses them it is a fault of the
   * storage, and this waits. Never rejects.
   */
  sync(): Promise<void>
  /**
   * Extends the log to its length at a checkpoint, because a commit that lengthens the file takes
   * half as long again. Takes about 20 ms.
   */
  reserveLog(): void
  /** Writes the log back and releases the data directory. Idempotent. */
  close(): void
}

const busyMs = 5_000
const cacheSize = -16_384
const logPages = 4_000
const pageBytes = 4_096

/** Name of a database without a file. https://sqlite.org/inmemorydb.html */
const inMemory = ':memory:'

type OpenOptions = Pick<UpgradeOptions, 'program' | 'list'> & {
  dataDir: string
  /** Unix ms. */
  now: () => number
  /** Opens a file that was moved, too: the move may have been interrupted. */
  isMove?: boolean
}

/**
 * Opens `turnpike.sqlite` in the data directory, which it creates when missing, locks the directory
 * and applies pending migrations, before which it copies the database. A commit is on the disk when
 * it returns, except inside `withoutSync`. Throws
 * - `DatabaseLockedError` while another process has the directory,
 * - `DataDirectoryError` when the directory cannot be written,
 * - `MigrationError` when the database does not fit this program,
 * - `DatabaseMovedError` when a server has its rows,
 * - `UpgradeError` when it cannot be copied before its migration,
 * - `DatabaseFileError` when the file is damaged or cannot be written,
 * - `DatabaseLostError` when it is empty or missing where there was one.
 */
export function open(options: OpenOptions): Db {
  openDirectory(options.dataDir)
  const file = join(options.dataDir, databaseName)
  let unlock: (() => void) | undefined
  let sqlite: Database | undefined
  let upgraded: Upgrade | undefined
  try {
    unlock = lock(options.dataDir)
    // Check before SQLite opens the file: it deletes the WAL beside an empty file.
    assertNotLost(options.dataDir, file)
    sqlite = new Database(file, { create: true, strict: true })
    // It contains signatures, so only its owner may read it.
    chmodSync(file, 0o600)
    const { program, list, isMove } = options
    upgraded = prepare(sqlite, { file, now: options.now(), program, ...(list && { list }) }, isMove)
    syncOnce(file)
    markUsed(options.dataDir, options.now())
  } catch (cause) {
    sqlite?.close()
    unlock?.()
    throw faultOf(cause, file)
  }
  return { ...from(sqlite, file, unlock), upgrade: upgraded }
}

/**
 * A database that only this process can open and that ends with `close`: the schema, statements and
 * settings of `open` without the directory, its lock, its marker and the log. For tests.
 */
export function openInMemory({ now }: { now: () => number }): Db {
  const sqlite = new Database(inMemory, { strict: true })
  prepare(sqlite, { file: inMemory, now: now() })
  return from(sqlite, inMemory, () => undefined)
}

/** Settings of the connection and pending migrations. */
function prepare(sqlite: Database, options: UpgradeOptions, isMove = false): Upgrade | undefined {
  // First, because another process may be reading, and after a crash the log is recovered under a
  // lock.
  sqlite.run(`PRAGMA busy_timeout = ${busyMs}`)
  sqlite.run('PRAGMA journal_mode = WAL')
  sqlite.run('PRAGMA synchronous = FULL')
  // 16 MiB: commits read the indexes of the whole history.
  sqlite.run(`PRAGMA cache_size = ${cacheSize}`)
  // A page that many payments change is written back once for all of them.
  sqlite.run(`PRAGMA wal_autocheckpoint = ${logPages}`)
  sqlite.run('PRAGMA foreign_keys = ON')
  assertSound(sqlite, options.file)
  if (!isMove) assertNotMoved(sqlite, options.file)
  return upgrade(sqlite, options)
}

/**
 * A connection to a data directory that another process may own, for commands of the operator.
 * Takes no lock and migrates nothing. Write only what that process expects others to write.
 * Undefined when there is no database.
 */
export function openBeside(options: { dataDir: string }): Db | undefined {
  const file = join(options.dataDir, databaseName)
  if (!existsSync(file)) return undefined
  const sqlite = new Database(file, { readwrite: true, create: false, strict: true })
  sqlite.run(`PRAGMA busy_timeout = ${busyMs}`)
  sqlite.run('PRAGMA synchronous = FULL')
  sqlite.run('PRAGMA foreign_keys = ON')
  return from(sqlite, file, () => undefined)
}

/**
 * The file cannot be used: it is damaged, cannot be written, or no longer exists. The message names
 * it and the remedy.
 */
export class DatabaseFileError extends Error {
  override name = 'DatabaseFileError'
  readonly file: string

  constructor(file: string, code: string, cause?: unknown) {
    super(`${file} ${remedyOf(code)}`, { cause })
    this.file = file
  }
}

/** The error of an opening, with the file that it concerns where the cause has no such text. */
function faultOf(cause: unknown, file: string): unknown {
  if (cause instanceof UpgradeError) return cause
  const code = storageCode(cause)
  if (code !== undefined) return new DatabaseFileError(file, code, cause)
  if (!(cause instanceof Error && 'code' in cause && 'path' in cause)) return cause
  return new DatabaseFileError(String(cause.path), String(cause.code), cause)
}

function remedyOf(code: string): string {
  if (isDamage(code)) return `is damaged (${code}): restore a backup of it`
  if (/^(SQLITE_FULL|ENOSPC|EDQUOT)/.test(code))
    return `cannot be written (${code}): the disk is full, free space on it and start again`
  if (/^(SQLITE_READONLY|SQLITE_CANTOPEN|EACCES|EPERM|EROFS)/.test(code))
    return (
      `cannot be read and written (${code}): its directory and all files in it must belong to the ` +
      'user who runs turnpike, on a file system that is mounted writable'
    )
  return `cannot be read and written (${code}): check the disk, then start again`
}

/**
 * Throws `DatabaseFileError` when a page is damaged. Reads the whole file, about a second for 1 GB.
 * Leaves out the CHECKs of the rows, which would take ten times as long.
 */
function assertSound(sqlite: Database, file: string): void {
  sqlite.run('PRAGMA ignore_check_constraints = ON')
  const [verdict] = Object.values(sqlite.query('PRAGMA quick_check(1)').get() ?? {})
  sqlite.run('PRAGMA ignore_check_constraints = OFF')
  if (verdict !== 'ok') throw new DatabaseFileError(file, 'SQLITE_CORRUPT', verdict)
}

/** Of a database in memory. */
const unsynced = {
  withoutSync: <T>(run: () => T): T => run(),
  sync: () => Promise.resolve(),
  close: () => undefined,
}

function from(sqlite: Database, file: string, unlock: () => void): Db {
  let isOpen = true
  const storage = watchStorage(sqlite, file)
  const { sync, withoutSync, close } = file === inMemory ? unsynced : createSync(sqlite, storage)
  return {
    sqlite,
    file,
    storage,
    upgrade: undefined,
    withoutSync,
    sync,
    reserveLog() {
      // Pages beyond the cache go to the log, and no commit includes them.
      sqlite.run('PRAGMA cache_size = 64')
      // Do not wait for another writer.
      sqlite.run('PRAGMA busy_timeout = 0')
      try {
        sqlite.run('BEGIN IMMEDIATE')
        sqlite.run('CREATE TABLE reserve (bytes BLOB)')
        sqlite.run('INSERT INTO reserve VALUES (zeroblob(?))', [logPages * pageBytes])
      } finally {
        if (sqlite.inTransaction) sqlite.run('ROLLBACK')
        sqlite.run(`PRAGMA cache_size = ${cacheSize}`)
        sqlite.run(`PRAGMA busy_timeout = ${busyMs}`)
      }
      void sync()
    },
    close() {
      if (!isOpen) return
      isOpen = false
      close()
      storage.close()
      sqlite.close()
      unlock()
    },
  }
}
