export const hourMs = 3_600_000
export const dayMs = 24 * hourMs
const minuteMs = 60_000

/** The UTC day of a time (unix ms): `2026-11-20`. */
export function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}

/** When the UTC day of a time (unix ms) began, unix ms. */
export function dayStart(at: number): number {
  return at - (at % dayMs)
}

/** A duration of whole minutes in its largest whole unit: `15 minutes`, `24 hours`, `30 days`. */
export function inWords(ms: number): string {
  const [number, unit] = largest(ms)
  return `${number} ${unit}${number === 1 ? '' : 's'}`
}

/** The same as ISO 8601 writes it: `PT15M`, `PT24H`, `P30D`. */
export function toIso(ms: number): string {
  const [number, unit] = largest(ms)
  return `P${unit === 'day' ? '' : 'T'}${number}${unit.slice(0, 1).toUpperCase()}`
}

/** A single day is 24 hours. */
function largest(ms: number): [number: number, unit: 'day' | 'hour' | 'minute'] {
  if (ms > dayMs && ms % dayMs === 0) return [ms / dayMs, 'day']
  if (ms % hourMs === 0) return [ms / hourMs, 'hour']
  return [ms / minuteMs, 'minute']
}
