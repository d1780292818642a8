import type { RefundLedger, Requested } from '../Refund'
import { createRefundReads, refundRow, summedDay, toRefund } from '../refunds'
import { toPayment } from '../rows'
import { refunds } from '../schema'
import * as Event from '../WebhookEvent'
import type { WebhookEvent } from '../webhooks'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { type Json, toJson } from './rows'

/** Money that goes back to payers. */
export function createRefunds({
  commits,
  reader,
}: Pick<Parts, 'commits' | 'reader'>): RefundLedger {
  return {
    ...createRefundReads(selectsOf(reader)),
    request: (input) =>
      commits.add({
        call: 'request_refund',
        input: {
          payment: input.paymentId,
          amount: input.amountAtomic === undefined ? null : String(input.amountAtomic),
          row: toJson(refunds, refundRow(input, 0n)),
          per_day: String(input.perDayAtomic),
          ...summedDay(input.now),
        },
        key: input.paymentId,
        locks: ['refunds'],
        read: (value) => value as Requested,
      }),
    retry: (payment) =>
      commits.add({
        call: 'retry_refund',
        input: { payment },
        key: payment,
        read: (value) => value as boolean,
      }),
    setElsewhere: (payment, hash, at) =>
      commits.add({
        call: 'refund_elsewhere',
        input: { payment, hash: hash.toLowerCase() },
        key: payment,
        events: { types: ['payment.refunded'], of: (paid) => refundedEvents(paid, at) },
      }),
  }
}

/** `paid`: what `pay_refund` returned. */
export function refundedEvents(paid: Json | undefined, at: number): readonly WebhookEvent[] {
  if (paid === null || paid === undefined) return []
  const { payment, refund } = paid as { payment: Json; refund: Json }
  return [Event.paymentRefunded(toPayment(payment), toRefund(refund), at)]
}
