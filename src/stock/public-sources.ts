import type { StockToken } from '../config/Config'
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

/**
 * The issuer's own quote of the underlying share; a token is worth the quote times the multiplier.
 */
export type IssuerQuote = {
  bid: string | null
  ask: string | null
  currency: string | null
  dailyTradingVolume: string | null
  isTradingHalt: boolean | null
  generatedAt: string | null
  /** Time of the request; unix ms. */
  at: number
}

export type IssuerAsset = {
  status: string | null
  isin: string | null
  logoUrl: string | null
  at: number
}

/** Undefined where the issuer has no answer. Never rejects. */
export type Issuer = {
  quote(token: StockToken): Promise<IssuerQuote | undefined>
  asset(token: StockToken): Promise<IssuerAsset | undefined>
  /** The trading halt, from the cache or within half a second. */
  isHalted(token: StockToken): Promise<boolean | undefined>
}

export type IssuerOptions = {
  url: string
  chainId: number
  userAgent: string
  now: () => number
  timeoutMs?: number
}

const haltWaitMs = 500

/** https://docs.robinhood.com/chain: `/assets` and `/prices/{symbol}`, without a key. */
export function createIssuer(options: IssuerOptions): Issuer {
  const { url, chainId, userAgent, now, timeoutMs = 3_000 } = options
  const common = { url, headers: { 'user-agent': userAgent }, timeoutMs, now }
  const prices = createSource({ ...common, ttlMs: 15_000 })
  const assets = createSource({ ...common, ttlMs: 60_000 })

  const issuer: Issuer = {
    async quote(token) {
      const found = await prices.get(`/prices/${encodeURIComponent(token.symbol)}`)
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
    },
    async asset(token) {
      const found = await assets.get('/assets')
      const row = rowOf(member(found?.value, 'assets') ?? found?.value, token)
      if (found === undefined || row === undefined) return undefined
      return {
        status: textOf(member(row, 'status')),
        isin: textOf(member(row, 'isin')),
        logoUrl: textOf(member(row, 'logoUrl')),
        at: found.at,
      }
    },
    isHalted: (token) =>
      new Promise((resolve) => {
        const timer = setTimeout(() => resolve(undefined), haltWaitMs)
        void issuer.quote(token).then((quote) => {
          clearTimeout(timer)
          resolve(quote?.isTradingHalt ?? undefined)
        })
      }),
  }
  return issuer

  /** Find it by contract: any account may give a token a known ticker. */
  function rowOf(rows: unknown, { address }: StockToken): unknown {
    return elements(rows).find((row) =>
      elements(member(row, 'deployments')).some((deployment) => {
        const contract = member(deployment, 'contractAddress')
        return (
          Number(member(deployment, 'chainId')) === chainId &&
          typeof contract === 'string' &&
          contract.toLowerCase() === address.toLowerCase()
        )
      }),
    )
  }
}

/** Statistics of a token at a Blockscout explorer; null where it has none. Dollars are decimals. */
export type TokenStats = {
  holders: number | null
  marketCap: string | null
  volume24h: string | null
  reputation: string | null
  /** Time of the request; unix ms. */
  at: number
}

export type Explorer = {
  /** Undefined when it does not answer or does not have the contract. Never rejects. */
  token(token: StockToken): Promise<TokenStats | undefined>
  /** Its web page of a token. */
  link(token: StockToken): string
}

export type ExplorerOptions = {
  url: string
  userAgent: string
  now: () => number
  timeoutMs?: number
}

/** Blockscout API v2: `/api/v2/tokens/{address}`. */
export function createExplorer(options: ExplorerOptions): Explorer {
  const { url, userAgent, now, timeoutMs = 3_000 } = options
  // It blocks clients other than browsers without a Referer.
  const headers = { 'user-agent': userAgent, referer: `${url}/` }
  const source = createSource({ url, headers, ttlMs: 60_000, timeoutMs, now })

  return {
    async token({ address }) {
      const found = await source.get(`/api/v2/tokens/${address}`)
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
    link: ({ address }) => `${url}/token/${address}`,
  }
}

function isSame(hash: unknown, address: string): boolean {
  return typeof hash === 'string' && hash.toLowerCase() === address.toLowerCase()
}
