import type { ServerState, Standby } from '../Database'
import { readAheadMs, readStandby, skewReason } from './checks'
import type { Line } from './Line'
import { DatabaseStartError, reach } from './reach'
import type * as Url from './Url'

/** The lock of the one service that may use a database. It ends with its connection. */
export type Sole = {
  server: ServerState
  /** Releases the lock. Idempotent. */
  close(): void
}

export type SoleOptions = {
  target: Url.Target
  line: Line
  /** Unix ms. */
  now: () => number
  /** How far the server's clock was ahead at the start, ms. */
  aheadMs: number
  /** The connection was lost, and another service has the lock now. */
  onTaken: () => void
  /** Interval of the looks at the server, ms. */
  lookMs?: number
}

/** Another number than that of the installation of functions and of migrations. */
const lockKey = 7_408_122
const lookMsByDefault = 2_000

/**
 * A server notices within about 15 s that a machine is gone, so that another one can take the lock.
 * Its default is two hours.
 */
const session = [
  'SET tcp_keepalives_idle = 5',
  'SET tcp_keepalives_interval = 3',
  'SET tcp_keepalives_count = 3',
]

/**
 * Takes the lock of the database. Throws `DatabaseStartError` when another service has it: two would
 * send transactions with the same account nonces.
 */
export async function takeLock(line: Line, name: string): Promise<void> {
  const holder = await line.run(async (query) => {
    for (const statement of session) await query(statement)
    const [row] = await query<{ taken: boolean }>('SELECT pg_try_advisory_lock($1) AS taken', [
      lockKey,
    ])
    if (row?.taken) return undefined
    const [other] = await query<{ holder: string | null }>(
      `SELECT coalesce(host(client_addr), 'this machine') || ', connected since ' ||
         to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS holder
       FROM pg_locks JOIN pg_stat_activity USING (pid)
       WHERE locktype = 'advisory' AND objid = $1 AND granted
         AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
      [lockKey],
    )
    return other?.holder ?? 'unknown'
  })
  if (holder === undefined) return
  throw new DatabaseStartError(
    `another turnpike uses the database ${name} (${holder}): stop it first, or name another ` +
      'database in DATABASE_URL. A machine that was lost releases it within 15 s',
  )
}

/** Keeps the lock, and looks at clock and standbys of the server. */
export function keepLock(options: SoleOptions): Sole {
  const { target, line, now, aheadMs, onTaken, lookMs = lookMsByDefault } = options
  const state = { line, aheadMs, standby: 'unknown' as Standby, isClosed: false, isLooking: false }
  const look = async () => {
    if (state.isClosed || state.isLooking) return
    state.isLooking = true
    try {
      if (!state.line.isOpen()) state.line = await again(target)
      await state.line.run(async (query) => {
        state.aheadMs = await readAheadMs(query, now)
        state.standby = await readStandby(query)
      })
    } catch (error) {
      if (error instanceof TakenError && !state.isClosed) onTaken()
      // Otherwise there is no connection: the next look opens one, and the storage reports the fault.
    } finally {
      state.isLooking = false
      // A close meanwhile has closed the previous connection only.
      if (state.isClosed) state.line.close()
    }
  }
  const timer = setInterval(() => void look(), lookMs)
  timer.unref()
  void look()
  return {
    server: {
      aheadMs: () => state.aheadMs,
      reason: () => skewReason(state.aheadMs),
      standby: () => state.standby,
    },
    close() {
      state.isClosed = true
      clearInterval(timer)
      state.line.close()
    },
  }
}

class TakenError extends Error {
  override readonly name = 'TakenError'
}

/** A connection that has the lock again. */
async function again(target: Url.Target): Promise<Line> {
  const { line } = await reach(target)
  try {
    await takeLock(line, '')
    return line
  } catch (error) {
    line.close()
    if (error instanceof DatabaseStartError) throw new TakenError()
    throw error
  }
}
