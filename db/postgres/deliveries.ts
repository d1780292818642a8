import type { DeliveryCommits } from '../Ledger'
import { toPayment } from '../rows'
import * as Event from '../WebhookEvent'
import { createBatch } from './batch'
import type { Parts } from './parts'
import { arrayText } from './rows'

/** `gateway` is who delivers: another live gateway neither begins nor ends its delivery. */
export function createDeliveries({
  commits,
  gateway: by,
}: Pick<Parts, 'commits' | 'gateway'>): DeliveryCommits {
  const enter = commits.add
  const begin = createBatch({ call: 'begin_delivery', input: { by }, enter })
  // A delivered answer has been sent already, so its record need not wait for the disk.
  const deliver = createBatch({
    call: 'deliver',
    input: { by },
    enter: commits.addSoon,
    // What is delivered stays so, whichever of two runs comes last.
    isRepeatable: true,
    itemsOf: (items) => ({
      ids: arrayText(items.map(({ id }) => id)),
      statuses: arrayText(items.map(({ status }) => Number(status))),
      flags: arrayText(items.map(({ truncated }) => truncated === true)),
      times: arrayText(items.map(({ at }) => Number(at))),
    }),
  })
  const handOver = createBatch({ call: 'hand_over', enter })
  const markAnswered = createBatch({ call: 'mark_answered', enter })
  return {
    async begin(id, attempts) {
      const row = await begin({ id, attempts: attempts ?? null })
      return row === undefined ? undefined : toPayment(row)
    },
    deliver: async (id, { upstreamStatus: status, truncated }, at) =>
      (await deliver({ id, status, truncated, at })) === true,
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
          of: (row) => (row === null ? [] : [Event.deliveryFailed(toPayment(row), at)]),
        },
      }),
    handOver: async (id, at) => (await handOver({ id, at })) === true,
    async markAnswered(id) {
      await markAnswered({ id })
    },
  }
}
