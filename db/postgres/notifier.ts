import type { Lines } from './line-pool'

/** Payments and jobs whose state a commit has changed. */
export type ChangedIds = { payments: readonly string[]; jobs: readonly string[] }

export type Notifier = {
  /** Notifies the other gateways within moments. */
  tell(ids: ChangedIds): void
}

/** A payload has at most 8,000 bytes. */
const bytesMax = 7_000
const notify = "SELECT pg_notify('turnpike', $1)"

/**
 * Tells the other gateways what commits have changed. NOTIFY locks all commits of a database until its
 * own is on the disk, so it has a transaction of its own that does not wait for the disk. Changes that
 * come while one is sent share the next one. If one is lost, the others notice within half a second.
 */
export function createNotifier(lines: Pick<Lines, 'run'>, gateway: string): Notifier {
  let payments: string[] = []
  let jobs: string[] = []
  let isRunning = false
  const drain = async () => {
    while (payments.length + jobs.length > 0) {
      const payload = JSON.stringify({ by: gateway, payments, jobs })
      payments = []
      jobs = []
      // Without ids it says that everything may have changed.
      const short = payload.length <= bytesMax ? payload : JSON.stringify({ by: gateway })
      await lines
        .run('soon', (query) => query(notify, [short], { name: 'notify' }))
        .catch(() => undefined)
    }
    isRunning = false
  }
  return {
    tell(ids) {
      payments.push(...ids.payments)
      jobs.push(...ids.jobs)
      if (isRunning) return
      isRunning = true
      void drain()
    },
  }
}
