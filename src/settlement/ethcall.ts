import type { Address, Hex } from 'viem'
import { type Node, RpcError } from '../chain/client'
import { type Fees, fees, observe } from '../chain/head'
import { parseBlock } from '../chain/receipt'
import type { ChainState } from './context'

/** The node to call: the URL of a network that is in use, or a given one. */
export type Asked = Pick<ChainState, 'head' | 'network' | 'hasOverrides'> & {
  client: Pick<Node, 'call'>
}

/** Parameters of a call; by default those of a transaction that would be signed now. */
export type EthCall = {
  from: Address | undefined
  /** Without it `data` is creation code. */
  to?: Address
  data: Hex
  gas: bigint
  fees?: Fees
  /** Time of the block that it runs in (unix seconds), where the node can; undefined: that of the newest. */
  atSeconds?: bigint | undefined
}

/**
 * The answer of eth_call in the state of the newest block. Limit, fees and sender are those of the
 * transaction, and nodes subtract the cost from the balance alike, so that the called code cannot
 * tell a simulation from them. Throws RpcFault or RpcError.
 */
export async function ethCall(chain: Asked, call: EthCall): Promise<unknown> {
  try {
    return await ask(chain, call)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (isUnknownOverride(error) && chain.hasOverrides && call.atSeconds !== undefined) {
      chain.hasOverrides = false
      return ethCall(chain, call)
    }
    if (!/base fee|max fee|fee cap/i.test(error.message)) throw error
    // The base fee rose since it was last seen.
    const block = parseBlock(await chain.client.call('eth_getBlockByNumber', ['latest', false]))
    if (!block) throw error
    observe(chain.head, block)
    return ask(chain, call)
  }
}

function ask({ client, head, network, hasOverrides }: Asked, call: EthCall): Promise<unknown> {
  const { from, to, data, gas, atSeconds } = call
  const { maxFeeWei, maxTipWei } = call.fees ?? fees(head, network.feeCapWei)
  const request = {
    ...(from && { from }),
    ...(to && { to }),
    data,
    gas: toHex(gas),
    maxFeePerGas: toHex(maxFeeWei),
    maxPriorityFeePerGas: toHex(maxTipWei),
  }
  if (atSeconds === undefined || !hasOverrides) return client.call('eth_call', [request, 'latest'])
  // State overrides, then those of the block. geth.ethereum.org/docs/interacting-with-geth/rpc/ns-eth
  return client.call('eth_call', [request, 'latest', {}, { time: toHex(atSeconds) }])
}

/** The node does not support block overrides. A contract cannot produce such an error. */
function isUnknownOverride(error: RpcError): boolean {
  if (isSpentGas(error)) return false
  return error.code === -32602 || /too many (arguments|param)|overrid/i.test(error.message)
}

/**
 * The call ran out of gas: a payer's wallet may burn all of it, also that of the reads beside it.
 */
export function isSpentGas(error: unknown): boolean {
  if (!(error instanceof RpcError)) return false
  return error.code === 3 || /out ?of ?gas|revert/i.test(error.message)
}

/**
 * The time (unix seconds) to simulate transfers at, when the newest block is old and earlier than
 * the `validAfter` of one of them: where blocks are rare, the next block is as late as the
 * transaction. Undefined: simulate in the newest block.
 */
export function timeFor(
  { head }: Pick<ChainState, 'head'>,
  transfers: readonly { validAfter: bigint }[],
  now: number,
): bigint | undefined {
  const { isOld, timestamp } = head
  if (!isOld || !transfers.some(({ validAfter }) => validAfter >= timestamp)) return undefined
  return BigInt(Math.floor(now / 1000))
}

function toHex(value: bigint): Hex {
  return `0x${value.toString(16)}`
}
