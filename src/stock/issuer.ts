import type { StockToken } from '../config/Config'
import { createSource, decimalOf, elements, member, textOf } from './source'

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
