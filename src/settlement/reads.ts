import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../chain/client'
import * as Multicall from '../chain/multicall'
import type * as Network from '../protocol/Network'
import { type Context, chainOf } from './context'

export type Read = { blockNumber: bigint; results: readonly (Hex | undefined)[] }

/**
 * Results of calls in the state of the newest block, undefined for each that fails, in one eth_call.
 * Throws RpcFault, also when the node refuses the whole call.
 */
export async function read(
  context: Context,
  network: Network.Id,
  calls: readonly { to: Address; data: Hex }[],
  options: { timeoutMs?: number } = {},
): Promise<Read> {
  const { client } = chainOf(context, network)
  const { to, data } = Multicall.aggregate([...Multicall.blockNumberCalls, ...calls])
  const count = calls.length + Multicall.blockNumberCalls.length
  const answer = await client
    .call('eth_call', [{ to, data }, 'latest'], options)
    .catch((error: unknown) => {
      if (!(error instanceof RpcError)) throw error
      throw new RpcFault(`the node refuses the call (${error.code})`, { cause: error })
    })
  const results = Multicall.parseResults(answer, count)
  const blockNumber = results && Multicall.blockNumberOf(results)
  if (blockNumber === undefined) throw new RpcFault('not an answer of Multicall3')
  return {
    blockNumber,
    results: (results ?? [])
      .slice(Multicall.blockNumberCalls.length)
      .map((result) => (result.success ? result.data : undefined)),
  }
}
