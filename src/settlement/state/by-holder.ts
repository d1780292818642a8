import type { Authorization } from '../../../db/Authorization'
import { atCeiling } from '../../protocol/Transfer'
import type { Intake } from '../send/intake'
import type { Outcome } from '../send/Outcome'
import { checkPayer, refuseUnserved, writeCeiling } from '../upto/authorize'
import { limitsOf } from '../upto/ceiling-limits'
import { settleCharge } from '../upto/charges'
import { chainOf } from './context'
import * as Gas from './gas-budget'
import type { PaymentRequest } from './state'

/*
 * The facilitator's settlement by a relayer that another process has. Only that relayer may settle what
 * the payer signed, so the ceiling is written with its charge, and the process that has the relayer
 * settles it like the charge of an answer.
 */

/** As much as any payer can have. */
const unlimited = 2n ** 256n

/**
 * Checks a charge as `settle` does, writes it as metered, and waits for the process that settles it.
 * `unavailable` after the time: the charge may be settled later.
 */
export async function settleByHolder(
  context: Intake,
  { id = context.createId(), transfer, purpose, receivedAt, requestId }: PaymentRequest,
  waitMs: number,
): Promise<Outcome> {
  const { now } = context
  const until = now() + waitMs
  const chain = chainOf(context, transfer.network)
  const knownBlock = chain.head.number
  const refused =
    refuseUnserved(context, chain, transfer) ?? Gas.refuseBudget(context, chain, purpose)
  if (refused) return refused
  const checked = await checkPayer(context, chain, { transfer, purpose, onAsked: undefined })
  if ('kind' in checked) return checked
  const authorization: Authorization = {
    id,
    transfer: atCeiling(checked.transfer),
    purpose,
    state: 'metered',
    charge: { amountAtomic: transfer.amountAtomic, units: {} },
    delivered: undefined,
    failedAt: undefined,
    receivedAt,
    knownBlock,
    createdAt: now(),
  }
  // Nothing is given before the payment, so the payer needs no credit. But its balance must cover all that
  // is written: a charge that it does not cover takes the room of its relayer until it expires.
  const limits = {
    ...limitsOf(context, chain, { transfer: checked.transfer, purpose }, checked.simulation),
    unsettledAtomic: unlimited,
    fundsAtomic: checked.simulation.balanceAtomic,
  }
  const written = await writeCeiling(context, authorization, limits)
  if (written !== 'stored') return written
  context.metrics.charged(transfer.network, 'metered')
  return settleCharge(context, authorization, { waitMs: Math.max(0, until - now()), requestId })
}
