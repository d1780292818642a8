import type { DeliveryCommits } from '../Ledger'
import * as Event from '../WebhookEvent'
import type { Parts } from './parts'
import { decode } from './payments'

/** `gateway` is who delivers: another live gateway neither begins nor ends its delivery. */
export function createDeliveries({
  commits,
  gateway: by,
}: Pick<Parts, 'commits' | 'gateway'>): DeliveryCommits {
  return {
    begin: (id) =>
      commits.add({
        call: 'begin_delivery',
        input: { id, by },
        key: id,
        read: (row) => (row === null ? undefined : decode(row)),
      }),
    // A delivered answer has been sent already, so its record need not wait for the disk.
    deliver: (id, { upstreamStatus, truncated }, at) =>
      commits.addSoon({
        call: 'deliver',
        input: { id, status: upstreamStatus, truncated, at, by },
        key: id,
        read: (isDelivered) => isDelivered === true,
      }),
    // The token must be on the disk before its buyer has it.
    fail: (id, { upstreamStatus, redeemTokenHash, redeemUntil }, at) =>
      commits.add({
        call: 'fail_delivery',
        input: {
          id,
          status: upstreamStatus ?? null,
          hash: redeemTokenHash,
          until: redeemUntil,
          by,
        },
        key: id,
        read: (row) => row !== null,
        events: {
          types: ['delivery.failed'],
          of: (row) => (row === null ? [] : [Event.deliveryFailed(decode(row), at)]),
        },
      }),
    handOver: (id, at) =>
      commits.add({
        call: 'hand_over',
        input: { id, at },
        key: id,
        read: (isHandedOver) => isHandedOver === true,
      }),
    markAnswered: (id) =>
      commits.add({ call: 'mark_answered', input: { id }, key: id, read: () => undefined }),
  }
}
