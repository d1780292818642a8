import { readText } from '../net/read-text'

/** An answer of a public API. `at` is unix ms. */
export type Sourced = { value: unknown; at: number }

export type Source = {
  /**
   * The JSON at a path below the source's URL. Kept for `ttlMs`. If the source fails, the last
   * answer is used for ten minutes, with its time. Undefined without a usable answer. Never
   * rejects.
   */
  get(path: string): Promise<Sourced | undefined>
}

export type SourceOptions = {
  /** Without a trailing slash. */
  url: string
  headers: Readonly<Record<string, string>>
  ttlMs: number
  timeoutMs: number
  /** Unix ms. */
  now: () => number
}

const keptMs = 600_000
const failureMs = 5_000
const answerMaxBytes = 4 << 20

type Entry = { askedAt: number; asking: Promise<void>; known: Sourced | undefined; ttlMs: number }

/** A cached public API. Paths come from the configuration, so the cache is bounded. */
export function createSource(options: SourceOptions): Source {
  const { url, headers, ttlMs, timeoutMs, now } = options
  const entries = new Map<string, Entry>()

  return {
    async get(path) {
      const entry = entries.get(path)
      const isFresh = entry !== undefined && Math.abs(now() - entry.askedAt) < entry.ttlMs
      const current = isFresh ? entry : ask(path, entry?.known)
      entries.set(path, current)
      await current.asking
      const { known } = current
      return known !== undefined && now() - known.at < keptMs ? known : undefined
    },
  }

  function ask(path: string, known: Sourced | undefined): Entry {
    const entry: Entry = { askedAt: now(), asking: Promise.resolve(), known, ttlMs }
    entry.asking = fetchJson(url + path, headers, timeoutMs).then(
      (value) => {
        entry.known = { value, at: now() }
      },
      () => {
        entry.ttlMs = Math.min(ttlMs, failureMs)
      },
    )
    return entry
  }
}

async function fetchJson(
  url: string,
  headers: Readonly<Record<string, string>>,
  timeoutMs: number,
): Promise<unknown> {
  const signal = AbortSignal.timeout(timeoutMs)
  const response = await fetch(url, { headers, redirect: 'error', signal })
  if (!response.ok) {
    await response.body?.cancel()
    throw new Error(`status ${response.status}`)
  }
  return JSON.parse(await readText(response, answerMaxBytes))
}

/** A member of a value that should be an object. */
export function member(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, name)
    ? (value as Record<string, unknown>)[name]
    : undefined
}

/** The elements of a value that should be a list. */
export function elements(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}

/** A number or decimal text as decimal text; null for anything else. */
export function decimalOf(value: unknown): string | null {
  const text = typeof value === 'number' ? String(value) : value
  return typeof text === 'string' && /^-?\d{1,40}(\.\d{1,40})?$/.test(text) ? text : null
}

/** A short text; null for anything else. */
export function textOf(value: unknown): string | null {
  return typeof value === 'string' && value !== '' && value.length <= 300 ? value : null
}
