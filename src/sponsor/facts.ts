import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../chain/client'
import * as Multicall from '../chain/multicall'
import { findMissing } from '../chain/multicall'
import { isHex } from '../chain/receipt'
import * as Token from '../chain/token'
import * as Permit from '../protocol/Permit'
import { balanceAt, uintOf } from '../settlement/read/holdings'
import type * as Grant from './Grant'
import type { Sponsored, SponsorSettlement } from './ledger'

const maxUint256 = (1n << 256n) - 1n

/** The state of an address, and the base fee of that block. */
type AddressFacts = { facts: Grant.Facts; baseFeeWei: bigint; blockNumber: bigint }

/**
 * Reads the state of an address in at most three requests. The older balance is read only when the
 * present one suffices. Throws RpcFault when the node has no answer, for example because it does
 * not keep that state.
 */
export async function readHolder(
  settlement: SponsorSettlement,
  network: Sponsored,
  address: Address,
): Promise<AddressFacts> {
  const { id, asset, sponsor } = network
  const token = asset.address
  const [{ blockNumber, results }, code, count] = await Promise.all([
    settlement.read(id, [
      Token.balanceOf(token, address),
      Token.allowance(token, address, Permit.permit2Address),
      Multicall.nativeBalance(address),
      Multicall.baseFeeCall,
    ]),
    settlement.rpc(id, 'eth_getCode', [address, 'latest']),
    settlement.rpc(id, 'eth_getTransactionCount', [address, 'pending']),
  ])
  const [assetAtomic, allowanceAtomic, balanceWei, baseFeeWei] = results.map(uintOf)
  if (!isHex(code)) throw new RpcFault('not a code')
  if (!isHex(count)) throw new RpcFault('not a transaction count')
  if (assetAtomic === undefined || allowanceAtomic === undefined || balanceWei === undefined) {
    throw new RpcFault('the balances of the address cannot be read')
  }
  const isEoa = code.length <= 2
  const isPossible = isEoa && assetAtomic >= sponsor.minBalanceAtomic
  const before = blockNumber - BigInt(sponsor.minBalanceAgeBlocks)
  const assetBeforeAtomic =
    isPossible && before >= 0n ? await balanceAt(settlement, network, address, before) : undefined
  return {
    facts: {
      code: isEoa ? 'eoa' : 'contract',
      assetAtomic,
      assetBeforeAtomic,
      allowanceAtomic,
      balanceWei,
      nonce: Number(count),
    },
    // Some nodes answer 0 to calls without a gas price.
    baseFeeWei: baseFeeWei || settlement.fees(id).baseFeeWei,
    blockNumber,
  }
}

/**
 * The node's estimate of the gas of an unlimited approve, with L1 data where the chain includes it.
 * Undefined when the token refuses it for this address. Throws RpcFault.
 */
export async function estimateApprove(
  settlement: SponsorSettlement,
  { id, asset }: Sponsored,
  from: Address,
): Promise<bigint | undefined> {
  const call = approveCall(asset.address)
  try {
    const gas = await settlement.rpc(id, 'eth_estimateGas', [{ from, ...call }])
    if (isHex(gas)) return BigInt(gas)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (error.code === 3 || /revert/i.test(error.message)) return undefined
  }
  throw new RpcFault('the cost of an approve cannot be estimated')
}

/** Calldata of an unlimited approve of Permit2. */
export function approveCall(token: Address): { to: Address; data: Hex } {
  const { to, data } = Token.approve(token, Permit.permit2Address, maxUint256)
  return { to, data }
}

/**
 * The tip that the node suggests to wallets, which may differ from our own bid. Wei. For nodes
 * without that method it is computed as viem does. Throws RpcFault or RpcError.
 */
export async function tipOf(
  settlement: SponsorSettlement,
  { id }: Sponsored,
  baseFeeWei: bigint,
): Promise<bigint> {
  try {
    const tip = await settlement.rpc(id, 'eth_maxPriorityFeePerGas', [])
    if (isHex(tip)) return BigInt(tip)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
  }
  const price = await settlement.rpc(id, 'eth_gasPrice', [])
  if (!isHex(price)) throw new RpcFault('not a gas price')
  return BigInt(price) > baseFeeWei ? BigInt(price) - baseFeeWei : 0n
}

/**
 * Those of the addresses that have no allowance for Permit2, or delegate to code: such an address has
 * not paid for its approve itself. Throws RpcFault.
 */
export async function idle(
  settlement: SponsorSettlement,
  { id, asset }: Sponsored,
  addresses: readonly Address[],
): Promise<Address[]> {
  const spender = Permit.permit2Address
  const calls = addresses.map((owner) => Token.allowance(asset.address, owner, spender))
  const client = {
    call: (method: string, params: readonly unknown[]) => settlement.rpc(id, method, params),
  }
  const [{ results }, plain] = await Promise.all([
    settlement.read(id, calls),
    findMissing(client, addresses),
  ])
  const isPlain = (address: Address) => plain === undefined || plain.has(address)
  return addresses.filter(
    (address, index) => (uintOf(results[index]) ?? 0n) === 0n || !isPlain(address),
  )
}
