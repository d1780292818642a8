import type { Hex } from 'viem'
import { baseOf, createChannelChanges, createChannelReads, toChannel } from '../channels'
import type { ChannelLedger } from '../Ledger'
import { toPayment } from '../rows'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { chargedEntryOf, confirmedEvents } from './settling'
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
    charge({ channelId, reservationId, payment, rows }) {
      const id: Hex = `0x${channelId.slice(2).toLowerCase()}`
      const base = baseOf(payment)
      const amounts = { base: String(base), charged: String(base + payment.amountAtomic) }
      return commits.add({
        call: 'charge_channel',
        input: {
          ...{ id, reservation: reservationId, ...amounts },
          payment: chargedEntryOf({ row: payment, rows }, by),
        },
        key: id,
        read: (value) => (value === null ? undefined : toPayment(value)),
        events: {
          types: ['payment.confirmed'],
          of: (value) => (value === null ? [] : confirmedEvents(toPayment(value))),
        },
      })
    },
  }
}
