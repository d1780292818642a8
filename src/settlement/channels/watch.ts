import type { Hex } from 'viem'
import type { Channel, OnChain } from '../../../db/Channel'
import type { PaymentRefusal } from '../read/refusals'
import type { ChainState, Context } from '../state/state'

/**
 * What the nodes of a network have of channels, of all URLs the worst for the payee. Throws RpcFault or
 * RpcError.
 */
export async function readChannels(
  _chain: ChainState,
  _ids: readonly Hex[],
): Promise<ReadonlyMap<Hex, OnChain>> {
  return new Map()
}

/** Reads channels that are known, and writes them to the ledger and the memory. Rejects as `readChannels`. */
export async function syncChannels(
  _context: Context,
  _chain: ChainState,
  _ids: readonly Hex[],
): Promise<void> {}

/** Why no voucher of a channel is taken now. No I/O. */
export function mayTake(
  _context: Context,
  _chain: ChainState,
  _channel: Channel,
): PaymentRefusal | undefined {
  return undefined
}
