import { Database } from 'bun:sqlite'
import { closeSync, existsSync, fsyncSync, openSync, statSync, unlinkSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { databaseName } from './open'

/** Why there is no copy; the message is for the operator. */
export class BackupError extends Error {
  override readonly name = 'BackupError'
}

/**
 * Writes a copy of the data directory's database to `file`: a consistent state, also while a
 * gateway runs, without delaying it. The copy is readable by its owner only, is checked, and is on
 * the disk on return. Returns its size in bytes. Throws BackupError without a database, when `file`
 * exists, or when the copy cannot be written; then no file is left.
 */
export function backup(options: { dataDir: string; file: string }): number {
  const { dataDir } = options
  // Absolute: SQLite reads a name such as file:x as a URL.
  const file = resolve(options.file)
  const source = join(dataDir, databaseName)
  if (!existsSync(source)) throw new BackupError(`there is no database in ${dataDir}`)
  // Created here to set its mode and to overwrite nothing; SQLite accepts an empty file.
  create(file)
  try {
    const from = new Database(source, { readonly: true })
    try {
      from.run('PRAGMA busy_timeout = 5000')
      from.run('VACUUM INTO ?', [file])
    } finally {
      from.close()
    }
    assertSound(file)
    for (const path of [file, dirname(file)]) flush(path)
    return statSync(file).size
  } catch (cause) {
    for (const path of [file, `${file}-wal`, `${file}-shm`, `${file}-journal`]) remove(path)
    if (cause instanceof BackupError) throw cause
    throw new BackupError(`${source} cannot be copied: ${reasonOf(cause)}`, { cause })
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
  const handle = openSync(path, 'r')
  try {
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path)
  } catch {
    // The file did not exist.
  }
}

function reasonOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : 'unknown'
}
