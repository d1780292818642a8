import { Database } from 'bun:sqlite'
import { chmodSync, closeSync, openSync } from 'node:fs'

/**
 * Locks a file for its holder; undefined while another one has it. The lock is the operating system's, on
 * a small database of its own. It ends with the process in every case, and needs no cleaning. Call the
 * result to release it.
 */
export function lockFile(file: string): (() => void) | undefined {
  closeSync(openSync(file, 'a', 0o600))
  chmodSync(file, 0o600)
  const holder = new Database(file)
  try {
    // Kept until the connection closes; without a journal file that a kill would leave.
    holder.run('PRAGMA busy_timeout = 0')
    holder.run('PRAGMA locking_mode = EXCLUSIVE')
    holder.run('PRAGMA journal_mode = MEMORY')
    holder.run('BEGIN EXCLUSIVE')
    holder.run('COMMIT')
    return () => holder.close()
  } catch (error) {
    holder.close()
    if (error instanceof Error && 'code' in error && error.code === 'SQLITE_BUSY') return undefined
    throw error
  }
}
