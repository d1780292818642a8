import type { Authorization } from '../../../db/Authorization'
import { makesRoom, pausedBy } from '../send/relayer'
import { about, type Context } from '../state/context'
import { isOthers, keeps } from '../state/ownership'

/** A charge that waits for longer is logged, and again after the same time, ms. */
const overdueMs = 30_000

type Uses = Pick<Context, 'ledger' | 'chains' | 'progress' | 'monotonic' | 'log'>

/**
 * Logs charges that wait to be sent, and the reason. Call it with the open authorizations at each look.
 */
export function createOverdue(context: Uses): (open: readonly Authorization[]) => void {
  /** When each was seen first, or logged. */
  let since = new Map<string, number>()
  return (open) => {
    const at = context.monotonic()
    const waiting = open.flatMap(({ id, state, failedAt, transfer }) => {
      const reason = state === 'metered' && failedAt === undefined && reasonOf(context, transfer)
      return reason ? [{ id, reason, transfer }] : []
    })
    since = new Map(waiting.map(({ id }) => [id, since.get(id) ?? at]))
    for (const { id, reason, transfer } of waiting) {
      if (at - (since.get(id) ?? at) < overdueMs) continue
      since.set(id, at)
      const { network, upto } = transfer
      context.log('charge-waiting', {
        ...about({ id }),
        network,
        relayer: upto?.facilitator,
        reason,
      })
    }
  }
}

/** What a charge waits for, as far as this process knows; undefined for those of another process. */
function reasonOf(context: Uses, { network, upto }: Authorization['transfer']): string | undefined {
  const chain = context.chains.get(network)
  if (!chain || !upto) return undefined
  const { relayers, health } = chain
  const lane = { network, relayer: upto.facilitator }
  const relayer = relayers.find(({ address }) => address === upto.facilitator)
  if (relayer === undefined || !relayer.isHeld) {
    if (!keeps(context, chain) || context.ledger.lanes.isOfAnother(lane)) return undefined
    return isOthers(context, network, upto.facilitator)
      ? 'no process has its account'
      : 'its account is not configured'
  }
  const paused = health.reason ?? pausedBy(relayer)
  if (paused !== undefined) return paused
  if (makesRoom(relayer, relayers)) return 'its account is given to another process'
  return relayer.open > 0 ? `${relayer.open} transactions of its account are open` : 'the database'
}
