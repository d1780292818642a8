import { dayMs, hourMs } from '../protocol/Time'

/**
 * The begin of a period as unix ms: `30d` is 30 days before the begin of this UTC day, `24h` is 24
 * hours ago, a date without a zone is in UTC, and digits are a Unix time in seconds or milliseconds.
 * Undefined for any other text and for a time after `now`.
 */
export function parse(text: string, now: number): number | undefined {
  const at = timeOf(text, now)
  return at !== undefined && at >= 0 && at <= now ? at : undefined
}

function timeOf(text: string, now: number): number | undefined {
  const ago = /^(\d{1,5})([dh])$/.exec(text)
  if (ago !== null) {
    const count = Number(ago[1])
    if (ago[2] === 'h') return Math.max(0, now - count * hourMs)
    return Math.max(0, Math.floor(now / dayMs) * dayMs - count * dayMs)
  }
  if (/^\d{9,10}$/.test(text)) return Number(text) * 1000
  if (/^\d{12,13}$/.test(text)) return Number(text)
  const date = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,3})?)?(Z|[+-]\d\d:\d\d)?)?$/.exec(text)
  if (date === null) return undefined
  const isZoned = date[1] === undefined || date[4] !== undefined
  const at = Date.parse(isZoned ? text : `${text}Z`)
  // Date.parse takes the 31st of a shorter month for the next month.
  const isDay = new Date(`${text.slice(0, 10)}T00:00Z`).toISOString().startsWith(text.slice(0, 10))
  return Number.isNaN(at) || !isDay ? undefined : at
}
