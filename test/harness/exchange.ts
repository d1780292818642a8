import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { isFirst } from '../../src/chain/uniswap'
import type { StockToken } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { type Chain, execute } from '../../src/demo/chains'
import { providerAddress, sqrtPriceX96, widestRange } from '../../src/demo/exchange'

/** Changes of stocks that any account can make on a local chain. */

const abi = parseAbi([
  'function setPaused(bool everything, bool token, bool oracle)',
  'function setMultiplier(uint256 value)',
  'function setBlocked(address account, bool value)',
  'function set(int256 answer, uint256 ageSeconds)',
  'function liquidity() view returns (uint128)',
  'function provide(address pool, int24 lower, int24 upper, uint128 liquidity)',
  'function withdraw(address pool, int24 lower, int24 upper, uint128 liquidity)',
  'function move(address pool, bool zeroForOne, uint160 sqrtPriceX96)',
  'function slot0() view returns (uint160, int24, uint16, uint16, uint16, uint8, bool)',
])

/**
 * Pauses all of the issuer's tokens, this token alone (a halt), or its prices; the others are not
 * paused.
 */
export function pause(
  chain: Chain,
  token: StockToken,
  what: { everything?: boolean; token?: boolean; oracle?: boolean },
): Promise<void> {
  const { everything = false, token: own = false, oracle = false } = what
  const args = [everything, own, oracle] as const
  return send(chain, token.address, encodeFunctionData({ abi, functionName: 'setPaused', args }))
}

/** ERC-8056, times 1e18. */
export function setMultiplier(chain: Chain, token: StockToken, value: bigint): Promise<void> {
  const data = encodeFunctionData({ abi, functionName: 'setMultiplier', args: [value] })
  return send(chain, token.address, data)
}

/** Of the issuer's registry. */
export function block(
  chain: Chain,
  registry: Address,
  person: Address,
  isBlocked = true,
): Promise<void> {
  const args = [person, isBlocked] as const
  return send(chain, registry, encodeFunctionData({ abi, functionName: 'setBlocked', args }))
}

/** The feed's answer in dollars; an age of zero follows the chain's clock. */
export function setFeed(
  chain: Chain,
  token: StockToken,
  price: number,
  ageSeconds = 0,
): Promise<void> {
  if (token.feed === undefined) throw new Error(`${token.symbol} has no feed`)
  const args = [BigInt(Math.round(price * 1e8)), BigInt(ageSeconds)] as const
  return send(chain, token.feed, encodeFunctionData({ abi, functionName: 'set', args }))
}

/** Trades in the pool until a share costs this much. */
export async function movePrice(
  chain: Chain,
  asset: Address,
  token: StockToken,
  price: number,
): Promise<void> {
  const target = sqrtPriceX96(asset, token.address, price)
  const slot0 = await view(chain, token.pool, 'slot0')
  const current = BigInt(slot0.slice(0, 66))
  const args = [token.pool, target < current, target] as const
  await send(chain, providerAddress, encodeFunctionData({ abi, functionName: 'move', args }))
}

/** Removes so many parts of a million of the pool's liquidity. */
export async function drain(chain: Chain, token: StockToken, millionths: number): Promise<void> {
  const total = BigInt(await view(chain, token.pool, 'liquidity'))
  const { lower, upper } = widestRange(token.fee)
  const taken = (total * BigInt(millionths)) / 1_000_000n
  const args = [token.pool, lower, upper, taken] as const
  await send(chain, providerAddress, encodeFunctionData({ abi, functionName: 'withdraw', args }))
}

/** Steps of a test: `drain` leaves only the offered liquidity, `restore` restores the pool. */
export type PoolDrain = { drain(): Promise<void>; restore(price: number): Promise<void> }

/**
 * Offers so many shares directly beside the pool's price, in the narrowest range that its fee
 * allows. Once all other liquidity is removed, a purchase empties the pool and leaves its unspent
 * input.
 */
export async function offer(
  chain: Chain,
  asset: Address,
  token: StockToken,
  sharesAtomic: bigint,
): Promise<PoolDrain> {
  const { pool, fee, address } = token
  const deep = BigInt(await view(chain, pool, 'liquidity'))
  const widest = widestRange(fee)
  const spacing = spacings[fee] ?? 0
  const tick = Number(
    BigInt.asIntN(24, BigInt(`0x${(await view(chain, pool, 'slot0')).slice(66, 130)}`)),
  )
  // A buyer of token0 raises the price, a buyer of token1 lowers it.
  const isUp = isFirst(address, asset)
  const nearest = Math.floor(tick / spacing) * spacing
  const lower = isUp ? nearest + spacing : nearest - spacing
  const upper = lower + spacing
  const [low, high] = [lower, upper].map((each) => 1.0001 ** (each / 2)) as [number, number]
  const per = isUp ? 1 / low - 1 / high : high - low
  const narrow = BigInt(Math.floor(Number(sharesAtomic) / per))
  const change = (
    functionName: 'provide' | 'withdraw',
    range: { lower: number; upper: number },
    liquidity: bigint,
  ) => {
    const args = [pool, range.lower, range.upper, liquidity] as const
    return send(chain, providerAddress, encodeFunctionData({ abi, functionName, args }))
  }
  await change('provide', { lower, upper }, narrow)
  return {
    drain: () => change('withdraw', widest, deep),
    async restore(price) {
      await change('withdraw', { lower, upper }, narrow)
      // The price of an empty pool can be moved without a trade, but not to its present value.
      await movePrice(chain, asset, token, price).finally(() => change('provide', widest, deep))
    },
  }
}

/** Distance between two ticks at which liquidity can begin, by fee. */
const spacings: Readonly<Record<number, number>> = { 100: 1, 500: 10, 3000: 60, 10000: 200 }

async function view(chain: Chain, to: Address, functionName: 'slot0' | 'liquidity'): Promise<Hex> {
  const data = encodeFunctionData({ abi, functionName })
  return (await chain.rpc('eth_call', [{ to, data }, 'latest'])) as Hex
}

/** From an account that the demo does not use. */
async function send(chain: Chain, to: Address, data: Hex): Promise<void> {
  await execute(chain, [{ from: account(8).address, to, data, gas: 3_000_000n }])
}
