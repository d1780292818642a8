import type { Address } from 'viem'
import type * as Multicall from '../../chain/multicall'
import * as Token from '../../chain/token'
import type { Transfer } from '../../protocol/Transfer'
import type { Context } from '../state/context'
import type { ChainState } from '../state/state'
import * as EthCall from './eth-call'
import { check } from './verify'

/*
 * Whether a payer caused that its payment failed. A node that is behind, a paused token and a payee that
 * the token blocks are not the doing of a payer.
 */

type Uses = Pick<Context, 'chains' | 'now' | 'monotonic' | 'progress'>

/**
 * Whether a charge that one simulation refused passes at another node or in the next block, or cannot be
 * decided there. Never rejects.
 */
export async function mayPass(
  context: Uses,
  chain: ChainState,
  transfer: Transfer,
): Promise<boolean> {
  for (const { call } of chain.client.others()) {
    const other = { ...chain, client: { ...chain.client, call } }
    const chains = new Map([[chain.network.id, other]])
    const checked = await check({ ...context, chains }, transfer)
    if (!('kind' in checked)) return true
    if (checked.kind !== 'unavailable') break
  }
  await chain.heads.wait(2 * chain.head.blockTimeMs, context.progress.signal)
  const checked = await check(context, transfer)
  return !('kind' in checked) || checked.kind === 'unavailable'
}

/** Whether the token refuses everybody's transfers to the payee now. Throws RpcFault or RpcError. */
export async function isRefusedByToken(chain: ChainState, transfer: Transfer): Promise<boolean> {
  const other = chain.relayers[0]?.address
  if (other === undefined) return false
  const calls = refusalCalls(transfer, other)
  const results = await EthCall.aggregate(chain, other, calls, { gas: 500_000n })
  return results !== undefined && isOfToken(results)
}

/** Reads for `isOfToken`. `other`: an account that the token does not block. */
export function refusalCalls({ asset, payee }: Transfer, other: Address): Multicall.Call[] {
  return [Token.transfer(asset, payee, 0n), Token.transfer(asset, other, 0n), Token.paused(asset)]
}

/**
 * Whether the token refuses a transfer of nothing to the payee, because it is paused or blocks the payee. A
 * token that refuses every transfer of nothing shows neither.
 */
export function isOfToken([toPayee, toOther, paused]: readonly Multicall.Result[]): boolean {
  return toPayee?.success === false && (toOther?.success === true || EthCall.uintOf(paused) === 1n)
}
