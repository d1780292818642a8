import * as Problem from '../protocol/Problem'

/**
 * The result for one request. `resetSeconds`: until the full quota is back, or, when refused, until
 * the next request is allowed.
 */
export type RateVerdict = { ok: boolean; limit: number; remaining: number; resetSeconds: number }

export type RateLimit = ReturnType<typeof createRateLimit>

const windowMs = 60_000
const rows = 3

/**
 * A token bucket per key in fixed memory. Each key has one cell in each of three rows of a
 * count-min sketch. A cell stores the time at which its bucket is full again (GCRA), and the least
 * of a key's three cells applies. Nothing is evicted, so a flood of other addresses never gives a
 * key a fresh bucket. A key is wrongly refused only if all three of its cells are shared with keys
 * that spent their quota. The seeds are secret, so an attacker cannot choose addresses for such a
 * collision.
 */
export function createRateLimit(
  options: { seeds?: readonly [number, number, number]; cells?: number } = {},
) {
  const cells = options.cells ?? 1 << 16
  const seeds = options.seeds ?? crypto.getRandomValues(new Uint32Array(rows))
  const fullAt = new Float64Array(rows * cells)
  const cellOf = (key: string, row: number) =>
    row * cells + (Bun.hash.xxHash32(key, seeds[row]) % cells)
  /**
   * Counts one request of `key` at `now` (unix ms), or `weight` units of it. `limit`: in a minute;
   * 0 refuses everything.
   */
  function take(key: string, limit: number, now: number, weight = 1): RateVerdict {
    const a = cellOf(key, 0)
    const b = cellOf(key, 1)
    const c = cellOf(key, 2)
    // No request can set a later time than this, unless the clock was set back. Then the cell is
    // ignored.
    const latest = now + windowMs + 1e-6
    const at = (cell: number) => {
      const value = fullAt[cell] ?? 0
      return value > latest ? 0 : value
    }
    const least = Math.min(at(a), at(b), at(c))
    const tokenMs = windowMs / limit
    const next = Math.max(least, now) + tokenMs * Math.max(1, weight)
    if (!(next - now <= windowMs + 1e-6)) {
      const waitMs = Number.isFinite(next) ? next - now - windowMs : windowMs
      return {
        ok: false,
        limit,
        remaining: 0,
        resetSeconds: Math.max(1, Math.ceil(waitMs / 1000)),
      }
    }
    if (weight > 0) for (const cell of [a, b, c]) fullAt[cell] = Math.max(at(cell), next)
    const remaining = Math.floor((windowMs - (next - now)) / tokenMs + 1e-6)
    return { ok: true, limit, remaining, resetSeconds: Math.ceil((next - now) / 1000) }
  }
  return {
    take,
    /** The result that `take` would return, without counting. */
    peek: (key: string, limit: number, now: number) => take(key, limit, now, 0),
  }
}

/** `RateLimit-*` headers of a verdict, and `Retry-After` (seconds) when it refuses. */
export function headers(verdict: RateVerdict): Record<string, string> {
  return {
    'RateLimit-Limit': String(verdict.limit),
    'RateLimit-Remaining': String(verdict.remaining),
    'RateLimit-Reset': String(verdict.resetSeconds),
    ...(verdict.ok ? {} : { 'Retry-After': String(verdict.resetSeconds) }),
  }
}

/** Refuses a request that is beyond its quota. `what` is counted. */
export function assertWithin(verdict: RateVerdict, what = 'requests'): void {
  if (verdict.ok) return
  const detail = `Too many ${what} from this address: wait for Retry-After.`
  throw Problem.of('rate-limited', detail, { headers: headers(verdict) })
}
