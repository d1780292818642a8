import type { StockToken } from '../config/Config'
import { createSource, decimalOf, member, textOf } from './source'

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
