import type { StockToken } from '../config/Config'
import { readText } from '../net/read-text'
import * as Address from '../protocol/Address'
import * as Json from '../protocol/Json'

/** Public data of the listed tokens: what their issuer and a block explorer answer. */

type SourceOptions = {
  /** Without a trailing slash. */
  url: string
  userAgent: string
  /** Unix ms. */
  now: () => number
  timeoutMs?: number
}

const keptMs = 600_000
const failureMs = 5_000
const answerMaxBytes = 4 << 20

/** An answer of a public API. `at` is unix ms. */
type Sourced = { value: unknown; at: number }

type Entry = { askedAt: number; asking: Promise<void>; known: Sourced | undefined; ttlMs: number }

/**
 * Returns a function that reads the JSON at a path below the source's URL. Kept for `ttlMs`. If the
 * source fails, the last answer is used for ten minutes, with its time. Undefined without a usable
 * answer. Never rejects. Paths come from the configuration, so the cache is bounded.
 */
function createSource(
  { url, userAgent, now, timeoutMs = 3_000 }: SourceOptions,
  ttlMs: number,
  added: Readonly<Record<string, string>> = {},
) {
  const entries = new Map<string, Entry>()
  const headers = { 'user-agent': userAgent, ...added }

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

  return async (path: string): Promise<Sourced | undefined> => {
    const entry = entries.get(path)
    const isFresh = entry !== undefined && Math.abs(now() - entry.askedAt) < entry.ttlMs
    const current = isFresh ? entry : ask(path, entry?.known)
    entries.set(path, current)
    await current.asking
    const { known } = current
    return known !== undefined && now() - known.at < keptMs ? known : undefined
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
function member(value: unknown, name: string): unknown {
  return Json.isObject(value) ? Json.member(value, name) : undefined
}

/** The elements of a value that should be a list. */
function elements(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}

/** A number or decimal text as decimal text; null for anything else. */
function decimalOf(value: unknown): string | null {
  const text = typeof value === 'number' ? String(value) : value
  return typeof text === 'string' && /^-?\d{1,40}(\.\d{1,40})?$/.test(text) ? text : null
}

/** A short text; null for anything else. */
function textOf(value: unknown): string | null {
  return typeof value === 'string' && value !== '' && value.length <= 300 ? value : null
}

const haltWaitMs = 500

export type StockIssuer = ReturnType<typeof createIssuer>
export type IssuerQuote = Awaited<ReturnType<StockIssuer['quote']>>
export type IssuerAsset = Awaited<ReturnType<StockIssuer['asset']>>

/**
 * The issuer at https://docs.robinhood.com/chain: `/assets` and `/prices/{symbol}`, without a key.
 * Undefined where it has no answer. Never rejects. `at`: time of the request, unix ms.
 */
export function createIssuer({ chainId, ...options }: SourceOptions & { chainId: number }) {
  const readPrices = createSource(options, 15_000)
  const readAssets = createSource(options, 60_000)

  /** Find it by contract: any account may give a token a known ticker. */
  function rowOf(rows: unknown, { address }: StockToken): unknown {
    return elements(rows).find((row) =>
      elements(member(row, 'deployments')).some(
        (deployment) =>
          Number(member(deployment, 'chainId')) === chainId &&
          isSame(member(deployment, 'contractAddress'), address),
      ),
    )
  }

  /** Its own quote of the underlying share; a token is worth the quote times the multiplier. */
  async function quote(token: StockToken) {
    const found = await readPrices(`/prices/${encodeURIComponent(token.symbol)}`)
    const row = rowOf(member(found?.value, 'quotes'), token)
    if (found === undefined || row === undefined) return undefined
    const halt = member(row, 'isTradingHalt')
    return {
      bid: decimalOf(member(row, 'bid')),
      ask: decimalOf(member(row, 'ask')),
      currency: textOf(member(row, 'currency')),
      dailyTradingVolume: decimalOf(member(row, 'dailyTradingVolume')),
      isTradingHalt: typeof halt === 'boolean' ? halt : null,
      generatedAt: textOf(member(row, 'generatedAt')),
      at: found.at,
    }
  }

  return {
    quote,
    async asset(token: StockToken) {
      const found = await readAssets('/assets')
      const row = rowOf(member(found?.value, 'assets') ?? found?.value, token)
      if (found === undefined || row === undefined) return undefined
      return {
        status: textOf(member(row, 'status')),
        isin: textOf(member(row, 'isin')),
        logoUrl: textOf(member(row, 'logoUrl')),
        at: found.at,
      }
    },
    /** The trading halt, from the cache or within half a second. */
    isHalted: (token: StockToken) =>
      new Promise<boolean | undefined>((resolve) => {
        const timer = setTimeout(() => resolve(undefined), haltWaitMs)
        void quote(token).then((answer) => {
          clearTimeout(timer)
          resolve(answer?.isTradingHalt ?? undefined)
        })
      }),
  }
}

export type Explorer = ReturnType<typeof createExplorer>
export type TokenStats = Awaited<ReturnType<Explorer['token']>>

/** Blockscout API v2: `/api/v2/tokens/{address}`. */
export function createExplorer(options: SourceOptions) {
  // It blocks clients other than browsers without a Referer.
  const read = createSource(options, 60_000, { referer: `${options.url}/` })
  return {
    /**
     * Statistics of a token; null where it has none. Dollars are decimals. Undefined when the explorer
     * does not answer or does not have the contract. Never rejects. `at`: unix ms.
     */
    async token({ address }: StockToken) {
      const found = await read(`/api/v2/tokens/${address}`)
      const hash = member(found?.value, 'address_hash') ?? member(found?.value, 'address')
      if (found === undefined || !isSame(hash, address)) return undefined
      const { value, at } = found
      const holders = decimalOf(member(value, 'holders_count') ?? member(value, 'holders'))
      return {
        holders: holders !== null && /^\d{1,15}$/.test(holders) ? Number(holders) : null,
        marketCap: decimalOf(member(value, 'circulating_market_cap')),
        volume24h: decimalOf(member(value, 'volume_24h')),
        reputation: textOf(member(value, 'reputation')),
        at,
      }
    },
    /** Its web page of a token. */
    link: ({ address }: StockToken) => `${options.url}/token/${address}`,
  }
}

function isSame(hash: unknown, address: string): boolean {
  return typeof hash === 'string' && Address.equal(hash, address)
}
