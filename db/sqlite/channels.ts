import type { Reservation } from '../Channel'
import {
  baseOf,
  createChannelRows,
  isBelow,
  releaseRequests,
  toChannel,
  unreserved,
} from '../channels'
import type { ChannelLedger } from '../Ledger'
import type { Db } from './open'
import { insertCharged, type Parts } from './settling'
import { selectsOf, statement } from './statement'
import { changeOf } from './webhooks'

/** Payment channels. Twin of the changes here: db/postgres/functions/channels.sql. */
export function createChannels(parts: Parts): ChannelLedger {
  const { db, group, riders } = parts
  const find = statement(db, 'SELECT * FROM channels WHERE id = ?')
  const kept = (signed: string, reserved: string) =>
    `CASE WHEN NOT ${isBelow('signed_atomic', '?3')} THEN ${signed} ELSE ${reserved} END`
  const charge = statement(
    db,
    `UPDATE channels SET charged_atomic = ?3,
       signed_atomic = ${kept('signed_atomic', 'reserved_atomic')},
       signature = ${kept('signature', 'reserved_signature')}, ${unreserved}
     WHERE id = ?1 AND reserved_id = ?2 AND charged_atomic = ?4
       AND NOT ${isBelow('reserved_atomic', '?3')}`,
  )
  const release = statement(
    db,
    `UPDATE channels SET ${unreserved} WHERE id = ?1 AND reserved_id = ?2`,
  )
  return {
    ...createChannelRows({ ...selectsOf(db), change: changeOf(db, group) }),
    reserve: (reservation) =>
      group.addSoon(() => {
        if (riders.reserve(reservation)) return 'reserved'
        const row = find().get(reservation.channelId.toLowerCase())
        return row === null ? undefined : toChannel(row)
      }),
    charge: (payment) =>
      group.add(() => {
        const { id, transactionHash: channelId, amountAtomic } = payment.row
        const base = baseOf(payment.row)
        const amounts = [String(base + amountAtomic), String(base)]
        const { changes } = charge().run(channelId.toLowerCase(), id, ...amounts)
        return changes > 0 ? insertCharged(parts, payment) : undefined
      }),
    release: (id, reservationId) =>
      group.addSoon(() => release().run(id.toLowerCase(), reservationId).changes > 0),
  }
}

/** Reserves a voucher where that is possible. Call it inside `write`. */
export function createReserve(db: Db) {
  // By position, because a name is looked up again at each call.
  const reserve = statement(
    db,
    `UPDATE channels SET reserved_id = ?2, reserved_atomic = ?3, reserved_signature = ?4,
       reserved_fingerprint = ?5, reserved_at = ?6, used_at = ?6
     WHERE id = ?1 AND charged_atomic = ?7 AND (reserved_id IS NULL OR reserved_id = ?2)
       AND balance_atomic <> claimed_atomic AND NOT ${isBelow('balance_atomic', '?3')}
       AND (?3 = ?7 OR (withdraw_at IS NULL AND ${isBelow('claimed_atomic', '?3')}))`,
  )
  return ({ channelId, baseAtomic, reserved }: Reservation): boolean => {
    const { id, maxAtomic, signature, fingerprint, at } = reserved
    const voucher = [String(maxAtomic), signature.toLowerCase(), fingerprint, at]
    return reserve().run(channelId.toLowerCase(), id, ...voucher, String(baseAtomic)).changes > 0
  }
}

/**
 * Releases the vouchers that requests of an earlier process had reserved. Call it before any reservation.
 */
export function recoverChannels(db: Db): void {
  statement(db, releaseRequests)().run({})
}
