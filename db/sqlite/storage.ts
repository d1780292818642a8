import type { Database } from 'bun:sqlite'
import { basename } from 'node:path'
import type { StorageFaults } from '../Database'
import { createFaultState, storageCode } from '../fault'

/** Whether the database file can be read and written, according to the last attempts. */
export type Storage = StorageFaults & {
  /** Records an error if it is a storage fault. Never throws. */
  note(error: unknown): void
  /** Resolves when the file can be written, at once when it can; rejects when the signal fires. */
  writable(signal: AbortSignal): Promise<void>
  /** Ends the attempts to write. */
  close(): void
}

const damageCodes = /^SQLITE_(?:CORRUPT|NOTADB)(?:_|$)/
/** Errors of the system that a flush of the log reports. */
const systemCodes = new Set(['EIO', 'ENOSPC', 'EDQUOT', 'EROFS'])

/** Whether a code means that the file is damaged, which no write can repair. */
export function isDamage(code: string): boolean {
  return damageCodes.test(code)
}

const probeMs = 250
/** Size of several payments: a smaller write could succeed and the next payment still fail. */
const probeBytes = 64 * 1024

/**
 * Guards every prepared statement of a connection. During a fault it writes 64 KiB four times a
 * second until that succeeds. A damaged file stays a fault until the next start: it must be
 * restored.
 */
export function watchStorage(sqlite: Database, file: string): Storage {
  const state = createFaultState()
  let timer: ReturnType<typeof setInterval> | undefined

  const stop = () => {
    clearInterval(timer)
    timer = undefined
  }
  const probe = () => {
    if (sqlite.inTransaction) return
    try {
      tryWrite(sqlite)
    } catch {
      return
    }
    stop()
    state.change(undefined)
    state.resume()
  }
  const note = (error: unknown) => {
    const code = storageCode(error) ?? systemCode(error)
    if (code === undefined) return
    state.count(code)
    const current = state.fault()
    if (current !== undefined && (isDamage(current) || !isDamage(code))) return
    if (isDamage(code)) stop()
    else {
      timer = setInterval(probe, probeMs)
      timer.unref()
    }
    state.change(code)
  }
  guardStatements(sqlite, note)
  return {
    file,
    name: basename(file),
    fault: state.fault,
    counts: state.counts,
    note,
    onChange: state.onChange,
    writable: (signal) =>
      state.fault() === undefined && !signal.aborted ? Promise.resolve() : state.wait(signal),
    close: stop,
  }
}

/**
 * Commits 64 KiB, removes them, and writes the log back. Throws when they do not fit, or while another
 * connection reads the log. What one sync of the log has failed to write, the system may never write, and
 * after a loss of power all behind it is gone. So the file takes all of the log, which begins again.
 */
export function tryWrite(sqlite: Database): void {
  sqlite.run("INSERT OR REPLACE INTO meta (key, value) VALUES ('storage-probe', ?)", [
    ' '.repeat(probeBytes),
  ])
  sqlite.run("DELETE FROM meta WHERE key = 'storage-probe'")
  const { timeout } = sqlite.query('PRAGMA busy_timeout').get() as { timeout: number }
  sqlite.run('PRAGMA busy_timeout = 0')
  try {
    const { busy } = sqlite.query('PRAGMA wal_checkpoint(TRUNCATE)').get() as { busy: number }
    if (busy !== 0) throw new Error('another connection reads the log')
  } finally {
    sqlite.run(`PRAGMA busy_timeout = ${timeout}`)
  }
}

const methods = ['run', 'get', 'all', 'values'] as const

/** Passes the errors of every statement prepared from now on to `note`, and rethrows them. */
function guardStatements(sqlite: Database, note: (error: unknown) => void): void {
  const prepare = sqlite.prepare.bind(sqlite)
  const guarded = (...input: Parameters<Database['prepare']>) => {
    const statement = prepare(...input)
    for (const name of methods) {
      const own = statement[name] as (...values: unknown[]) => unknown
      const watched = (...values: unknown[]) => {
        try {
          return own.apply(statement, values)
        } catch (error) {
          note(error)
          throw error
        }
      }
      Object.defineProperty(statement, name, { value: watched })
    }
    return statement
  }
  Object.defineProperty(sqlite, 'prepare', { value: guarded })
}

function systemCode(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' && systemCodes.has(code) ? code : undefined
}
