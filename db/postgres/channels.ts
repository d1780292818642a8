import type { Hex } from 'viem'
import { baseOf, createChannelChanges, createChannelReads, toChannel } from '../channels'
import { entitlementRow } from '../entitlements'
import type { ChannelLedger } from '../Ledger'
import type { Payment } from '../Payment'
import { paymentOf } from '../rows'
import { entitlements, payments } from '../schema'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { type Json, rowText, toJson } from './rows'
import { confirmedEvents } from './settling'
import { changeOf } from './webhooks'

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
    ...createChannelReads(selectsOf(reader)),
    ...createChannelChanges(changeOf({ commits })),
    recover: () => commits.add({ call: 'release_channels', input: {}, key: '' }),
    // The server may crash, or a standby may take its place, while this process makes the answer. The
    // charge of a stream would find no reservation.
    reserve(channelId, { baseAtomic, reserved }) {
      const id = channelId.toLowerCase()
      const { maxAtomic, signature, ...request } = reserved
      const voucher = { atomic: String(maxAtomic), signature: signature.toLowerCase() }
      return commits.add({
        call: 'reserve_channel',
        input: { id, base: String(baseAtomic), reserved: { ...request, ...voucher }, by },
        key: id,
        read: (value) =>
          value === true ? 'reserved' : value === null ? undefined : toChannel(value),
      })
    },
    charge({ channelId, reservationId: reservation, payment, rows }) {
      const id: Hex = `0x${channelId.slice(2).toLowerCase()}`
      const base = baseOf(payment)
      const amounts = { base: String(base), charged: String(base + payment.amountAtomic) }
      const entitlement =
        rows && 'entitles' in rows
          ? toJson(entitlements, entitlementRow(rows.entitles, payment))
          : null
      const stored = (value: Json): Payment | undefined => {
        if (value === null) return undefined
        const { nonce, key } = value as { nonce: Hex; key: boolean }
        return paymentOf({
          ...{ ...payment, nonce },
          idempotencyKey: key ? payment.idempotencyKey : null,
        })
      }
      return commits.add({
        call: 'charge_channel',
        input: {
          id,
          reservation,
          ...amounts,
          payment: rowText(payments, payment),
          by,
          entitlement,
        },
        key: id,
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
