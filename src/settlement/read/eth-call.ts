import type { Address, Hex } from 'viem'
import { type Node, RpcError, RpcFault } from '../../chain/client'
import { type Fees, fees, observe } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import * as Permit2 from '../../chain/permit2'
import { parseBlock } from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Abi from '../../protocol/Abi'
import type * as Transfer from '../../protocol/Transfer'
import type { ChainState } from '../state/state'
import { readTop } from './reads'

/** The node to call: the URL of a network that is in use, or a given one. */
export type NodeState = Pick<ChainState, 'head' | 'network' | 'abilities'> & {
  client: Pick<Node, 'call'>
}

/** Parameters of a call; by default those of a transaction that would be signed now. */
export type EthCall = {
  from: Address | undefined
  /** Receiver of the call; without it, `data` is creation code. */
  to?: Address
  data: Hex
  gas: bigint
  fees?: Fees
  /**
   * Time of the block that it runs in (unix seconds), where the node supports it; undefined: that
   * of the newest.
   */
  atSeconds?: bigint | undefined
}

/**
 * Calls eth_call in the state of the newest block. Limit, fees and sender are those of the
 * transaction, and nodes subtract the cost from the balance alike. So the called code cannot tell a
 * simulation from the transaction. Throws RpcFault or RpcError.
 */
export async function ethCall(chain: NodeState, call: EthCall): Promise<unknown> {
  try {
    return await ask(chain, call)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (isUnknownOverride(error) && chain.abilities.hasOverrides && call.atSeconds !== undefined) {
      chain.abilities.hasOverrides = false
      return ethCall(chain, call)
    }
    if (!/base fee|max fee|fee cap/i.test(error.message)) throw error
    // The base fee rose since it was last read.
    const block = parseBlock(await chain.client.call('eth_getBlockByNumber', ['latest', false]))
    if (!block) throw error
    observe(chain.head, block)
    return ask(chain, call)
  }
}

function ask({ client, head, network, abilities }: NodeState, call: EthCall): Promise<unknown> {
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
  if (atSeconds === undefined || !abilities.hasOverrides)
    return client.call('eth_call', [request, 'latest'])
  // State overrides, then block overrides. geth.ethereum.org/docs/interacting-with-geth/rpc/ns-eth
  return client.call('eth_call', [request, 'latest', {}, { time: toHex(atSeconds) }])
}

/** The node does not support block overrides. A contract cannot produce such an error. */
function isUnknownOverride(error: RpcError): boolean {
  if (isSpentGas(error)) return false
  return error.code === -32602 || /too many (arguments|param)|overrid/i.test(error.message)
}

/**
 * The call ran out of gas. A payer's wallet may use all of it, including that of the other reads.
 */
export function isSpentGas(error: unknown): boolean {
  if (!(error instanceof RpcError)) return false
  return error.code === 3 || /out ?of ?gas|revert/i.test(error.message)
}

/**
 * The time (unix seconds) to simulate transfers at. Used when the newest block is old and earlier
 * than a `validAfter`: where blocks are rare, the next block is as late as the transaction.
 * Undefined: simulate in the newest block.
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

/** Results of calls in the state of one block. Throws RpcFault or RpcError. */
export async function aggregate(
  chain: NodeState,
  from: Address | undefined,
  calls: readonly Multicall.Call[],
  options: { gas: bigint; atSeconds?: bigint | undefined },
): Promise<Multicall.Result[] | undefined> {
  const { to, data } = Multicall.aggregate(calls)
  const answer = await ethCall(chain, { from, to, data, ...options })
  return Multicall.parseResults(answer, calls.length)
}

/**
 * Whether the money's nonce is used, and the time of the same block. Read atomically, so that
 * "unused after the deadline" proves that the money did not move on this fork. `isFinal`: no fork that
 * a reorganisation can bring has a block in which it could still move. Throws RpcFault or RpcError.
 */
export async function readMoney(
  chain: NodeState & Pick<ChainState, 'relayers'>,
  transfer: Transfer.Transfer,
): Promise<{ used: boolean; timestamp: bigint; isFinal: boolean }> {
  const results = await aggregate(
    chain,
    chain.relayers[0]?.address,
    [nonceCall(transfer), Multicall.timestampCall],
    { gas: 200_000n },
  )
  const [state, time] = results ?? []
  const used = isUsed(transfer, uintOf(state))
  const timestamp = uintOf(time)
  if (used === undefined || timestamp === undefined) {
    throw new RpcFault('the state of the nonce cannot be read')
  }
  const { validBefore } = transfer
  return { used, timestamp, isFinal: timestamp > validBefore && (await isDeep(chain, validBefore)) }
}

/** Whether a block after that time (unix seconds) is as deep as `reorg_depth`. */
async function isDeep(chain: NodeState, seconds: bigint): Promise<boolean> {
  const number = (await readTop(chain)) - BigInt(chain.network.reorgDepth)
  if (number < 0n) return false
  const answer = await chain.client.call('eth_getBlockByNumber', [toHex(number), false])
  const block = parseBlock(answer)
  return block !== undefined && block.timestamp > seconds
}

/** The read that tells whether the money's nonce is used. */
export function nonceCall(transfer: Transfer.Transfer): Multicall.Call {
  return transfer.method === 'permit2'
    ? Permit2.nonceBitmap(transfer.payer, transfer.nonce)
    : Token.authorizationState(transfer.asset, transfer.payer, transfer.nonce)
}

/** Decodes the read of the nonce; undefined for anything but 0 or 1. */
export function isUsed(transfer: Transfer.Transfer, word: bigint | undefined): boolean | undefined {
  if (word === undefined) return undefined
  return transfer.method === 'permit2' ? Permit2.isUsed(word, transfer.nonce) : word !== 0n
}

/** The integer that a call returned; undefined when it failed. */
export function uintOf(result: Multicall.Result | undefined): bigint | undefined {
  return result?.success ? Abi.uintAt(result.data.slice(2)) : undefined
}
