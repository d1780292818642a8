import { Database } from 'bun:sqlite'
import { chmodSync, existsSync, mkdirSync } from 'node:fs'
import { open as openFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type BunSQLiteDatabase, drizzle } from 'drizzle-orm/bun-sqlite'
import { lock } from './lock'
import { migrate } from './migrate'
import * as schema from './schema'

/** The open database. Statements through `orm`, changes inside `write`. */
export type Db = {
  orm: BunSQLiteDatabase<typeof schema>
  sqlite: Database
  /** Path of the database file. */
  file: string
  /** Commits in `run` are not waited for: they are on the disk after the next other one, or `sync`. */
  withoutSync<T>(run: () => T): T
  /** Brings to the disk what was committed without waiting. Never rejects. */
  sync(): Promise<void>
  /**
   * Makes the log as long as it gets before it is written back: a commit that lengthens the file waits
   * half as long again. Takes about 20 ms.
   */
  reserveLog(): void
  /** Writes the log back and gives the data directory free. Idempotent. */
  close(): void
}

const busyMs = 5_000
const cacheSize = -16_384
const logPages = 4_000
const pageBytes = 4_096

/** Name of the database in a data directory. */
export const databaseName = 'turnpike.sqlite'

/**
 * Opens `turnpike.sqlite` in the data directory, which is created when it is missing, takes the
 * directory for this process and applies pending migrations. A commit is on the disk when it
 * returns, but for those inside `withoutSync`. Throws `DatabaseLockedError` while another process has
 * the directory, `MigrationError` when the database does not fit.
 */
export function open(options: { dataDir: string; now: () => number }): Db {
  mkdirSync(options.dataDir, { recursive: true, mode: 0o700 })
  const unlock = lock(options.dataDir)
  const file = join(options.dataDir, databaseName)
  let sqlite: Database | undefined
  try {
    sqlite = new Database(file, { create: true, strict: true })
    // It holds signatures: for its owner only.
    chmodSync(file, 0o600)
    // First: somebody may be reading, and after a crash the log is recovered under a lock.
    sqlite.run(`PRAGMA busy_timeout = ${busyMs}`)
    sqlite.run('PRAGMA journal_mode = WAL')
    sqlite.run('PRAGMA synchronous = FULL')
    // 16 MiB: the indexes of a long history are read all over.
    sqlite.run(`PRAGMA cache_size = ${cacheSize}`)
    // Pages that one payment after the other changes are written back once for all of them.
    sqlite.run(`PRAGMA wal_autocheckpoint = ${logPages}`)
    sqlite.run('PRAGMA foreign_keys = ON')
    migrate(sqlite, options.now())
  } catch (cause) {
    sqlite?.close()
    unlock()
    throw cause
  }
  return from(sqlite, file, unlock)
}

/**
 * A connection beside a process that may own the data directory, for commands of the operator. Takes
 * no lock and migrates nothing: write only what that process expects others to write. Undefined when
 * there is no database.
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

function from(sqlite: Database, file: string, unlock: () => void): Db {
  let isOpen = true
  const sync = async () => {
    try {
      const log = await openFile(`${file}-wal`, 'r+')
      await log.datasync().finally(() => log.close())
    } catch {
      // Closed meanwhile, which has written it back.
    }
  }
  return {
    orm: drizzle(sqlite, { schema }),
    sqlite,
    file,
    withoutSync(run) {
      sqlite.run('PRAGMA synchronous = NORMAL')
      try {
        return run()
      } finally {
        sqlite.run('PRAGMA synchronous = FULL')
      }
    },
    sync,
    reserveLog() {
      // What does not fit into the cache goes to the log, and no commit ever names it.
      sqlite.run('PRAGMA cache_size = 64')
      // Not worth a wait for whoever writes just now.
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
      sqlite.close()
      unlock()
    },
  }
}
