import { type Address, decodeFunctionData, type Hex, parseAbi, parseTransaction } from 'viem'
import type { StockToken } from '../../src/config/Config'
import type { Chain } from '../../src/demo/chains'
import { samplePrice } from '../../src/demo/exchange'
import { offer, pause } from '../harness/exchange'
import type { Random } from './random'

const abi = parseAbi([
  'function multicall(uint256 deadline, bytes[] data) payable returns (bytes[])',
  'function pull(address token, uint256 value) payable',
  'function sweepToken(address token, uint256 amountMinimum, address recipient) payable',
  'function exactInputSingle((address tokenIn, address tokenOut, uint24 fee, address recipient, uint256 amountIn, uint256 amountOutMinimum, uint160 sqrtPriceLimitX96) params) payable returns (uint256)',
])

type Call = { method: string; params: readonly unknown[] }

/** A token and its pool against the stablecoin. */
type Pool = { chain: Chain; asset: Address; token: StockToken }

/** Runs work while no other runs. */
export type Alone = <T>(work: () => Promise<T>) => Promise<T>

/**
 * Removes a pool's liquidity when a swap in it is sent, except for a little more than the minimum
 * of that swap. So a part of its input is not taken. At most one pool is drained at a time.
 */
export function createPoolDrains({ chain, asset, token }: Pool, alone: Alone, random: Random) {
  let pending: Promise<Response> | undefined

  async function drained(floorAtomic: bigint, forward: () => Promise<Response>): Promise<Response> {
    // Withdrawing liquidity transfers shares, so the token must not be paused.
    await pause(chain, token, {})
    const drain = await offer(chain, asset, token, (floorAtomic * 1_002n) / 1_000n)
    await drain.drain()
    try {
      const answer = await forward()
      return new Response(await answer.arrayBuffer(), { status: answer.status })
    } finally {
      // Each price is different.
      await drain.restore(samplePrice(token.symbol) * (1 + random.next() / 1_000))
    }
  }

  return {
    /** Share of the swaps that meet a drained pool. */
    share: 0,
    /** The node's answer to such a swap; undefined for every other call. */
    intercept(call: Call, forward: () => Promise<Response>): Promise<Response> | undefined {
      const floorAtomic = floorOf(call, token)
      if (floorAtomic === undefined || pending || !random.chance(this.share)) return undefined
      pending = alone(() => drained(floorAtomic, forward)).finally(() => {
        pending = undefined
      })
      return pending
    },
    /** Resolves when the pool has its liquidity again; later swaps are not affected. */
    async end(): Promise<void> {
      this.share = 0
      await pending
    },
  }
}

/** Minimum shares of a swap of the token; undefined for other calls. */
function floorOf({ method, params }: Call, token: StockToken): bigint | undefined {
  if (!method.startsWith('eth_sendRawTransaction')) return undefined
  try {
    const { data = '0x' } = parseTransaction(params[0] as `0x02${string}`)
    const outer = decodeFunctionData({ abi, data: data as Hex })
    if (outer.functionName !== 'multicall') return undefined
    for (const each of outer.args[1]) {
      const inner = decodeFunctionData({ abi, data: each })
      if (inner.functionName !== 'exactInputSingle') continue
      const [{ tokenOut, amountOutMinimum }] = inner.args
      return tokenOut === token.address ? amountOutMinimum : undefined
    }
  } catch {
    // Not a call of the router.
  }
  return undefined
}
