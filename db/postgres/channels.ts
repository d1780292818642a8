import { baseOf, createChannelRows, isOpen, releaseRequests, toChannel } from '../channels'
import { entitlementRow } from '../entitlements'
import type { ChannelLedger } from '../Ledger'
import type { Payment } from '../Payment'
import { paymentOf } from '../rows'
import { entitlements, type PaymentRow, payments } from '../schema'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { type Json, reservationOf, rowText, toJson } from './rows'
import { confirmedEvents } from './settling'
import { changeOf } from './webhooks'

/**
 * Reserved by a gateway that is gone. The ids are read first: PostgreSQL checks a row that has changed
 * meanwhile once more, and does not read `gateways` again for that.
 */
const isLeft = `(reserved_by IS NULL OR reserved_by = ANY (ARRAY(
  SELECT reserved_by FROM channels WHERE ${isOpen} AND reserved_by IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM gateways WHERE gateways.id = reserved_by))))`

/** Payment channels, whose vouchers all gateways share. */
export function createChannels({
  commits,
  reader,
  gateway: by,
}: Pick<Parts, 'commits' | 'reader' | 'gateway'>): ChannelLedger & {
  /** Releases the vouchers that requests of gateways that are gone had reserved. */
  recover(): Promise<void>
} {
  return {
    ...createChannelRows({ ...selectsOf(reader), change: changeOf({ commits }) }),
    async recover() {
      await commits.run('commit', `${releaseRequests} AND ${isLeft}`, [])
    },
    // The server may crash, or a standby may take its place, while this process makes the answer. The
    // charge of a stream would find no reservation.
    reserve(reservation) {
      return commits.add({
        call: 'reserve_channel',
        input: { ...reservationOf(reservation), by },
        key: reservation.channelId.toLowerCase(),
        read: (value) =>
          value === true ? 'reserved' : value === null ? undefined : toChannel(value),
      })
    },
    // A crash of the server must not give it back to this process, which lives on.
    release(id, reservation) {
      const key = id.toLowerCase()
      return commits.add({
        ...{ call: 'release_channel', input: { id: key, reservation }, key, isRepeatable: true },
        read: (value) => value === true,
      })
    },
    charge({ row, rows }) {
      const base = baseOf(row)
      const amounts = { base: String(base), charged: String(base + row.amountAtomic) }
      const entitlement =
        rows && 'entitles' in rows ? toJson(entitlements, entitlementRow(rows.entitles, row)) : null
      const stored = (value: Json): Payment | undefined => {
        const written = value as Pick<PaymentRow, 'nonce' | 'idempotencyKey'> | null
        return written === null ? undefined : paymentOf({ ...row, ...written })
      }
      return commits.add({
        call: 'charge_channel',
        input: { ...amounts, payment: rowText(payments, row), by, entitlement },
        key: row.transactionHash.toLowerCase(),
        read: stored,
        events: {
          types: ['payment.confirmed'],
          of: (value) => {
            const paid = stored(value)
            return paid === undefined ? [] : confirmedEvents(paid)
          },
        },
      })
    },
  }
}
