/** A request to a sample upstream: the path's captures are percent-decoded. */
export type Ask = {
  url: URL
  captures: readonly string[]
  headers: Headers
  body: string
}

export type Reply = {
  status?: number
  /** Sent as JSON, or unchanged with another `type`. */
  body: unknown
  type?: string
  headers?: Readonly<Record<string, string>>
  /** Replaces `body`: server-sent events, one after the other. */
  events?: readonly string[]
}

export type Route = {
  method?: 'GET' | 'POST'
  /** Must match the whole path. */
  path: RegExp
  answer(ask: Ask): Reply
}

/** The day of the samples. They do not read the clock, so that equal requests get equal answers. */
export const today = '2026-11-19'
export const todayMs = Date.parse(`${today}T12:00:00Z`)
export const dayMs = 86_400_000

/** An endless sequence of numbers in [0, 1), the same for the same text (mulberry32). */
export function random(text: string): () => number {
  let state = Bun.hash.xxHash32(text)
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

/** The number between `min` and `max` that is derived from a text. */
export function number(text: string, min: number, max: number, decimals = 0): number {
  return Number((min + random(text)() * (max - min)).toFixed(decimals))
}

/** The hex string of `bytes` bytes that is derived from a text. */
export function hex(text: string, bytes: number): string {
  return new Bun.CryptoHasher('sha512')
    .update(text)
    .digest('hex')
    .slice(0, bytes * 2)
}

/** The element that is derived from a text. */
export function pick<T>(text: string, items: readonly [T, ...T[]]): T {
  return items[number(text, 0, items.length - 1)] ?? items[0]
}

export function range(length: number): number[] {
  return Array.from({ length }, (_, index) => index)
}

/** A query parameter as a whole number within bounds. */
export function count(url: URL, name: string, fallback: number, max: number): number {
  const value = url.searchParams.get(name)
  return value && /^\d{1,6}$/.test(value) ? Math.min(Number(value), max) : fallback
}

/** A comma list in a query parameter. */
export function list(url: URL, name: string): string[] {
  return (url.searchParams.get(name) ?? '').split(',').filter(Boolean)
}

/** ISO date of a time. */
export function isoDate(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10)
}

/** Builds a large answer once. */
export function once<T>(make: () => T): () => T {
  let made: { value: T } | undefined
  return () => {
    made ??= { value: make() }
    return made.value
  }
}
