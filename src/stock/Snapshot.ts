import type { Address, Hex } from 'viem'
import { RpcFault } from '../chain/client'
import type { Call } from '../chain/multicall'
import * as StockToken from '../chain/stock-token'
import * as Uniswap from '../chain/uniswap'
import type { StockToken as Listed, Stock } from '../config/Config'
import * as Amount from '../protocol/Amount'
import * as Problem from '../protocol/Problem'

/** State of one listed token, all of it in one block. Undefined: not readable. */
export type Snapshot = {
  token: Listed
  /** The amount that is quoted. */
  usdgAtomic: bigint
  /** QuoterV2's amount out; undefined also when the pool cannot take all of the amount. */
  sharesAtomic: bigint | undefined
  /** Asset per whole share, atomic, at the quote, with the pool's fee. */
  priceAtomic: bigint | undefined
  /** The same at the pool's own price, before fee and depth. */
  midPriceAtomic: bigint | undefined
  liquidity: bigint | undefined
  /** The factory has the pinned pool for this pair and fee, and the pool confirms it. */
  isPinned: boolean
  decimals: number | undefined
  totalSupplyAtomic: bigint | undefined
  /** ERC-8056, times 1e18; for display only. */
  multiplierE18: bigint | undefined
  isPaused: boolean | undefined
  /** This token alone was stopped: on the chain, or by the issuer's market. */
  isHalted: boolean | undefined
  isOraclePaused: boolean | undefined
  /** Undefined without a feed, or when it has no answer. `priceAtomic` as above; unix ms. */
  feed: { priceAtomic: bigint; updatedAt: number } | undefined
  /** Whether each requested account is blocked. */
  blocked: readonly { address: Address; isBlocked: boolean | undefined }[]
  blockNumber: bigint
  /** Unix ms. */
  readAt: number
}

/** `readAt` (unix ms) is the time of the request: the state is not older. */
export type Answers = {
  results: readonly (Hex | undefined)[]
  blockNumber: bigint
  readAt: number
}

type Question = {
  stock: Stock
  asset: { address: Address; decimals: number }
  token: Listed
  usdgAtomic: bigint
  people: readonly Address[]
}

/** The reads of a snapshot; `parse` takes their answers. */
export function calls({ stock, asset, token, usdgAtomic, people }: Question): readonly Call[] {
  const { address, pool, fee, feed } = token
  const trade = { tokenIn: asset.address, tokenOut: address, fee, amountInAtomic: usdgAtomic }
  return [
    Uniswap.quoteExactInputSingle(stock.quoter, trade),
    Uniswap.getPool(stock.factory, asset.address, address, fee),
    ...Uniswap.identityOf(pool),
    Uniswap.slot0(pool),
    Uniswap.liquidity(pool),
    StockToken.decimals(address),
    StockToken.totalSupply(address),
    StockToken.uiMultiplier(address),
    StockToken.paused(address),
    StockToken.tokenPaused(address),
    StockToken.oraclePaused(address),
    ...(feed ? [StockToken.decimals(feed), StockToken.latestRoundData(feed)] : []),
    ...people.map((person) => StockToken.isBlocked(stock.registry, person)),
  ]
}

/** Reads the answers to `calls`. */
export function parse(question: Question, { results, blockNumber, readAt }: Answers): Snapshot {
  const { asset, token, usdgAtomic, people } = question
  const [quote, known, token0, token1, fee, slot0, liquidity, ...rest] = results
  const [decimals, supply, multiplier, paused, halted, oraclePaused, ...others] = rest
  const feed = token.feed ? others.splice(0, 2) : []
  const places = placesOf(decimals)
  const shareAtomic = places === undefined ? undefined : 10n ** BigInt(places)
  const sharesAtomic = Uniswap.parseQuote(quote)
  const sqrtPriceX96 = Uniswap.parsePrice(slot0)
  return {
    token,
    usdgAtomic,
    sharesAtomic,
    priceAtomic: shareAtomic && sharesAtomic && divideUp(usdgAtomic * shareAtomic, sharesAtomic),
    midPriceAtomic:
      shareAtomic &&
      sqrtPriceX96 &&
      Uniswap.midPriceAtomic(
        sqrtPriceX96,
        Uniswap.isFirst(asset.address, token.address),
        shareAtomic,
      ),
    liquidity: StockToken.parseUint(liquidity),
    isPinned: isPinned(question, [known, token0, token1, fee]),
    decimals: places,
    totalSupplyAtomic: StockToken.parseUint(supply),
    multiplierE18: StockToken.parseUint(multiplier),
    isPaused: StockToken.parseFlag(paused),
    isHalted: StockToken.parseFlag(halted),
    isOraclePaused: StockToken.parseFlag(oraclePaused),
    feed: feedOf(asset.decimals, feed[0], feed[1]),
    blocked: people.map((address, index) => ({
      address,
      isBlocked: StockToken.parseFlag(others[index]),
    })),
    blockNumber,
    readAt,
  }
}

/** ERC-8056: underlying shares per token, for display. Amounts are always of tokens. */
export function multiplierOf({ multiplierE18 }: Snapshot): string | null {
  return multiplierE18 === undefined ? null : Amount.toDecimal(multiplierE18, 18)
}

/**
 * The price to show: that of the smallest order. A halted token has no quote; its pool still has
 * the price at which it stopped.
 */
export function shownPriceAtomic(snapshot: Snapshot): bigint | undefined {
  return snapshot.priceAtomic ?? (snapshot.isPaused === true ? snapshot.midPriceAtomic : undefined)
}

function isPinned(
  { asset, token }: Question,
  [known, token0, token1, fee]: readonly (Hex | undefined)[],
): boolean {
  const isFirst = Uniswap.isFirst(asset.address, token.address)
  const [first, second] = isFirst ? [asset.address, token.address] : [token.address, asset.address]
  return (
    isWord(known, token.pool) &&
    isWord(token0, first) &&
    isWord(token1, second) &&
    StockToken.parseUint(fee) === BigInt(token.fee)
  )
}

function isWord(data: Hex | undefined, address: Address): boolean {
  return StockToken.parseUint(data) === BigInt(address)
}

/** ERC-20 decimals in the valid range of a share. */
function placesOf(data: Hex | undefined): number | undefined {
  const value = StockToken.parseUint(data)
  return value !== undefined && value <= 36n ? Number(value) : undefined
}

function feedOf(assetDecimals: number, decimals: Hex | undefined, round: Hex | undefined) {
  const places = placesOf(decimals)
  const answer = StockToken.parseRound(round)
  if (places === undefined || answer === undefined) return undefined
  // The unit of a feed is the dollar, and so is the asset's.
  const priceAtomic = (answer.answer * 10n ** BigInt(assetDecimals)) / 10n ** BigInt(places)
  return { priceAtomic, updatedAt: answer.updatedAt }
}

function divideUp(value: bigint, by: bigint): bigint {
  return (value + by - 1n) / by
}

/** Why an order cannot be taken. `detail` is safe to send. */
type Refusal = {
  ok: false
  code:
    | 'blocked'
    | 'halted'
    | 'paused'
    | 'pool-mismatch'
    | 'feed-distance'
    | 'no-liquidity'
    | 'unreadable'
  detail: string
}

/** A warning only: the order can be taken. */
type Warning = 'feed-stale' | 'feed-paused' | 'feed-unreadable'

export type Verdict = { ok: true; warnings: readonly Warning[] } | Refusal

type Rules = Pick<Stock, 'feedDistanceBps' | 'feedMaxAgeSeconds'>

/**
 * Whether the chain permits an order: the pool is the pinned one, the token is not halted, no
 * account is blocked, and the pool takes the amount. Neither its price nor the quote's may be
 * further from a fresh feed than allowed. A feed that is stale, paused or unreadable only warns.
 * `now` is unix ms.
 */
export function judge(snapshot: Snapshot, rules: Rules, now: number): Verdict {
  const { symbol } = snapshot.token
  if (snapshot.isPaused === undefined || snapshot.decimals === undefined) {
    const detail = `The contract of ${symbol} cannot be read; nothing is charged. Try again later.`
    return refuse('unreadable', detail)
  }
  if (!snapshot.isPinned) {
    const detail = `The factory does not confirm the pool of ${symbol}: tell the operator.`
    return refuse('pool-mismatch', detail)
  }
  if (snapshot.isHalted === true) {
    return refuse('halted', `The issuer has halted ${symbol}: buy another, or later.`)
  }
  if (snapshot.isPaused) {
    return refuse('paused', `Transfers of ${symbol} are paused by the issuer: try again later.`)
  }
  for (const { address, isBlocked } of snapshot.blocked) {
    if (isBlocked === undefined) {
      const detail = 'The registry cannot be read; nothing is charged. Try again later.'
      return refuse('unreadable', detail)
    }
    if (isBlocked)
      return refuse('blocked', `The issuer blocks ${address}: it cannot hold the token.`)
  }
  if (snapshot.sharesAtomic === undefined || snapshot.midPriceAtomic === undefined) {
    const detail = `The pool of ${symbol} cannot take this amount: buy less, or later.`
    return refuse('no-liquidity', detail)
  }
  return judgeByFeed(snapshot, rules, now)
}

function judgeByFeed(snapshot: Snapshot, rules: Rules, now: number): Verdict {
  const { token, feed, midPriceAtomic, priceAtomic } = snapshot
  if (token.feed === undefined) return { ok: true, warnings: [] }
  if (snapshot.isOraclePaused === true) return { ok: true, warnings: ['feed-paused'] }
  if (feed === undefined) return { ok: true, warnings: ['feed-unreadable'] }
  if (isStale(feed, rules, now)) return { ok: true, warnings: ['feed-stale'] }
  // Check the quote too: a pool that lost its depth still shows its old price.
  const isFar = [midPriceAtomic, priceAtomic].some(
    (price) => price === undefined || distanceBps(price, feed.priceAtomic) > rules.feedDistanceBps,
  )
  if (!isFar) return { ok: true, warnings: [] }
  const detail = `The price of ${token.symbol} is too far from its price feed: try again later.`
  return refuse('feed-distance', detail)
}

/** Whether a feed is older than allowed, or ahead of us by as much. */
export function isStale(feed: { updatedAt: number }, rules: Rules, now: number): boolean {
  return Math.abs(now - feed.updatedAt) > rules.feedMaxAgeSeconds * 1000
}

/** Hundredths of a percent of the reference, rounded up. */
function distanceBps(price: bigint, reference: bigint): number {
  if (reference === 0n) return Number.POSITIVE_INFINITY
  const gap = price > reference ? price - reference : reference - price
  return Number((gap * 10_000n + reference - 1n) / reference)
}

/** The problem of a refusal; its `reason` is the refusal's code. */
export function problemOf({ code, detail }: Refusal): Problem.ProblemError {
  const members = { reason: code }
  if (code === 'blocked') return Problem.of('invalid-parameter', detail, { members })
  if (code === 'halted') return Problem.of('halted', detail, { members })
  const isPaused = code === 'paused'
  const headers = { 'retry-after': isPaused ? '60' : '10' }
  return Problem.of(isPaused ? 'paused' : 'not-ready', detail, { members, headers })
}

/** A snapshot on which an order may be taken. */
export type Quoted = Snapshot & {
  sharesAtomic: bigint
  priceAtomic: bigint
  decimals: number
  warnings: readonly Warning[]
}

/** The warnings of a verdict, where there are any. */
export function warningsOf(warnings: readonly Warning[]) {
  return warnings.length === 0 ? {} : { warnings }
}

/** Throws ProblemError when no order can be taken on a snapshot. */
export function assertOpen(snapshot: Snapshot, verdict: Verdict): Quoted {
  if (!verdict.ok) throw problemOf(verdict)
  const { sharesAtomic, priceAtomic, decimals } = snapshot
  // A verdict permits only snapshots that have them.
  if (sharesAtomic === undefined || priceAtomic === undefined || decimals === undefined) {
    throw new Error('a snapshot without a quote was accepted')
  }
  return { ...snapshot, sharesAtomic, priceAtomic, decimals, warnings: verdict.warnings }
}

function refuse(code: Refusal['code'], detail: string): Refusal {
  return { ok: false, code, detail }
}

/** Throws the problem of a market whose network gives no answer, or else the fault itself. */
export function unavailable(cause: unknown): never {
  if (!(cause instanceof RpcFault)) throw cause
  const headers = { 'retry-after': '2' }
  throw Problem.of('not-ready', 'The network gives no answer now; try again.', { headers, cause })
}
