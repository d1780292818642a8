import type { Payment } from '../../../db/Payment'
import type { Delivered } from '../../settlement/send/delivery'
import { NotDeliverableError } from '../../settlement/send/Outcome'
import type { Settlement } from '../../settlement/settlement'
import { inProgress } from '../Denial'
import { gone } from './undelivered'

/**
 * Ends a delivery whose buyer got nothing. Throws ProblemError when another gateway has taken it
 * over.
 */
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
 * Throws the problem of a delivery that could not begin or end. A claim covers one process only.
 * Other gateways may have taken this delivery over, when they took this process for dead.
 */
export async function explain(
  settlement: Pick<Settlement, 'findById'>,
  payment: Payment,
  error: unknown,
): Promise<never> {
  if (!(error instanceof NotDeliverableError)) throw error
  const current = await settlement.findById(payment.id)
  if (current?.delivery === 'delivered') throw gone(current, 'This payment has been delivered.')
  // Another gateway delivers it, or did so until this read. The limit counts its attempt, too.
  // After a failover that lost commits the payment may have to be confirmed again.
  if (current !== undefined) throw inProgress()
  throw error
}
