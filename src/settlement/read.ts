import type { Address, Hex } from 'viem'
import { RpcFault } from '../chain/client'
import * as Multicall from '../chain/multicall'
import { at, toUint } from '../chain/token'
import * as Abi from '../protocol/Abi'
import type { Rail } from './context'

/** Arbitrum's own number, where there is ArbSys: Solidity's is that of the chain below. */
const ownNumber = at('0x0000000000000000000000000000000000000064', Abi.selector('arbBlockNumber()'))
const blockNumber = at(Multicall.multicallAddress, Abi.selector('getBlockNumber()'))

/**
 * Read-only calls of products in one eth_call; undefined for one that failed by itself. Throws
 * RpcFault, also when the node's answer is none, and RpcError.
 */
export async function read(
  { client }: Rail,
  calls: readonly { to: Address; data: Hex }[],
  options: { timeoutMs?: number } = {},
): Promise<{ blockNumber: bigint; results: readonly (Hex | undefined)[] }> {
  const { to, data } = Multicall.aggregate([ownNumber, blockNumber, ...calls])
  const answer = await client.call('eth_call', [{ to, data }, 'latest'], options)
  const [own, plain, ...results] = Multicall.parseResults(answer, calls.length + 2) ?? []
  const number = numberOf(own) ?? numberOf(plain)
  if (number === undefined) throw new RpcFault('no block number')
  return {
    blockNumber: number,
    results: results.map((result) => (result.success ? result.data : undefined)),
  }
}

function numberOf(result: Multicall.Result | undefined): bigint | undefined {
  return result?.success ? toUint(result.data) : undefined
}
