import type { SalesLedger } from '../../db/SalesLedger'
import { hourMs } from '../protocol/Time'
import type { Tally } from './tally'

/** Longest time (ms) that counts are in memory only. */
const waitMs = 5_000

/** Hours are kept for this time (ms), which bounds the table. */
const keptMs = 400 * 24 * hourMs

export type Hours = {
  /** Writes what was counted since the last time. Never rejects. */
  flush(): Promise<void>
  /** Writes the rest and ends the timer. */
  stop(): Promise<void>
}

export type HoursOptions = {
  ledger: Pick<SalesLedger, 'addRequests'>
  tally: Tally
  /** Unix ms. */
  now: () => number
}

/**
 * Writes the counts of requests every few seconds and at the end of each hour, so that a request
 * never waits for them. A crash loses the last seconds. Counts that cannot be written stay in
 * memory, and count for the hour in which they are written.
 */
export function startHours({ ledger, tally, now }: HoursOptions): Hours {
  const hourNow = () => Math.floor(now() / hourMs) * hourMs
  /** The hour of the unwritten counts. */
  let hour = hourNow()
  let timer: ReturnType<typeof setTimeout> | undefined
  let isStopped = false
  let last = Promise.resolve()
  const write = async () => {
    const counts = tally.unwritten()
    const of = hour
    hour = hourNow()
    if (counts.length === 0) return
    try {
      await ledger.addRequests(of, counts, hour - keptMs)
      tally.wrote(counts)
    } catch {
      // The database reports its fault itself.
    }
  }
  const arm = () => {
    timer = setTimeout(run, Math.min(waitMs, hour + hourMs - now()))
    timer.unref()
  }
  // Runs one write after the other, because the counts of a running write are still unwritten.
  const flush = () => {
    last = last.then(write)
    return last
  }
  const run = async () => {
    await flush()
    if (!isStopped) arm()
  }
  arm()
  return {
    flush,
    async stop() {
      isStopped = true
      clearTimeout(timer)
      await flush()
    },
  }
}
