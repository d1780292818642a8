import * as Refusals from './read/refusals'
import type { QueuedPayment, Verdict } from './state/state'

/**
 * The verdict on a payment whose money is known, or cannot be looked up. It is told at once, whatever node
 * and relayer do meanwhile: a known payment needs neither. Never rejects.
 */
export async function findKnown(queued: QueuedPayment): Promise<Verdict | undefined> {
  const verdict = await look(queued)
  if (verdict === undefined) return undefined
  queued.isGivenUp = true
  queued.done(verdict)
  return verdict
}

async function look(queued: QueuedPayment): Promise<Verdict | undefined> {
  try {
    const payment = await queued.findKnown?.()
    return payment && { kind: 'known', payment }
  } catch (error) {
    return Refusals.unavailable(error)
  }
}
