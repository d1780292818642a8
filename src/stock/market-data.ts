import { RpcFault } from '../chain/client'
import type { StockToken } from '../config/Config'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import type { Market } from './market'
import type { Explorer, IssuerAsset, IssuerQuote, StockIssuer, TokenStats } from './public-sources'
import * as Snapshot from './Snapshot'

type MarketDataOptions = {
  market: Market
  asset: Asset
  /** Undefined: not configured. */
  issuer: StockIssuer | undefined
  explorer: Explorer | undefined
  now: () => number
}

/** The collected data of one token. */
type TokenData = {
  snapshot: Snapshot.Snapshot
  quoted: IssuerQuote
  listed: IssuerAsset
  stats: TokenStats
}

const snapshotMaxAgeMs = 60_000

export type MarketData = ReturnType<typeof createMarketData>

/**
 * Data of the listed tokens, as JSON, of the chain, the issuer and the explorer, each with its own
 * cache. Amounts are decimal texts; a value without a source is null. Every method throws RpcFault when
 * the chain has not answered for a minute, or has no such contracts.
 */
export function createMarketData(options: MarketDataOptions) {
  return {
    find: options.market.find,
    async quote(token: StockToken): Promise<unknown> {
      const known = await collectOne(options, token)
      return { ...nameOf(options, token), ...quoteOf(options, known), ...timesOf(options, [known]) }
    },
    async token(token: StockToken): Promise<unknown> {
      const known = await collectOne(options, token)
      return {
        ...nameOf(options, token),
        ...contractOf(options, known),
        ...timesOf(options, [known]),
      }
    },
    async stocks(): Promise<unknown> {
      const all = await collectAll(options)
      const stocks = all.map(({ snapshot, stats }) => ({
        symbol: snapshot.token.symbol,
        name: snapshot.token.name,
        address: snapshot.token.address,
        price: usdg(options, Snapshot.shownPriceAtomic(snapshot)),
        ...volumeOf(stats),
        status: statusOf(options, snapshot),
      }))
      return { ...headOf(options), count: stocks.length, stocks, ...timesOf(options, all) }
    },
    async report(): Promise<unknown> {
      const all = await collectAll(options)
      const stocks = all.map((known) => ({
        ...nameOf(options, known.snapshot.token),
        ...quoteOf(options, known),
        ...contractOf(options, known),
      }))
      const totals = {
        marketCap: sumOf(all.map(({ stats }) => volumeOf(stats).marketCap)),
        volume24h: sumOf(all.map(({ stats }) => volumeOf(stats).volume24h)),
      }
      const count = stocks.length
      return { ...headOf(options), count, totals, stocks, ...timesOf(options, all) }
    },
  }
}

function volumeOf(stats: TokenStats) {
  return {
    marketCap: stats?.marketCap ?? null,
    volume24h: stats?.volume24h ?? null,
    holders: stats?.holders ?? null,
  }
}

/** An amount of the asset, as text. */
function usdg({ asset }: MarketDataOptions, atomic: bigint | undefined) {
  return atomic === undefined ? null : Amount.toDecimal(atomic, asset.decimals)
}

async function collectAll(options: MarketDataOptions): Promise<TokenData[]> {
  const snapshots = await options.market.snapshots()
  // An unreadable token is marked as such among the others.
  if (!snapshots.some(isReadable)) throw new RpcFault('no token can be read')
  return Promise.all(snapshots.map((snapshot) => collect(options, snapshot)))
}

async function collectOne(options: MarketDataOptions, token: StockToken): Promise<TokenData> {
  const snapshot = await options.market.snapshot(token)
  if (!isReadable(snapshot)) throw new RpcFault('the token cannot be read')
  return collect(options, snapshot)
}

/** The data beside a snapshot. Refuses an old one, because the payment is for live data. */
async function collect(
  { issuer, explorer, now }: MarketDataOptions,
  snapshot: Snapshot.Snapshot,
): Promise<TokenData> {
  if (now() - snapshot.readAt > snapshotMaxAgeMs) throw new RpcFault('no answer for a minute')
  const { token } = snapshot
  const [quoted, listed, stats] = await Promise.all([
    issuer?.quote(token),
    issuer?.asset(token),
    explorer?.token(token),
  ])
  return { snapshot, quoted, listed, stats }
}

function nameOf(options: MarketDataOptions, { symbol, name, address }: StockToken) {
  return { symbol, name, address, network: options.market.stock.network }
}

function statusOf(options: MarketDataOptions, snapshot: Snapshot.Snapshot): string {
  const verdict = options.market.judge(snapshot)
  return verdict.ok ? 'open' : verdict.code
}

function quoteOf(options: MarketDataOptions, { snapshot, quoted, stats }: TokenData) {
  const { token } = snapshot
  return {
    price: usdg(options, Snapshot.shownPriceAtomic(snapshot)),
    currency: 'USD',
    asset: options.asset.symbol,
    pool: {
      address: token.pool,
      fee: token.fee,
      price: usdg(options, snapshot.midPriceAtomic),
      liquidity: textOf(snapshot.liquidity),
    },
    feed: feedOf(options, snapshot),
    issuer: quoted === undefined ? null : { ...quoted, at: undefined },
    ...volumeOf(stats),
    multiplier: Snapshot.multiplierOf(snapshot),
    halted: snapshot.isHalted ?? null,
    paused: snapshot.isPaused ?? null,
    status: statusOf(options, snapshot),
  }
}

function feedOf(options: MarketDataOptions, { token, feed, isOraclePaused }: Snapshot.Snapshot) {
  if (token.feed === undefined) return null
  return {
    address: token.feed,
    price: usdg(options, feed?.priceAtomic),
    updatedAt: feed === undefined ? null : iso(feed.updatedAt),
    stale: feed === undefined ? null : Snapshot.isStale(feed, options.market.stock, options.now()),
    paused: isOraclePaused ?? null,
  }
}

function contractOf(options: MarketDataOptions, { snapshot, listed, stats }: TokenData) {
  const { token, decimals, totalSupplyAtomic } = snapshot
  return {
    decimals: decimals ?? null,
    totalSupply: decimals === undefined ? null : scaled(totalSupplyAtomic, decimals),
    totalSupplyAtomic: textOf(totalSupplyAtomic),
    multiplier: Snapshot.multiplierOf(snapshot),
    halted: snapshot.isHalted ?? null,
    paused: snapshot.isPaused ?? null,
    holders: stats?.holders ?? null,
    reputation: stats?.reputation ?? null,
    explorer: options.explorer?.link(token) ?? null,
    isin: listed?.isin ?? null,
    issuerStatus: listed?.status ?? null,
    logoUrl: listed?.logoUrl ?? null,
    factory: options.market.stock.factory,
    registry: options.market.stock.registry,
  }
}

/** Age of the data: of each source the oldest part of the answer, null without one. */
function timesOf(options: MarketDataOptions, all: readonly TokenData[]) {
  const [first] = all
  const readAt = Math.min(...all.map(({ snapshot }) => snapshot.readAt))
  return {
    blockNumber: first === undefined ? null : Number(first.snapshot.blockNumber),
    updatedAt: iso(readAt),
    ageSeconds: ageOf(options, readAt),
    sources: {
      chain: timeOf(options, [readAt]),
      issuer: timeOf(options, [
        ...all.map(({ quoted }) => quoted?.at),
        ...all.map(({ listed }) => listed?.at),
      ]),
      explorer: timeOf(
        options,
        all.map(({ stats }) => stats?.at),
      ),
    },
  }
}

function timeOf(options: MarketDataOptions, times: readonly (number | undefined)[]) {
  const known = times.filter((time) => time !== undefined)
  if (known.length === 0) return null
  const oldest = Math.min(...known)
  return { updatedAt: iso(oldest), ageSeconds: ageOf(options, oldest) }
}

function ageOf(options: MarketDataOptions, at: number): number {
  return Math.max(0, Math.floor((options.now() - at) / 1000))
}

function isReadable({ decimals }: Snapshot.Snapshot): boolean {
  return decimals !== undefined
}

function headOf({ market: { stock }, asset }: MarketDataOptions) {
  return { network: stock.network, currency: 'USD', asset: asset.symbol }
}

/** Null unless every part is known: a partial sum would look like the sum of all. */
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
