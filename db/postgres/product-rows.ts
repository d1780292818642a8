import type { EventType } from '../../src/protocol/Webhook'
import type { Tally } from '../GrantBudget'
import type { JobRider, OrderRows } from '../Ledger'
import { newOrderRow } from '../rows'
import { grants, grantTopUps, orders } from '../schema'
import * as Event from '../WebhookEvent'
import type { WebhookEvent } from '../WebhookLedger'
import { eventsOf, rideOf, typesOf } from './orders'
import { type Json, toJson } from './rows'

/**
 * Rows of products inside a commit of settlement: the inputs of functions that are called there, and
 * the events of what they return.
 */
export const productRows = {
  /** The rows of `insert_order`, which sets the payment and its transaction. */
  order({ order, quota }: OrderRows): Json {
    const unpaid = { paymentId: '', settlementTx: '0x' } as const
    return { order: toJson(orders, { ...newOrderRow(order), ...unpaid }), quota: quota ?? null }
  },
  /** The rider of `ride_order` or `ride_grant`, which sets the transaction. */
  rider(rider: JobRider): Json {
    if (rider.kind === 'order') {
      const { kind, ride, confirmed, withoutEffect = [] } = rider
      return { kind, ...rideOf(ride), confirmed: confirmed ?? null, withoutEffect }
    }
    const { budget, isSigned, isTopUp, row } = rider.grant
    const unsent = { transactionHash: '0x' } as const
    return {
      kind: rider.kind,
      isTopUp,
      isSigned,
      row: isTopUp
        ? toJson(grantTopUps, { ...row, ...unsent })
        : toJson(grants, { ...row, ...unsent }),
      from: budget.from,
      grants: budget.grants,
      wei: String(budget.wei),
    }
  },
  events: {
    types: [...typesOf('swap'), 'budget.spent'] as readonly EventType[],
    /** `ridden`: what the function of the rider returned. */
    of(rider: JobRider, ridden: Json): readonly WebhookEvent[] {
      if (rider.kind === 'order') return eventsOf(rider.ride.kind, ridden)
      const event = Event.grantsSpent(rider.grant, tallyOf(ridden))
      return event === undefined ? [] : [event]
    },
  },
}

function tallyOf(json: Json): Tally {
  const { grants, wei } = json as { grants: number; wei: string }
  return { grants, wei: BigInt(wei) }
}
