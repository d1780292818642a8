import { networkPaused } from '../../db/WebhookEvent'
import type { WebhookLedger } from '../../db/WebhookLedger'
import type * as Network from '../protocol/Network'

/** Least time between two events of one network, ms. */
const betweenMs = 60_000

type Status = { network: Network.Id; ready: boolean; reason?: string }

/**
 * Writes `network.paused` when a network stops to settle. That is no row of the database, so it is
 * found by looking at the states; a network that is paused at the start counts, too.
 */
export function createNetworkWatch(options: {
  ledger: Pick<WebhookLedger, 'add'>
  status: () => readonly Status[]
  /** Unix ms. */
  now: () => number
}): () => Promise<void> {
  /** By network: when it was last reported, and whether it has been ready since. */
  const known = new Map<Network.Id, { at: number; isOver: boolean }>()
  return async () => {
    const at = options.now()
    for (const { network, ready, reason = 'it cannot settle' } of options.status()) {
      const last = known.get(network)
      if (ready) {
        if (last) last.isOver = true
        continue
      }
      if (last && (!last.isOver || at < last.at + betweenMs)) continue
      // Set before it is written: after a fault of the storage it is tried again after the same
      // time.
      known.set(network, { at, isOver: true })
      await options.ledger.add(networkPaused(network, reason, at))
      known.set(network, { at, isOver: false })
    }
  }
}
