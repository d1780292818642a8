import type { Address, Hex } from 'viem'
import { type Client, RpcError } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import * as Abi from '../../protocol/Abi'
import type { Asset, TransferMethod } from '../../protocol/Asset'
import {
  eip3009CollectorAddress,
  permit2CollectorAddress,
  settlementAddress,
} from '../../protocol/Channel'
import { permit2Address } from '../../protocol/Permit'

/** Contracts that each method of a deposit needs, with that of channels. */
const contracts: Readonly<Record<TransferMethod, readonly Address[]>> = {
  eip3009: [settlementAddress, eip3009CollectorAddress],
  permit2: [settlementAddress, permit2CollectorAddress, permit2Address],
}

export const channelContracts = [...new Set(Object.values(contracts).flat())]

/**
 * The methods of an asset by which a deposit can be paid on a chain, the preferred one first. `missing`:
 * those of `channelContracts` that the chain lacks. Throws RpcFault.
 */
export async function readChannelMethods(
  client: Pick<Client, 'call'>,
  asset: Asset,
  missing: ReadonlySet<Address>,
): Promise<readonly TransferMethod[]> {
  const methods: TransferMethod[] = []
  for (const method of asset.transfer) {
    const isThere = contracts[method].every((each) => !missing.has(each))
    if (isThere && (method === 'permit2' || (await takesBytes(client, asset)))) methods.push(method)
  }
  return methods
}

const receive = Abi.selector(
  'receiveWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)',
)

/** Calldata of an authorization that has expired, with an invalid signature. */
function expiredFor(payee: Address): Hex {
  const from = Abi.address(Multicall.multicallAddress)
  const words = from + Abi.address(payee) + Abi.uint(0).repeat(4) + Abi.uint(7 * 32)
  return `0x${receive}${words}${Abi.dynamicBytes(`0x${'00'.repeat(65)}`)}`
}

/**
 * Whether a token has `receiveWithAuthorization` with one signature, which the collector calls. Such a
 * token refuses one call because of its sender, and the other for another reason. Without the function
 * both are refused alike.
 */
async function takesBytes(
  client: Pick<Client, 'call'>,
  { address: to }: Pick<Asset, 'address'>,
): Promise<boolean> {
  const payees = [Multicall.multicallAddress, eip3009CollectorAddress]
  const calls = payees.map((payee) => ({ to, data: expiredFor(payee) }))
  try {
    const answer = await client.call('eth_call', [Multicall.aggregate(calls), 'latest'])
    const [own, other] = Multicall.parseResults(answer, calls.length) ?? []
    return own?.success === false && other?.success === false && own.data !== other.data
  } catch (error) {
    if (error instanceof RpcError) return false
    throw error
  }
}
