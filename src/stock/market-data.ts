import { RpcFault } from '../chain/client'
import type { Stock, StockToken } from '../config/Config'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import type { Market } from './market'
import type { Explorer, Issuer, IssuerAsset, IssuerQuote, TokenStats } from './public-sources'
import * as Snapshot from './Snapshot'

/**
 * Data of the listed tokens, as JSON. Amounts are decimal texts; a value without a source is null.
 * Every method throws RpcFault when the chain has not answered for a minute, or has no such
 * contracts.
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

/** The collected data of one token. */
type TokenData = {
  snapshot: Snapshot.Snapshot
  quoted: IssuerQuote | undefined
  listed: IssuerAsset | undefined
  stats: TokenStats | undefined
}

const snapshotMaxAgeMs = 60_000

/** Reads the chain, the issuer and the explorer, each with its own cache. */
export function createMarketData(options: MarketDataOptions): MarketData {
  const { market, asset } = options
  const { stock } = market
  return {
    find: market.find,
    async quote(token) {
      const known = await collectOne(options, token)
      return { ...nameOf(options, token), ...quoteOf(options, known), ...timesOf(options, [known]) }
    },
    async token(token) {
      const known = await collectOne(options, token)
      return {
        ...nameOf(options, token),
        ...contractOf(options, known),
        ...timesOf(options, [known]),
      }
    },
    async stocks() {
      const all = await collectAll(options)
      const stocks = all.map(({ snapshot, stats }) => ({
        symbol: snapshot.token.symbol,
        name: snapshot.token.name,
        address: snapshot.token.address,
        price: usdg(options, Snapshot.shownPriceAtomic(snapshot)),
        marketCap: stats?.marketCap ?? null,
        volume24h: stats?.volume24h ?? null,
        holders: stats?.holders ?? null,
        status: statusOf(options, snapshot),
      }))
      return { ...headOf(stock, asset), count: stocks.length, stocks, ...timesOf(options, all) }
    },
    async report() {
      const all = await collectAll(options)
      const stocks = all.map((known) => ({
        ...nameOf(options, known.snapshot.token),
        ...quoteOf(options, known),
        ...contractOf(options, known),
      }))
      const totals = {
        marketCap: sumOf(all.map(({ stats }) => stats?.marketCap ?? null)),
        volume24h: sumOf(all.map(({ stats }) => stats?.volume24h ?? null)),
      }
      return {
        ...headOf(stock, asset),
        count: stocks.length,
        totals,
        stocks,
        ...timesOf(options, all),
      }
    },
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
  return Promise.all(snapshots.map((snapshot) => collect(options, recent(options, snapshot))))
}

async function collectOne(options: MarketDataOptions, token: StockToken): Promise<TokenData> {
  const snapshot = await options.market.snapshot(token)
  if (!isReadable(snapshot)) throw new RpcFault('the token cannot be read')
  return collect(options, recent(options, snapshot))
}

/** Refuses old data, because the payment is for live data. */
function recent(options: MarketDataOptions, snapshot: Snapshot.Snapshot): Snapshot.Snapshot {
  if (options.now() - snapshot.readAt > snapshotMaxAgeMs)
    throw new RpcFault('no answer for a minute')
  return snapshot
}

async function collect(
  options: MarketDataOptions,
  snapshot: Snapshot.Snapshot,
): Promise<TokenData> {
  const [quoted, listed, stats] = await Promise.all([
    options.issuer?.quote(snapshot.token),
    options.issuer?.asset(snapshot.token),
    options.explorer?.token(snapshot.token),
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
    marketCap: stats?.marketCap ?? null,
    volume24h: stats?.volume24h ?? null,
    holders: stats?.holders ?? null,
    multiplier: scaled(snapshot.multiplierE18, 18),
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
    multiplier: scaled(snapshot.multiplierE18, 18),
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
      issuer: timeOf(
        options,
        all.flatMap(({ quoted, listed }) => [quoted?.at, listed?.at]),
      ),
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

function headOf(stock: Stock, asset: Asset) {
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
