import type { Address, Hex } from 'viem'
import * as StockToken from '../chain/stock-token'
import * as Uniswap from '../chain/uniswap'
import type { StockToken as Listed, Stock } from '../config/Config'
import type { Answer } from './reader'

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

export type Question = {
  stock: Stock
  asset: { address: Address; decimals: number }
  token: Listed
  usdgAtomic: bigint
  people: readonly Address[]
}

type Call = { to: Address; data: Hex }

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
export function parse(question: Question, { results, blockNumber, readAt }: Answer): Snapshot {
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
