import type { Payment } from '../../db/Payment'
import type { Delivered } from '../settlement/delivery'
import { NotDeliverableError } from '../settlement/Outcome'
import type { Settlement } from '../settlement/settlement'
import { inProgress } from './Denial'
import { gone } from './undelivered'

/** Ends a delivery of which the buyer has nothing. Throws ProblemError when it is another gateway's. */
export async function endUndelivered(
  settlement: Pick<Settlement, 'findById' | 'endDelivery'>,
  payment: Payment,
  ended: Delivered,
): Promise<void> {
  try {
    await settlement.endDelivery(payment.id, ended)
  } catch (error) {
    await explain(settlement, payment, error)
  }
}

/**
 * Why a delivery could not begin or end: the claims of a process say nothing of those of other gateways.
 * They may have taken a delivery of this one, when they took it for dead.
 */
export async function explain(
  settlement: Pick<Settlement, 'findById'>,
  payment: Payment,
  error: unknown,
): Promise<never> {
  if (!(error instanceof NotDeliverableError)) throw error
  const current = await settlement.findById(payment.id)
  if (current?.delivery === 'delivered') throw gone(current, 'This payment has been delivered.')
  // Another gateway has it, or had it until this read. The limit counts its attempt, too. After a
  // failover that lost commits it may have to be confirmed again.
  if (current !== undefined) throw inProgress()
  throw error
}
