import {
  type Address,
  encodeDeployData,
  encodeFunctionData,
  getAddress,
  type Hex,
  parseAbi,
} from 'viem'
import { isFirst } from '../chain/uniswap'
import type { Stock, StockToken } from '../config/Config'
import { account } from './accounts'
import { findInstalled } from './anvil'
import { type Chain, execute, multicall3Address, type NodeTransaction, request } from './chains'
import * as Artifacts from './contracts/artifacts'

/** The members of `[stock]` that are needed. */
type Listing = Pick<Stock, 'factory' | 'router' | 'quoter' | 'registry' | 'tokens'>

/** Owns the pools' liquidity. An arbitrary address. */
export const providerAddress: Address = '0x00000000000000000000000000000000D0E5F1a7'

/** Liquidity of each pool at its price, over the whole range: 250,000 of the asset. */
const depthAtomic = 250_000_000_000n

/** The contracts are not installed. The message says what to do. */
export class MissingExchangeError extends Error {
  override readonly name = 'MissingExchangeError'
}

const abi = parseAbi([
  'function initialize(string name, string symbol, address registry)',
  'function set(int256 answer, uint256 ageSeconds)',
  'function open(address factory, address token0, address token1, uint24 fee, uint160 sqrtPriceX96, int24 lower, int24 upper, uint128 liquidity)',
  'function getPool(address, address, uint24) view returns (address)',
  'function aggregate3((address target, bool allowFailure, bytes callData)[] calls)',
])

/**
 * The address on Robinhood Chain. A local chain has no contract there, and none of our routes uses
 * it.
 */
const wrappedEther: Address = '0x0Bd7D308f8E1639FAb988df18A8011f41EAcAD73'
const positionManager: Address = '0x73991a25C818Bf1f1128dEAaB1492D45638DE0D3'
const none: Address = '0x0000000000000000000000000000000000000000'

/** The tick spacing of each fee of the factory, in hundredths of a basis point. */
const tickSpacings: Readonly<Record<number, number>> = { 100: 1, 500: 10, 3000: 60, 10000: 200 }
const tickMax = 887_272

/**
 * Places Uniswap V3, the stock tokens, their registry and price feeds at the addresses of `[stock]`
 * and opens the pools, which must have the pinned addresses: the same factory, tokens and fees give
 * the same pools as on the real chain. Prices are those of `samplePrice`. Call it after
 * `prepareChain`, once per chain. Throws MissingExchangeError without the development packages, and
 * Error when a pool has another address.
 */
export async function openExchange(chain: Chain, asset: Address, listing: Listing): Promise<void> {
  const { factory, router, quoter, registry, tokens } = listing
  const [core, routerArtifact, quoterArtifact] = await Promise.all([
    load('@uniswap/v3-core/artifacts/contracts/UniswapV3Factory.sol/UniswapV3Factory.json'),
    load('@uniswap/swap-router-contracts/artifacts/contracts/SwapRouter02.sol/SwapRouter02.json'),
    load('@uniswap/swap-router-contracts/artifacts/contracts/lens/QuoterV2.sol/QuoterV2.json'),
  ])
  await request(chain.url, [
    setCode(registry, Artifacts.StockRegistry.deployedBytecode),
    setCode(providerAddress, Artifacts.LiquidityProvider.deployedBytecode),
    ...tokens.flatMap(({ address, feed }) => [
      setCode(address, Artifacts.StockToken.deployedBytecode),
      ...(feed ? [setCode(feed, Artifacts.PriceFeed.deployedBytecode)] : []),
    ]),
  ])
  await construct(chain, [
    [factory, core, []],
    [router, routerArtifact, [none, factory, positionManager, wrappedEther]],
    [quoter, quoterArtifact, [factory, wrappedEther]],
  ])
  await execute(chain, [listCall(listing)])
  // One after the other: a block has room for few, and the node would give equal nonces to
  // concurrent ones.
  for (const token of tokens) await execute(chain, [poolCall(asset, token, factory)])
  await assertPinned(chain, asset, listing)
}

/** The asset per share: 100 for other symbols. */
const prices: Readonly<Record<string, number>> = {
  NVDA: 186.4,
  SPCX: 212.1,
  CRCL: 74.9,
  SGOV: 100.5,
  MU: 226.3,
  QQQ: 597.2,
  AMZN: 222.7,
  TSLA: 403.9,
  GOOGL: 292.8,
  SPY: 662.6,
  MSFT: 487.1,
  AAPL: 268.6,
  AMD: 223.6,
  META: 590.3,
}

/** The asset per share. */
export function samplePrice(symbol: string): number {
  return prices[symbol] ?? 100
}

/** Square root of token1 per token0, in the pool's format, for a price of 18-decimal shares. */
export function sqrtPriceX96(asset: Address, token: Address, price: number): bigint {
  const priceAtomic = BigInt(Math.round(price * 1e6))
  const shareAtomic = 10n ** 18n
  return isFirst(token, asset)
    ? root((priceAtomic << 192n) / shareAtomic)
    : root((shareAtomic << 192n) / priceAtomic)
}

/** The ticks of the widest position in a pool of this fee. */
export function widestRange(fee: number): { lower: number; upper: number } {
  const spacing = tickSpacings[fee]
  if (spacing === undefined) throw new Error(`the factory has no pools with a fee of ${fee}`)
  const upper = Math.floor(tickMax / spacing) * spacing
  return { lower: -upper, upper }
}

/** Liquidity of the widest position that holds `depthAtomic` of the asset at a price. */
function liquidityOf(asset: Address, token: Address, sqrtX96: bigint): bigint {
  return isFirst(token, asset) ? (depthAtomic << 96n) / sqrtX96 : (depthAtomic * sqrtX96) >> 96n
}

/**
 * Runs constructors at chosen addresses. Creation code that is called like a contract writes its
 * storage there and returns the runtime code, immutables included.
 */
async function construct(
  chain: Chain,
  contracts: readonly (readonly [Address, Artifacts.Artifact, readonly unknown[]])[],
): Promise<void> {
  const { address: from } = account(9)
  for (const [to, { abi, bytecode }, args] of contracts) {
    await request(chain.url, [setCode(to, encodeDeployData({ abi, bytecode, args }))])
    const [code] = await request(chain.url, [['eth_call', [{ to }, 'latest']]])
    await execute(chain, [{ from, to, gas: 2_000_000n }])
    await request(chain.url, [setCode(to, code as Hex)])
  }
}

function listCall({ tokens, registry }: Listing): NodeTransaction {
  const calls = tokens.flatMap(({ address, name, symbol, feed }) => {
    const naming = [`${name} (local)`, symbol, registry] as const
    const price = [BigInt(Math.round(samplePrice(symbol) * 1e8)), 0n] as const
    const initialize = encodeFunctionData({ abi, functionName: 'initialize', args: naming })
    const set = encodeFunctionData({ abi, functionName: 'set', args: price })
    return [
      { target: address, callData: initialize, allowFailure: false },
      ...(feed ? [{ target: feed, callData: set, allowFailure: false }] : []),
    ]
  })
  const data = encodeFunctionData({ abi, functionName: 'aggregate3', args: [calls] })
  return { from: account(9).address, to: multicall3Address, data, gas: 12_000_000n }
}

function poolCall(asset: Address, token: StockToken, factory: Address): NodeTransaction {
  const { address, fee, symbol } = token
  const sqrtX96 = sqrtPriceX96(asset, address, samplePrice(symbol))
  const { lower, upper } = widestRange(fee)
  const [token0, token1] = isFirst(address, asset) ? [address, asset] : [asset, address]
  const liquidity = liquidityOf(asset, address, sqrtX96)
  const args = [factory, token0, token1, fee, sqrtX96, lower, upper, liquidity] as const
  const data = encodeFunctionData({ abi, functionName: 'open', args })
  return { from: account(9).address, to: providerAddress, data, gas: 8_000_000n }
}

async function assertPinned(chain: Chain, asset: Address, listing: Listing): Promise<void> {
  const pools = await request(
    chain.url,
    listing.tokens.map(({ address, fee }) => {
      const args = [asset, address, fee] as const
      const data = encodeFunctionData({ abi, functionName: 'getPool', args })
      return ['eth_call', [{ to: listing.factory, data }, 'latest']]
    }),
  )
  listing.tokens.forEach(({ symbol, pool }, index) => {
    const found = getAddress(`0x${(pools[index] as Hex).slice(-40)}`)
    if (found !== pool) throw new Error(`the pool of ${symbol} is ${found}, not ${pool}`)
  })
}

function setCode(address: Address, code: Hex): readonly [string, readonly unknown[]] {
  return ['anvil_setCode', [address, code]]
}

/** A published artifact: the shipped executable has none. */
async function load(path: string): Promise<Artifacts.Artifact> {
  const file = findInstalled(path)
  if (file !== undefined) return await Bun.file(file).json()
  throw new MissingExchangeError(
    'the stock exchange needs the @uniswap packages: run "bun install" in the project',
  )
}

/** Integer square root, rounded down. */
function root(value: bigint): bigint {
  let guess = 1n << BigInt((value.toString(2).length + 1) >> 1)
  for (;;) {
    const next = (guess + value / guess) >> 1n
    if (next >= guess) return guess
    guess = next
  }
}
