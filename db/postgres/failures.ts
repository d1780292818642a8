import { apartMs, type FailureLedger } from '../FailureLedger'
import type { Parts } from './parts'
import { refresh } from './refresh'

type Row = { key: string; at: number }

/** Each has cost a failed transaction, so the gas budget bounds their number. */
const rowsMax = 10_000
const read = `SELECT key, full_at AS at FROM payer_failures WHERE full_at > $1
  ORDER BY full_at DESC LIMIT ${rowsMax}`

type Failures = {
  ledger: FailureLedger
  /** Ends the timer. */
  close(): void
}

/** Reads the failures that all gateways have recorded, and reads them again once a second. */
export async function startFailures(
  { commits, reader }: Pick<Parts, 'commits' | 'reader'>,
  now: () => number,
): Promise<Failures> {
  const fullAt = new Map<string, number>()
  // A read that began before a commit must not undo it, and what has expired is of no use.
  const note = (key: string, at: number) => void fullAt.set(key, Math.max(fullAt.get(key) ?? 0, at))
  const load = async () => {
    const rows = await reader.all<Row>(read, [now()])
    for (const [key, at] of fullAt) if (at <= now()) fullAt.delete(key)
    for (const { key, at } of rows) note(key, at)
  }
  await load()
  const close = refresh(load)
  return {
    ledger: {
      fullAt: (key) => fullAt.get(key.toLowerCase()) ?? 0,
      async add(failures, windowMs) {
        const rows = failures.map(({ key, ms }) => ({ key: key.toLowerCase(), ms: Math.ceil(ms) }))
        const sums = await commits.addSoon({
          call: 'add_failures',
          input: { failures: rows, window: windowMs, apart: apartMs, at: now() },
          key: `failures:${rows[0]?.key}`,
          read: (value) => value as Record<string, number>,
        })
        for (const [key, at] of Object.entries(sums)) note(key, at)
      },
    },
    close,
  }
}
