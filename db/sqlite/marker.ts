import { Database } from 'bun:sqlite'
import { closeSync, existsSync, fsyncSync, openSync, statSync, writeSync } from 'node:fs'
import { basename, join } from 'node:path'

const markerName = 'turnpike.used'

/** The directory had a database before, and the database is empty or missing now. */
export class DatabaseLostError extends Error {
  override name = 'DatabaseLostError'
  readonly file: string

  constructor(file: string, marker: string) {
    super(
      `${file} is empty or missing, and ${basename(marker)} says that there was one: restore a ` +
        `backup of it. Without it paid credentials are accepted again and orders are lost; ` +
        `to start with an empty database, remove ${marker} and challenge.secret`,
    )
    this.file = file
  }
}

/**
 * Throws `DatabaseLostError` when the directory has been used and its database is empty or missing.
 * With an empty ledger, old credentials would pass as new ones and orders would be lost.
 */
export function assertNotLost(directory: string, file: string): void {
  const marker = join(directory, markerName)
  if (!existsSync(marker)) return
  if (isEmpty(file)) throw new DatabaseLostError(file, marker)
}

/** Whether there is no table in a file, or no file. Throws what SQLite throws. */
function isEmpty(file: string): boolean {
  if (!existsSync(file) || statSync(file).size === 0) return true
  const sqlite = new Database(file, { readwrite: true, create: false })
  try {
    sqlite.run('PRAGMA busy_timeout = 5000')
    return sqlite.query('SELECT 1 FROM sqlite_schema').get() === null
  } finally {
    sqlite.close()
  }
}

/** Marks the directory as having a database. */
export function markUsed(directory: string, now: number): void {
  const path = join(directory, markerName)
  if (existsSync(path)) return
  const file = openSync(path, 'w', 0o600)
  try {
    writeSync(file, `This directory has had a database since ${new Date(now).toISOString()}.\n`)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}
