import { Database } from 'bun:sqlite'
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  type Stats,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { lockFile } from '../lock'

/** Name of the database in a data directory. */
export const databaseName = 'turnpike.sqlite'

/** File that is written and removed to see whether the directory can be written. */
const probeName = '.turnpike-probe'

/** The data directory cannot be used. The message says why, and what to do. */
export class DataDirectoryError extends Error {
  override readonly name = 'DataDirectoryError'
}

/**
 * Creates the data directory when it is missing, for its owner only. Returns warnings about its
 * owner and mode. Throws DataDirectoryError when this process cannot write in it.
 */
export function openDirectory(path: string): string[] {
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 })
  } catch (cause) {
    throw new DataDirectoryError(refusal(path, codeOf(cause)), { cause })
  }
  const stats = statSync(path)
  try {
    // Only a write shows that the file system, the owner and the mode permit one.
    const probe = join(path, probeName)
    writeFileSync(probe, '', { mode: 0o600 })
    rmSync(probe, { force: true })
  } catch (cause) {
    throw new DataDirectoryError(refusal(path, codeOf(cause), stats), { cause })
  }
  return directoryWarningsOf(path, stats, process.geteuid?.())
}

/** Warnings about the owner and the mode of a directory that user `uid` can write. */
export function directoryWarningsOf(
  path: string,
  { uid, mode }: Pick<Stats, 'uid' | 'mode'>,
  user: number | undefined,
): string[] {
  // Windows has neither users by number nor such bits.
  if (user === undefined) return []
  const found: string[] = []
  // Others than root use volumes of another owner by their group.
  if (user === 0 && uid !== 0)
    found.push(
      `the data directory ${path} belongs to user ${uid} and this process runs as root: user ` +
        `${uid} will not be able to read its files. Run turnpike as user ${uid}, or chown -R 0 ${path}`,
    )
  if ((mode & 0o002) !== 0)
    found.push(
      `every user of this machine can replace files in the data directory ${path}, keys too: ` +
        `run chmod 700 ${path}`,
    )
  return found
}

function refusal(path: string, code: string, stats?: Stats): string {
  const what = `the data directory ${path}`
  if (code === 'ENOSPC') return `${what} cannot be written: the disk is full: free space on it`
  if (code === 'EROFS')
    return `${what} is on a read-only file system: mount it writable, or name another with --data`
  if (code === 'EEXIST' || code === 'ENOTDIR')
    return `${what} is no directory: remove the file of that name, or name another with --data`
  const user = process.geteuid?.()
  if (stats === undefined || user === undefined)
    return `${what} cannot be created (${code}): create it for this user, or name another with --data`
  const mode = (stats.mode & 0o777).toString(8).padStart(4, '0')
  const owner = stats.uid === user ? '' : ` belongs to user ${stats.uid} and`
  const remedy = stats.uid === user ? `chmod 700 ${path}` : `chown -R ${user} ${path} as root`
  return (
    `${what}${owner} cannot be written by user ${user}, who runs turnpike (mode ${mode}): ` +
    `run ${remedy}, or name another with --data`
  )
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : 'unknown'
}

/** Another live process uses this data directory. Not retryable. */
export class DatabaseLockedError extends Error {
  override name = 'DatabaseLockedError'
  readonly directory: string
  readonly pid: number | undefined

  constructor(directory: string, pid: number | undefined) {
    const owner = pid === undefined ? 'another process' : `process ${pid}`
    super(`${directory} is in use by ${owner}: stop it, or choose another --data`)
    this.directory = directory
    this.pid = pid
  }
}

/**
 * Locks the data directory for this process. Two gateways on one database would allocate the same
 * account nonces. Call the result to release it.
 */
export function lock(directory: string): () => void {
  const pidFile = join(directory, 'turnpike.pid')
  const release = lockFile(join(directory, 'turnpike.lock'))
  if (release === undefined) throw new DatabaseLockedError(directory, readPid(pidFile))
  writeFileSync(pidFile, `${process.pid}\n`, { mode: 0o600 })
  return release
}

// Only for the message: the lock does not depend on it.
function readPid(file: string): number | undefined {
  try {
    const pid = Number(readFileSync(file, 'utf8').trim())
    return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined
  } catch {
    return undefined
  }
}

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
