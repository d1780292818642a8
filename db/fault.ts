/**
 * Codes for storage that cannot be read or written: a full disk, an I/O error, a read-only volume,
 * a damaged file. Not BUSY and not CONSTRAINT. https://sqlite.org/rescode.html
 * `DATABASE_GONE`: no connection to PostgreSQL.
 */
const faultCodes =
  /^(?:DATABASE_GONE$|SQLITE_(?:FULL|IOERR|READONLY|CORRUPT|NOTADB|CANTOPEN)(?:_|$))/
const causesMax = 8

/** Code of a storage fault, of the error itself or of a cause; undefined for any other error. */
export function storageCode(error: unknown): string | undefined {
  let each = error
  for (let depth = 0; depth < causesMax && each instanceof Error; depth++) {
    const code = 'code' in each ? each.code : undefined
    if (typeof code === 'string' && faultCodes.test(code)) return code
    each = each.cause
  }
  return undefined
}

/** Why a command cannot use a database beside a running service. The message says what to do. */
export class BesideError extends Error {
  override readonly name = 'BesideError'
}

/** The fault of a storage, how often each kind began, and the calls that wait for its end. */
export function createFaultState() {
  const counts = new Map<string, number>()
  const listeners: ((code: string | undefined) => void)[] = []
  const waiting = new Set<() => void>()
  let current: string | undefined
  return {
    fault: () => current,
    counts: (): ReadonlyMap<string, number> => counts,
    onChange: (listener: (code: string | undefined) => void) => void listeners.push(listener),
    count: (code: string) => void counts.set(code, (counts.get(code) ?? 0) + 1),
    /** Tells the listeners of another code. */
    change(code: string | undefined): void {
      if (code === current) return
      current = code
      for (const listener of listeners) listener(code)
    },
    /** The storage can be written. */
    resume(): void {
      for (const each of waiting) each()
      waiting.clear()
    },
    /** Resolves with the next `resume`; rejects when the signal fires. */
    wait(signal: AbortSignal): Promise<void> {
      const stopped = () => new Error('stopped before the storage could be written')
      if (signal.aborted) return Promise.reject(stopped())
      return new Promise((resolve, reject) => {
        const fail = () => {
          waiting.delete(resume)
          reject(stopped())
        }
        const resume = () => {
          signal.removeEventListener('abort', fail)
          resolve()
        }
        waiting.add(resume)
        signal.addEventListener('abort', fail, { once: true })
      })
    },
  }
}
