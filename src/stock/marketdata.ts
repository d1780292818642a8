import { RpcFault } from '../chain/client'
import type { Stock, StockToken } from '../config/Config'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import type { Counted, Explorer } from './explorer'
import type { Issuer, IssuerAsset, IssuerQuote } from './issuer'
import type { Market } from './market'
import * as Snapshot from './Snapshot'
import * as Verdict from './Verdict'

/**
 * What is told of the listed tokens, as JSON. Amounts are decimal texts; what no source has is null.
 * Every method throws RpcFault when the chain has not answered for a minute, or has no such contracts.
 */
export type MarketData = {
  find(symbolOrAddress: string): StockToken | undefined
  quote(token: StockToken): Promise<unknown>
  token(token: StockToken): Promise<unknown>
  stocks(): Promise<unknown>
  report(): Promise<unknown>
}

export type MarketDataOptions = {
  market: Market
  asset: Asset
  /** Undefined: not configured. */
  issuer: Issuer | undefined
  explorer: Explorer | undefined
  now: () => number
}

/** All that is known of one token. */
type Known = {
  look: Snapshot.Snapshot
  quoted: IssuerQuote | undefined
  listed: IssuerAsset | undefined
  counted: Counted | undefined
}

const lookMaxAgeMs = 60_000

/** Reads the chain, and beside it the issuer and the explorer, each with its own cache. */
export function createMarketData(options: MarketDataOptions): MarketData {
  const { market, asset, issuer, explorer, now } = options
  const { stock } = market
  const usdg = (atomic: bigint | undefined) =>
    atomic === undefined ? null : Amount.toDecimal(atomic, asset.decimals)

  return {
    find: market.find,
    async quote(token) {
      const known = await knowOne(token)
      return { ...nameOf(token), ...quoteOf(known), ...timesOf([known]) }
    },
    async token(token) {
      const known = await knowOne(token)
      return { ...nameOf(token), ...contractOf(known), ...timesOf([known]) }
    },
    async stocks() {
      const all = await knowAll()
      const stocks = all.map(({ look, counted }) => ({
        symbol: look.token.symbol,
        name: look.token.name,
        address: look.token.address,
        price: usdg(Snapshot.shownPriceAtomic(look)),
        marketCap: counted?.marketCap ?? null,
        volume24h: counted?.volume24h ?? null,
        holders: counted?.holders ?? null,
        status: statusOf(look),
      }))
      return { ...headOf(stock, asset), count: stocks.length, stocks, ...timesOf(all) }
    },
    async report() {
      const all = await knowAll()
      const stocks = all.map((known) => ({
        ...nameOf(known.look.token),
        ...quoteOf(known),
        ...contractOf(known),
      }))
      const totals = {
        marketCap: sumOf(all.map(({ counted }) => counted?.marketCap ?? null)),
        volume24h: sumOf(all.map(({ counted }) => counted?.volume24h ?? null)),
      }
      return { ...headOf(stock, asset), count: stocks.length, totals, stocks, ...timesOf(all) }
    },
  }

  async function knowAll(): Promise<Known[]> {
    const looks = await market.snapshots()
    // One that cannot be read is told as such among the others.
    if (!looks.some(isReadable)) throw new RpcFault('no token can be read')
    return Promise.all(looks.map(recent).map(know))
  }

  async function knowOne(token: StockToken): Promise<Known> {
    const look = await market.snapshot(token)
    if (!isReadable(look)) throw new RpcFault('the token cannot be read')
    return know(recent(look))
  }

  /** Nobody pays for live data to get that of an hour ago. */
  function recent(look: Snapshot.Snapshot): Snapshot.Snapshot {
    if (now() - look.readAt > lookMaxAgeMs) throw new RpcFault('no answer for a minute')
    return look
  }

  async function know(look: Snapshot.Snapshot): Promise<Known> {
    const [quoted, listed, counted] = await Promise.all([
      issuer?.quote(look.token),
      issuer?.asset(look.token),
      explorer?.token(look.token),
    ])
    return { look, quoted, listed, counted }
  }

  function nameOf({ symbol, name, address }: StockToken) {
    return { symbol, name, address, network: stock.network }
  }

  function statusOf(look: Snapshot.Snapshot): string {
    const verdict = market.judge(look)
    return verdict.ok ? 'open' : verdict.code
  }

  function quoteOf({ look, quoted, counted }: Known) {
    const { token } = look
    return {
      price: usdg(Snapshot.shownPriceAtomic(look)),
      currency: 'USD',
      asset: asset.symbol,
      pool: {
        address: token.pool,
        fee: token.fee,
        price: usdg(look.midPriceAtomic),
        liquidity: textOf(look.liquidity),
      },
      feed: feedOf(look),
      issuer: quoted === undefined ? null : { ...quoted, at: undefined },
      marketCap: counted?.marketCap ?? null,
      volume24h: counted?.volume24h ?? null,
      holders: counted?.holders ?? null,
      multiplier: scaled(look.multiplierE18, 18),
      halted: look.isHalted ?? null,
      paused: look.isPaused ?? null,
      status: statusOf(look),
    }
  }

  function feedOf({ token, feed, isOraclePaused }: Snapshot.Snapshot) {
    if (token.feed === undefined) return null
    return {
      address: token.feed,
      price: usdg(feed?.priceAtomic),
      updatedAt: feed === undefined ? null : iso(feed.updatedAt),
      stale: feed === undefined ? null : Verdict.isStale(feed, stock, now()),
      paused: isOraclePaused ?? null,
    }
  }

  function contractOf({ look, listed, counted }: Known) {
    const { token, decimals, totalSupplyAtomic } = look
    return {
      decimals: decimals ?? null,
      totalSupply: decimals === undefined ? null : scaled(totalSupplyAtomic, decimals),
      totalSupplyAtomic: textOf(totalSupplyAtomic),
      multiplier: scaled(look.multiplierE18, 18),
      halted: look.isHalted ?? null,
      paused: look.isPaused ?? null,
      holders: counted?.holders ?? null,
      reputation: counted?.reputation ?? null,
      explorer: explorer?.link(token) ?? null,
      isin: listed?.isin ?? null,
      issuerStatus: listed?.status ?? null,
      logoUrl: listed?.logoUrl ?? null,
      factory: stock.factory,
      registry: stock.registry,
    }
  }

  /** How old it is: of each source the oldest that went into the answer, null if none did. */
  function timesOf(all: readonly Known[]) {
    const [first] = all
    const readAt = Math.min(...all.map(({ look }) => look.readAt))
    return {
      blockNumber: first === undefined ? null : Number(first.look.blockNumber),
      updatedAt: iso(readAt),
      ageSeconds: ageOf(readAt),
      sources: {
        chain: timeOf([readAt]),
        issuer: timeOf(all.flatMap(({ quoted, listed }) => [quoted?.at, listed?.at])),
        explorer: timeOf(all.map(({ counted }) => counted?.at)),
      },
    }
  }

  function timeOf(times: readonly (number | undefined)[]) {
    const known = times.filter((time) => time !== undefined)
    if (known.length === 0) return null
    const oldest = Math.min(...known)
    return { updatedAt: iso(oldest), ageSeconds: ageOf(oldest) }
  }

  function ageOf(at: number): number {
    return Math.max(0, Math.floor((now() - at) / 1000))
  }
}

function isReadable({ decimals }: Snapshot.Snapshot): boolean {
  return decimals !== undefined
}

function headOf(stock: Stock, asset: Asset) {
  return { network: stock.network, currency: 'USD', asset: asset.symbol }
}

/** Null unless every part is known: a sum of some would look like the sum of all. */
function sumOf(parts: readonly (string | null)[]): string | null {
  let cents = 0
  for (const part of parts) {
    if (part === null) return null
    cents += Math.round(Number(part) * 100)
  }
  return Number.isSafeInteger(cents) ? (cents / 100).toFixed(2) : null
}

function scaled(atomic: bigint | undefined, decimals: number): string | null {
  return atomic === undefined ? null : Amount.toDecimal(atomic, decimals)
}

function textOf(value: bigint | undefined): string | null {
  return value === undefined ? null : String(value)
}

function iso(at: number): string {
  return new Date(at).toISOString()
}
