import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import type { Call } from './multicall'
import { transfer } from './token'

/**
 * Uniswap V3 with SwapRouter02 and QuoterV2.
 * https://github.com/Uniswap/v3-core, https://github.com/Uniswap/swap-router-contracts
 */

const token0 = Abi.method('token0()')
const token1 = Abi.method('token1()')
const feeOf = Abi.method('fee()')
const quote = Abi.method<
  [tokenIn: Address, tokenOut: Address, amountIn: bigint, fee: number, priceLimit: number]
>('quoteExactInputSingle((address,address,uint256,uint24,uint160))')
const swapSingle = Abi.method<
  [
    tokenIn: Address,
    tokenOut: Address,
    fee: number,
    recipient: Address,
    amountIn: number,
    amountOutMinimum: bigint,
    priceLimit: number,
  ]
>('exactInputSingle((address,address,uint24,address,uint256,uint256,uint160))')
const sweep = Abi.method<[token: Address, minimum: number, to: Address]>(
  'sweepToken(address,uint256,address)',
)
const multicall = Abi.method<[deadline: bigint, calls: Abi.Dynamic]>('multicall(uint256,bytes[])')

/** SwapRouter02's CONTRACT_BALANCE: the router's own balance. */
const routerBalance = 0

/** Prices at which a pool has no liquidity left: TickMath's bounds, at which the quoter stops. */
const sqrtPriceMin = 4_295_128_740n
const sqrtPriceMax = 1_461_446_703_485_210_103_287_273_052_203_988_822_378_723_970_341n

/** The pool of a pair and a fee; the zero address when there is none. */
export const getPool = Abi.method<[tokenA: Address, tokenB: Address, fee: number]>(
  'getPool(address,address,uint24)',
)

/** The factory of a router or quoter. */
export const factoryOf = Abi.method('factory()')

/** The properties of a pool: token0, token1 and fee, in this order. */
export function identityOf(pool: Address): readonly [Call, Call, Call] {
  return [token0(pool), token1(pool), feeOf(pool)]
}

/** The pool's price, see `parsePrice`. */
export const slot0 = Abi.method('slot0()')

/** Liquidity in range. */
export const liquidity = Abi.method('liquidity()')

type Trade = {
  tokenIn: Address
  tokenOut: Address
  fee: number
  amountInAtomic: bigint
}

/** Output of a trade, by QuoterV2: it reverts inside, so it changes nothing. */
export function quoteExactInputSingle(quoter: Address, trade: Trade): Call {
  return quote(quoter, trade.tokenIn, trade.tokenOut, trade.amountInAtomic, trade.fee, 0)
}

/**
 * Output amount of a quote. Undefined when the quoter failed, or when the pool cannot take the
 * whole input: the router would then take a part of it without an error.
 */
export function parseQuote(data: Hex | undefined): bigint | undefined {
  if (data === undefined) return undefined
  const [amountOut, sqrtPriceAfter] = [wordOf(data, 0), wordOf(data, 1)]
  if (!amountOut || sqrtPriceAfter === undefined) return undefined
  return sqrtPriceAfter > sqrtPriceMin && sqrtPriceAfter < sqrtPriceMax ? amountOut : undefined
}

/**
 * Square root of token1 per token0 in atomic units, times 2^96, of `slot0`; undefined for a pool
 * without a price.
 */
export function parsePrice(data: Hex | undefined): bigint | undefined {
  return data === undefined ? undefined : wordOf(data, 0) || undefined
}

/**
 * Atomic units of `tokenIn` for `unitsAtomic` of the other token, at the pool's price and without
 * its fee, rounded down.
 */
export function midPriceAtomic(
  sqrtPriceX96: bigint,
  isTokenInFirst: boolean,
  unitsAtomic: bigint,
): bigint {
  const square = sqrtPriceX96 * sqrtPriceX96
  return isTokenInFirst ? (unitsAtomic << 192n) / square : (unitsAtomic * square) >> 192n
}

/** Whether a token is token0 of its pool with another. */
export function isFirst(token: Address, other: Address): boolean {
  return BigInt(token) < BigInt(other)
}

export type Swap = Trade & {
  recipient: Address
  amountOutMinimumAtomic: bigint
  /** Receives the part of the input that the pool did not take. */
  changeTo: Address
  /** Unix seconds. SwapRouter02 accepts it only in `multicall`. */
  deadline: bigint
}

/**
 * The calls of an account that has the money, to be made in one transaction in which none may fail:
 * `amountInAtomic` goes to the router, then `exactInputSingle` and `sweepToken` inside
 * `multicall(deadline, ...)`. A pool without enough liquidity takes less without an error. If an
 * account of ours paid it directly, the remaining input would stay there without an owner. Tokens
 * that others left at the router are swapped, too, in favour of the recipient; no party loses by
 * that. The router reads recipients 1 and 2 as the sender and itself: callers refuse these
 * addresses, and the router and the pool as recipients.
 */
export function swapCalls(router: Address, swap: Swap): readonly [Call, Call] {
  const { tokenIn, tokenOut, fee, recipient, amountOutMinimumAtomic: least } = swap
  const calls = [
    swapSingle(router, tokenIn, tokenOut, fee, recipient, routerBalance, least, 0),
    sweep(router, tokenIn, 0, swap.changeTo),
  ]
  const list = Abi.list(calls.map(({ data }) => Abi.dynamicBytes(data)))
  return [transfer(tokenIn, router, swap.amountInAtomic), multicall(router, swap.deadline, list)]
}

/**
 * The call that `swapCalls` needs of a router besides the swap, without effect. Its answer is
 * empty.
 */
export function changeCall(router: Address, tokenIn: Address): Call {
  return sweep(router, tokenIn, 0, router)
}

function wordOf(data: Hex, index: number): bigint | undefined {
  return Abi.uintAt(data.slice(2), index)
}
