import type { Address } from 'viem'
import type { Config, Stock } from '../config/Config'
import { clientOf } from '../http/client'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import { searchOf } from '../http/url'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Instrument from './Instrument'
import type { Market } from './market'
import * as Snapshot from './Snapshot'
import { problemOf, unavailable, type Warning } from './Verdict'

export type MarketHandlersOptions = {
  market: Market
  asset: Asset
  /** The desk, to which purchases are paid. */
  payTo: Address
  service: Pick<Config['service'], 'trustProxy' | 'quotePerMinute'>
  rateLimit: RateLimit.RateLimit
  now: () => number
  /** Address of the other end of the connection. */
  addressOf: (request: Request) => string | undefined
}

/** Free routes, so limited for each address: `GET /api/stock/list` and `GET /api/stock/quote`. */
export function createMarketHandlers(options: MarketHandlersOptions) {
  const { market, asset, payTo, service, rateLimit, now, addressOf } = options
  const { stock } = market

  const limited = (request: Request): Record<string, string> => {
    const key = clientOf(request, addressOf(request), service.trustProxy)
    const verdict = rateLimit.take(`quote ${key}`, service.quotePerMinute, now())
    RateLimit.assertWithin(verdict)
    return RateLimit.headers(verdict)
  }

  let page: { snapshots: readonly Snapshot.Snapshot[]; second: number; text: string } | undefined
  const list = async (request: Request): Promise<Response> => {
    const headers = limited(request)
    const snapshots = await market.snapshots().catch(unavailable)
    const second = Math.floor(now() / 1000)
    // The same snapshots give the same page within a second.
    if (page?.snapshots !== snapshots || page.second !== second) {
      const stocks = snapshots.map((snapshot) => entryOf(snapshot, market, asset, now()))
      const body = { network: stock.network, asset: asset.address, payTo, stocks }
      page = { snapshots, second, text: JSON.stringify(body) }
    }
    return answer(page.text, headers)
  }

  const quote = async (request: Request): Promise<Response> => {
    const headers = limited(request)
    const terms = termsOf(request, stock, asset)
    const snapshot = await market.snapshotOf(terms.token, terms.usdgAtomic).catch(unavailable)
    return answer(JSON.stringify(quoteOf(snapshot, market, asset)), headers)
  }

  return { list, quote }
}

/** The list marks prices that are older than this, ms. */
const staleMs = 15_000

function entryOf(snapshot: Snapshot.Snapshot, market: Market, asset: Asset, now: number) {
  const { token, decimals } = snapshot
  const priceAtomic = Snapshot.shownPriceAtomic(snapshot)
  const { feeBps, minAtomic, maxAtomic } = market.stock
  const verdict = market.judge(snapshot)
  const usdg = (atomic: bigint) => Amount.toDecimal(atomic, asset.decimals)
  return {
    symbol: token.symbol,
    name: token.name,
    address: token.address,
    decimals: decimals ?? null,
    pool: token.pool,
    price: priceAtomic === undefined ? null : usdg(priceAtomic),
    priceUpdatedAt: new Date(snapshot.readAt).toISOString(),
    multiplier: multiplierOf(snapshot),
    feeBps,
    slippageBps: token.slippageBps,
    min: usdg(minAtomic),
    max: usdg(maxAtomic),
    status: now - snapshot.readAt > staleMs ? 'stale' : verdict.ok ? 'open' : verdict.code,
    ...(verdict.ok ? warningsOf(verdict.warnings) : {}),
  }
}

/**
 * The quote of a purchase of this amount. Throws ProblemError when the purchase would be refused.
 */
export function quoteOf(
  snapshot: Snapshot.Snapshot,
  market: Pick<Market, 'judge' | 'stock'>,
  asset: Asset,
) {
  const verdict = market.judge(snapshot)
  if (!verdict.ok) throw problemOf(verdict)
  const { token, usdgAtomic, sharesAtomic, priceAtomic, decimals } = snapshot
  // A verdict permits only snapshots that have them.
  if (sharesAtomic === undefined || priceAtomic === undefined || decimals === undefined) {
    throw new Error('a snapshot without a quote was accepted')
  }
  const totalAtomic = Instrument.totalOf(market.stock, usdgAtomic)
  const minimumAtomic = Instrument.floorOf(token, sharesAtomic)
  const usdg = (atomic: bigint) => Amount.toDecimal(atomic, asset.decimals)
  const shares = (atomic: bigint) => Amount.toDecimal(atomic, decimals)
  return {
    symbol: token.symbol,
    usdg: usdg(usdgAtomic),
    fee: usdg(totalAtomic - usdgAtomic),
    total: usdg(totalAtomic),
    totalAtomic: String(totalAtomic),
    estimatedShares: shares(sharesAtomic),
    estimatedSharesAtomic: String(sharesAtomic),
    minimumShares: shares(minimumAtomic),
    minimumSharesAtomic: String(minimumAtomic),
    price: usdg(priceAtomic),
    multiplier: multiplierOf(snapshot),
    slippageBps: token.slippageBps,
    blockNumber: Number(snapshot.blockNumber),
    quotedAt: new Date(snapshot.readAt).toISOString(),
    ...warningsOf(verdict.warnings),
  }
}

function termsOf(request: Request, stock: Stock, asset: Asset): Instrument.Terms {
  // A request of HTTP/1.0 may come as a path alone.
  const asked = [...new URLSearchParams(searchOf(request.url))]
  const query = new URLSearchParams(
    asked.filter(([name]) => Instrument.quoteNames.some((known) => known === name)),
  )
  return Instrument.assertTerms(Instrument.parseTerms(query, stock, asset))
}

/** ERC-8056: underlying shares per token, for display. Amounts are always of tokens. */
function multiplierOf({ multiplierE18 }: Snapshot.Snapshot): string | null {
  return multiplierE18 === undefined ? null : Amount.toDecimal(multiplierE18, 18)
}

function warningsOf(warnings: readonly Warning[]) {
  return warnings.length === 0 ? {} : { warnings }
}

function answer(json: string, headers: Record<string, string>): Response {
  const own = { 'content-type': 'application/json', 'cache-control': 'no-store' }
  return new Response(json, { headers: { ...corsHeaders, ...headers, ...own } })
}
