import type { Address, Hex } from 'viem'
import { type Node, RpcError } from '../chain/client'
import * as Clock from '../chain/clock'
import { type Fees, fees, observe } from '../chain/head'
import { parseBlock } from '../chain/receipt'
import type { Context, Rail } from './context'

/** Whom a call goes to: the URL of a network that is in use, or a given one. */
export type Asked = Pick<Rail, 'head' | 'network' | 'hasOverrides'> & {
  client: Pick<Node, 'call'>
}

/** What a call is made with; what is left out is as for a transaction that would be signed now. */
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
 * The answer of eth_call in the state of the newest block. Limit, fees and sender are those of a
 * transaction, and nodes take what it costs from the balance as a transaction does, so that code
 * which is called learns nothing from them. Throws RpcFault or RpcError.
 */
export async function ethCall(rail: Asked, call: EthCall): Promise<unknown> {
  try {
    return await ask(rail, call)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (isUnknownOverride(error) && rail.hasOverrides && call.atSeconds !== undefined) {
      rail.hasOverrides = false
      return ethCall(rail, call)
    }
    if (!/base fee|max fee|fee cap/i.test(error.message)) throw error
    // The base fee rose since it was last seen.
    const block = parseBlock(await rail.client.call('eth_getBlockByNumber', ['latest', false]))
    if (!block) throw error
    observe(rail.head, block)
    return ask(rail, call)
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

/** The node knows no block overrides. What a contract says cannot look like that. */
function isUnknownOverride(error: RpcError): boolean {
  if (isSpentGas(error)) return false
  return error.code === -32602 || /too many (arguments|param)|overrid/i.test(error.message)
}

/** A payer's wallet may burn everything that a call is given, the reads beside it included. */
export function isSpentGas(error: unknown): boolean {
  if (!(error instanceof RpcError)) return false
  return error.code === 3 || /out ?of ?gas|revert/i.test(error.message)
}

/**
 * The time of the next block by our clock (unix ms), less what the newest blocks prove that it is
 * ahead: what is valid by ours alone would fail on chain.
 */
export function chainNow({ now, monotonic }: Context, { clock }: Pick<Rail, 'clock'>): number {
  const at = now()
  return at - Math.max(0, Clock.skewOf(Clock.aheadOf(clock, at, monotonic())))
}

/**
 * The time to simulate transfers at, when some of them are not valid yet in the newest block that is
 * known, although they are by our clock: where blocks are rare, the next one is as late as the
 * transaction. Undefined: in the newest block, also where that is not old and our clock is ahead.
 */
export function timeFor(
  { head }: Pick<Rail, 'head'>,
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
