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

/** Of a token against the stablecoin. */
type Pool = { chain: Chain; asset: Address; token: StockToken }

/** Runs work while no other runs. */
export type Alone = <T>(work: () => Promise<T>) => Promise<T>

/**
 * Takes away a pool's liquidity as a swap in it is sent, but for a little more than the floor of that
 * swap: a part of its money is not taken. At most one pool is dry at a time.
 */
export function createDroughts({ chain, asset, token }: Pool, alone: Alone, random: Random) {
  let underWay: Promise<Response> | undefined

  async function live(floorAtomic: bigint, forward: () => Promise<Response>): Promise<Response> {
    // Liquidity leaves in shares, too.
    await pause(chain, token, {})
    const drought = await offer(chain, asset, token, (floorAtomic * 1_002n) / 1_000n)
    await drought.dry()
    try {
      const answer = await forward()
      return new Response(await answer.arrayBuffer(), { status: answer.status })
    } finally {
      // Never twice the same price.
      await drought.refill(samplePrice(token.symbol) * (1 + random.next() / 1_000))
    }
  }

  return {
    /** Share of the swaps. */
    share: 0,
    /** The node's answer to a swap that met a drought; undefined for everything else. */
    meet(call: Call, forward: () => Promise<Response>): Promise<Response> | undefined {
      const floorAtomic = floorOf(call, token)
      if (floorAtomic === undefined || underWay || !random.chance(this.share)) return undefined
      underWay = alone(() => live(floorAtomic, forward)).finally(() => {
        underWay = undefined
      })
      return underWay
    },
    /** Resolves when the pool is full again, for good. */
    async end(): Promise<void> {
      this.share = 0
      await underWay
    },
  }
}

/** Shares that a swap of the token must give at least; undefined for other calls. */
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
