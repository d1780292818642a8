/** When a message that was not accepted is sent again. */

const firstMs = 5_000
const growth = 3
const longestMs = 2 * 3_600_000
/** Longest wait that an endpoint may require by Retry-After, ms. */
const retryAfterMaxMs = 3_600_000

/** Wait after so many attempts, at least one, ms: 5 s, 15 s, .., 2 h. `random`: 0 to 1. */
export function delayMs(attempts: number, random: number): number {
  const wait = Math.min(longestMs, firstMs * growth ** (attempts - 1))
  // Spreads the messages of one failure over time.
  return Math.round(wait * (0.75 + random / 2))
}

/** The time that Retry-After asks for, seconds or a date, at most an hour; 0 without one. */
export function retryAfterMs(header: string | null, now: number): number {
  if (header === null) return 0
  const text = header.trim()
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - now
  return Number.isNaN(ms) ? 0 : Math.min(retryAfterMaxMs, Math.max(0, ms))
}

/** Failures in a row after which an endpoint counts as failing. */
export const failuresMax = 5
const pauseMaxMs = 5 * 60_000

/** Wait of a failing endpoint before one message tries it again, ms; 0 while it is not failing. */
export function pauseMs(failures: number, random: number): number {
  if (failures < failuresMax) return 0
  return Math.min(pauseMaxMs, delayMs(failures - failuresMax + 1, random))
}
