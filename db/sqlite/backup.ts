import { Database } from 'bun:sqlite'
import { closeSync, existsSync, fsyncSync, openSync, statSync, unlinkSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { storageCode } from '../fault'
import { databaseName } from './directory'

/**
 * Writes a copy of the data directory's database to `file`, also while a gateway runs. Returns its
 * size in bytes. Throws what `copyTo` throws, and BackupError without a database.
 */
export function writeBackup(options: { dataDir: string; file: string }): number {
  const { dataDir } = options
  const source = join(dataDir, databaseName)
  if (!existsSync(source))
    throw new BackupError(`there is no database in ${dataDir}: name its directory by --data`)
  const from = openSource(source)
  try {
    from.run('PRAGMA busy_timeout = 5000')
    return copyTo(resolve(options.file), from)
  } finally {
    from.close()
  }
}

function openSource(source: string): Database {
  try {
    return new Database(source, { readonly: true })
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : 'unknown'
    throw new BackupError(`${source} cannot be opened: ${reason}`, { cause })
  }
}

/** Why there is no copy; the message is for the operator. */
export class BackupError extends Error {
  override readonly name = 'BackupError'
}

/**
 * Copies the database of a connection to a new file: a consistent state, also while others write,
 * without delaying them. The copy is readable by its owner only, is checked, and is on the disk on
 * return. Returns its size in bytes. Throws BackupError when `file` exists or cannot be written;
 * then no file is left. `file` must be absolute, because SQLite reads a name such as file:x as a
 * URL.
 */
export function copyTo(file: string, from: Database): number {
  // Created here to set its mode and to overwrite nothing; SQLite accepts an empty file.
  create(file)
  try {
    from.run('VACUUM INTO ?', [file])
    assertSound(file)
    for (const path of [file, dirname(file)]) flush(path)
    return statSync(file).size
  } catch (cause) {
    removeCopy(file)
    if (cause instanceof BackupError) throw cause
    throw new BackupError(`${from.filename} cannot be copied: ${reasonOf(cause)}`, { cause })
  }
}

/** Removes a copy and what SQLite may have written beside it. */
export function removeCopy(file: string): void {
  for (const path of [file, `${file}-wal`, `${file}-shm`, `${file}-journal`]) {
    try {
      unlinkSync(path)
    } catch {
      // The file did not exist.
    }
  }
}

function create(file: string): void {
  try {
    closeSync(openSync(file, 'wx', 0o600))
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? cause.code : undefined
    if (code === 'EEXIST') throw new BackupError(`${file} exists: name a new file`, { cause })
    throw new BackupError(`${file} cannot be written: ${reasonOf(cause)}`, { cause })
  }
}

function assertSound(file: string): void {
  const copy = new Database(file, { readonly: true })
  try {
    const [verdict] = Object.values(copy.query('PRAGMA quick_check').get() ?? {})
    if (verdict !== 'ok') throw new BackupError(`the copy is damaged: ${verdict}`)
  } finally {
    copy.close()
  }
}

function flush(path: string): void {
  // Windows opens no directories.
  if (process.platform === 'win32' && statSync(path).isDirectory()) return
  const handle = openSync(path, 'r')
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}

/** What the system says, and what to do about a full disk. */
function reasonOf(cause: unknown): string {
  if (!(cause instanceof Error)) return 'unknown'
  const code = 'code' in cause ? cause.code : undefined
  const isFull = storageCode(cause)?.startsWith('SQLITE_FULL') || code === 'ENOSPC'
  return isFull ? 'the disk is full: free space on it and try again' : cause.message
}
