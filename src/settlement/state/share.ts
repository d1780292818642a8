import { facilitatorMax } from '../send/relayer'
import type { Queue, QueuedPayment, Relayer } from './state'

/*
 * Relayers settle our own sales, and payments for other servers (the facilitator). The others have a share
 * of each relayer, and wait behind the charges of our own answers.
 */

/**
 * Adds a payment that names its relayer: charges of our own answers first, and those whose time ends
 * first before others.
 */
export function enqueueNamed({ named }: Queue, queued: QueuedPayment): void {
  const at = named.findIndex((each) => precedes(queued, each))
  named.splice(at < 0 ? named.length : at, 0, queued)
}

function precedes(left: QueuedPayment, right: QueuedPayment): boolean {
  const isOther = isForOthers(left)
  if (isOther !== isForOthers(right)) return !isOther
  return left.transfer.validBefore < right.transfer.validBefore
}

/** Whether a payment is settled for another server. */
function isForOthers({ request }: QueuedPayment): boolean {
  return request.purpose.product === 'facilitator'
}

/** Whether a relayer has room for the payment beside what it settles for other servers. */
export function hasShare({ facilitating }: Relayer, queued: QueuedPayment): boolean {
  return !isForOthers(queued) || facilitating < facilitatorMax
}

/** Counts a batch that is being simulated, until the result is called. */
export function countShare(relayer: Relayer, [first]: readonly QueuedPayment[]): () => void {
  if (!first || !isForOthers(first)) return () => {}
  relayer.facilitating++
  return () => void relayer.facilitating--
}
