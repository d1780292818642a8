import type { Hex } from 'viem'
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
  const find = statement(db, 'SELECT * FROM channels WHERE id = $id')
  const reserve = statement(
    db,
    `UPDATE channels SET reserved_id = $reservationId, reserved_atomic = $max,
       reserved_signature = $signature, reserved_fingerprint = $fingerprint, reserved_at = $at,
       used_at = $at
     WHERE id = $id AND charged_atomic = $base AND reserved_id IS NULL
       AND balance_atomic <> claimed_atomic AND NOT ${isBelow('balance_atomic', '$max')}
       AND ($max = $base OR (withdraw_at IS NULL AND ${isBelow('claimed_atomic', '$max')}))
     RETURNING 1`,
  )
  const charge = statement(
    db,
    `UPDATE channels SET charged_atomic = $charged, signed_atomic = reserved_atomic,
       signature = reserved_signature, ${unreserved}
     WHERE id = $id AND reserved_id = $reservationId AND charged_atomic = $base
       AND NOT ${isBelow('reserved_atomic', '$charged')}
     RETURNING 1`,
  )
  const read = (id: Hex) => {
    const row = find().get({ id })
    return row === null ? undefined : toChannel(row)
  }
  return {
    ...createChannelReads(selectsOf(db)),
    ...createChannelChanges(changeOf(db, group)),
    reserve: (channelId, { baseAtomic, reserved }) =>
      group.addSoon(() => {
        const id = channelId.toLowerCase() as Hex
        const { id: reservationId, maxAtomic, signature, fingerprint, at } = reserved
        const [base, max] = [String(baseAtomic), String(maxAtomic)]
        const voucher = { reservationId, max, signature: signature.toLowerCase() }
        const isReserved = reserve().get({ id, base, ...voucher, fingerprint, at }) !== null
        return isReserved ? 'reserved' : read(id)
      }),
    charge: ({ channelId, reservationId, payment, rows }) =>
      group.add(() => {
        const base = baseOf(payment)
        const id = channelId.toLowerCase()
        const amounts = { base: String(base), charged: String(base + payment.amountAtomic) }
        if (charge().get({ id, reservationId, ...amounts }) === null) return undefined
        return insertCharged({ row: payment, rows })
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
