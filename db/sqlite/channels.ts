import {
  baseOf,
  createChannelChanges,
  createChannelReads,
  isBelow,
  isOpen,
  toChannel,
  unreserved,
} from '../channels'
import type { ChannelLedger, NewPayment } from '../Ledger'
import type { Payment } from '../Payment'
import type { Db } from './open'
import { selectsOf, statement } from './statement'
import { changeOf } from './webhooks'
import type { Group } from './write'

type Uses = {
  group: Group
  /** Inserts a payment that is confirmed and being delivered, with its rows and events. */
  insertCharged: (payment: NewPayment) => Payment
}

/** Payment channels. Twin of the changes here: db/postgres/functions/channels.sql. */
export function createChannels(db: Db, { group, insertCharged }: Uses): ChannelLedger {
  const find = statement(db, 'SELECT * FROM channels WHERE id = ?')
  // By position, because a name is looked up again at each call.
  const reserve = statement(
    db,
    `UPDATE channels SET reserved_id = ?2, reserved_atomic = ?3, reserved_signature = ?4,
       reserved_fingerprint = ?5, reserved_at = ?6, used_at = ?6
     WHERE id = ?1 AND charged_atomic = ?7 AND reserved_id IS NULL
       AND balance_atomic <> claimed_atomic AND NOT ${isBelow('balance_atomic', '?3')}
       AND (?3 = ?7 OR (withdraw_at IS NULL AND ${isBelow('claimed_atomic', '?3')}))`,
  )
  const greater = (signed: string, reserved: string) =>
    `CASE WHEN ${isBelow('reserved_atomic', 'signed_atomic')} THEN ${signed} ELSE ${reserved} END`
  const charge = statement(
    db,
    `UPDATE channels SET charged_atomic = ?3,
       signed_atomic = ${greater('signed_atomic', 'reserved_atomic')},
       signature = ${greater('signature', 'reserved_signature')}, ${unreserved}
     WHERE id = ?1 AND reserved_id = ?2 AND charged_atomic = ?4
       AND NOT ${isBelow('reserved_atomic', '?3')}`,
  )
  return {
    ...createChannelReads(selectsOf(db)),
    ...createChannelChanges(changeOf(db, group)),
    reserve: (channelId, { baseAtomic, reserved }) =>
      group.addSoon(() => {
        const id = channelId.toLowerCase()
        const { id: reservationId, maxAtomic, signature, fingerprint, at } = reserved
        const voucher = [String(maxAtomic), signature.toLowerCase(), fingerprint, at]
        const { changes } = reserve().run(id, reservationId, ...voucher, String(baseAtomic))
        if (changes > 0) return 'reserved'
        const row = find().get(id)
        return row === null ? undefined : toChannel(row)
      }),
    charge: ({ channelId, reservationId, payment, rows }) =>
      group.add(() => {
        const base = baseOf(payment)
        const amounts = [String(base + payment.amountAtomic), String(base)]
        const { changes } = charge().run(channelId.toLowerCase(), reservationId, ...amounts)
        return changes > 0 ? insertCharged({ row: payment, rows }) : undefined
      }),
  }
}

/**
 * Releases the vouchers that requests of an earlier process had reserved. A refund stays reserved: its
 * transaction may have been sent. Call it before any reservation.
 */
export function releaseRequests(db: Db): void {
  const release = statement(
    db,
    `UPDATE channels SET ${unreserved}
     WHERE ${isOpen} AND reserved_id NOT LIKE 'refund:%'`,
  )
  release().run({})
}
