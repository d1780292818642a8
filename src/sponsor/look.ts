import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../chain/client'
import * as Multicall from '../chain/multicall'
import { isHex } from '../chain/receipt'
import * as Token from '../chain/token'
import * as Permit from '../protocol/Permit'
import type * as Grant from './Grant'
import type { Engine, Sponsored } from './ledger'

const maxUint256 = (1n << 256n) - 1n

/** What the chain says of an address, and the base fee of that block. */
export type Look = { facts: Grant.Facts; baseFeeWei: bigint; blockNumber: bigint }

/**
 * Reads what decides about an address, in at most three requests. The older balance is asked for only
 * when the present one suffices. Throws RpcFault when the node does not tell, for example because it
 * does not keep that state.
 */
export async function look(engine: Engine, network: Sponsored, address: Address): Promise<Look> {
  const { id, asset, sponsor } = network
  const token = asset.address
  const [{ blockNumber, results }, code] = await Promise.all([
    engine.read(id, [
      Token.balanceOf(token, address),
      Token.allowance(token, address, Permit.permit2Address),
      Multicall.nativeBalance(address),
      Multicall.baseFeeCall,
    ]),
    engine.rpc(id, 'eth_getCode', [address, 'latest']),
  ])
  const [assetAtomic, allowanceAtomic, balanceWei, baseFeeWei] = results.map(uintOf)
  if (!isHex(code)) throw new RpcFault('not a code')
  if (assetAtomic === undefined || allowanceAtomic === undefined || balanceWei === undefined) {
    throw new RpcFault('the balances of the address cannot be read')
  }
  const hasCode = code.length > 2
  const isPossible = !hasCode && assetAtomic >= sponsor.minBalanceAtomic
  const before = blockNumber - BigInt(sponsor.minBalanceAgeBlocks)
  const assetBeforeAtomic =
    isPossible && before >= 0n ? await balanceAt(engine, network, address, before) : undefined
  return {
    facts: { hasCode, assetAtomic, assetBeforeAtomic, allowanceAtomic, balanceWei },
    // Some nodes answer 0 to calls without a gas price.
    baseFeeWei: baseFeeWei || engine.fees(id).baseFeeWei,
    blockNumber,
  }
}

async function balanceAt(
  engine: Engine,
  { id, asset }: Sponsored,
  address: Address,
  block: bigint,
): Promise<bigint> {
  const call = Token.balanceOf(asset.address, address)
  try {
    const answer = await engine.rpc(id, 'eth_call', [call, `0x${block.toString(16)}`])
    const balance = isHex(answer) ? Token.toUint(answer) : undefined
    if (balance !== undefined) return balance
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
  }
  throw new RpcFault(`no node has the state of block ${block}`)
}

/**
 * The node's estimate of the gas of an approve of everything, L1 data included where the chain folds it
 * in. Undefined when the token refuses it for this address. Throws RpcFault.
 */
export async function estimateApprove(
  engine: Engine,
  { id, asset }: Sponsored,
  from: Address,
): Promise<bigint | undefined> {
  const call = Token.approve(asset.address, Permit.permit2Address, maxUint256)
  try {
    const gas = await engine.rpc(id, 'eth_estimateGas', [{ from, ...call }])
    if (isHex(gas)) return BigInt(gas)
  } catch (error) {
    if (!(error instanceof RpcError)) throw error
    if (error.code === 3 || /revert/i.test(error.message)) return undefined
  }
  throw new RpcFault('the cost of an approve cannot be estimated')
}

function uintOf(data: Hex | undefined): bigint | undefined {
  return data === undefined ? undefined : Token.toUint(data)
}
