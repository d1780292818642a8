import { Database } from 'bun:sqlite'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** Another live process uses this data directory. Not retryable. */
export class DatabaseLockedError extends Error {
  override name = 'DatabaseLockedError'
  readonly directory: string
  readonly pid: number | undefined

  constructor(directory: string, pid: number | undefined, cause: unknown) {
    const owner = pid === undefined ? 'another process' : `process ${pid}`
    super(`${directory} is in use by ${owner}: stop it, or choose another --data`, { cause })
    this.directory = directory
    this.pid = pid
  }
}

/**
 * Locks the data directory for this process. Two gateways on one database would allocate the same
 * account nonces. The lock is the operating system's, on a small database of its own. It ends with
 * the process in every case, and needs no cleaning. Call the result to release it.
 */
export function lock(directory: string): () => void {
  const file = join(directory, 'turnpike.lock')
  const pidFile = join(directory, 'turnpike.pid')
  const holder = new Database(file, { create: true })
  try {
    // Kept until the connection closes; without a journal file that a kill would leave.
    holder.run('PRAGMA busy_timeout = 0')
    holder.run('PRAGMA locking_mode = EXCLUSIVE')
    holder.run('PRAGMA journal_mode = MEMORY')
    holder.run('BEGIN EXCLUSIVE')
    holder.run('COMMIT')
  } catch (cause) {
    holder.close()
    const code = cause instanceof Error && 'code' in cause ? cause.code : undefined
    if (code !== 'SQLITE_BUSY') throw cause
    throw new DatabaseLockedError(directory, readPid(pidFile), cause)
  }
  chmodSync(file, 0o600)
  writeFileSync(pidFile, `${process.pid}\n`, { mode: 0o600 })
  return () => holder.close()
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
