import type { Hex } from 'viem'
import type { ChangeListener, JobRider } from '../Ledger'
import type { RefundLedger } from '../Refund'
import { columns, createRefundReads, isUsed, refundRow, summedDay, toRefund } from '../refunds'
import { toPayment } from '../rows'
import { type PaymentRow, refunds } from '../schema'
import type { Db } from './open'
import { insertInto, selectsOf, statement } from './statement'
import type { Outbox } from './webhooks'
import { RefusedError, write } from './write'

type Options = {
  outbox: Outbox
  changes: ChangeListener
  /** Whether a delivery of the payment is running in this process. */
  isDelivering: (paymentId: string) => boolean
}

type Paid = Pick<PaymentRow, 'state' | 'product' | 'method' | 'delivery'> & {
  amount: string
  isUsed: 0 | 1
}

/** Money that goes back to payers. Twin: db/postgres/functions/refunds.sql. */
export function createRefunds(db: Db, { outbox, changes, isDelivering }: Options) {
  const insert = insertInto(db, refunds)
  const isKnown = statement(db, 'SELECT 1 FROM refunds WHERE payment_id = $id')
  const paidOf = statement<Paid>(
    db,
    `SELECT state, product, method, delivery, amount_atomic AS amount, ${isUsed} AS isUsed FROM payments
     WHERE id = $id`,
  )
  const sum = statement<{ sum: string }>(
    db,
    `SELECT CAST(coalesce(sum(CAST(amount_atomic AS INTEGER)), 0) AS TEXT) AS sum FROM refunds
     WHERE created_at >= $from AND created_at < $to`,
  )
  const attempt = statement(
    db,
    `UPDATE refunds SET attempts = attempts + 1
     WHERE payment_id = $id AND attempts = $attempts AND paid_hash IS NULL
       AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'broadcast'
         AND id = 'repay:' || refunds.payment_id || ':' || refunds.attempts)
       AND (reason <> 'undelivered' OR $delivery <> 'delivered')
     RETURNING 1`,
  )
  const again = statement(
    db,
    `UPDATE refunds SET attempts = attempts + 1 WHERE payment_id = $id AND paid_hash IS NULL
       AND EXISTS (SELECT 1 FROM jobs WHERE state IN ('failed', 'replaced')
         AND id = 'repay:' || refunds.payment_id || ':' || refunds.attempts)
     RETURNING 1`,
  )
  const pay = statement(
    db,
    `UPDATE refunds SET paid_hash = $hash
     WHERE payment_id = $id AND (paid_hash IS NULL OR $isElsewhere AND paid_hash <> $hash)
     RETURNING ${columns}`,
  )
  const payment = statement(db, 'SELECT * FROM payments WHERE id = $id')

  /** Records the transaction that has paid. Call it inside `write`. */
  function paid(id: string, hash: Hex, at: number, isElsewhere = false): void {
    const row = pay().get({ id, hash: hash.toLowerCase(), isElsewhere: Number(isElsewhere) })
    if (row === null) return
    outbox.refunded(() => toPayment(payment().get({ id })), toRefund(row), at)
    changes.payment(id)
  }

  const ledger: RefundLedger = {
    ...createRefundReads(selectsOf(db)),
    async request(input) {
      const { paymentId: id, reason, perDayAtomic, now } = input
      return write(db, () => {
        if (isKnown().get({ id }) !== null) return 'exists'
        const found = paidOf().get({ id })
        const isOurs = found?.product === 'gateway' && found.method !== 'channel'
        if (!isOurs || found.state !== 'confirmed') return 'not-confirmed'
        const most = BigInt(found.amount)
        const { amountAtomic = most } = input
        if (amountAtomic < 1n || amountAtomic > most) return 'too-much'
        const isRunning = found.delivery === 'delivering' && isDelivering(id)
        const isGiven = found.delivery === 'delivered' || isRunning || found.isUsed === 1
        if (reason === 'undelivered' && isGiven) return 'delivered'
        const before = BigInt(sum().get(summedDay(now))?.sum ?? 0)
        if (before + amountAtomic > perDayAtomic) return 'day-spent'
        insert(refundRow(input, amountAtomic))
        return 'requested'
      })
    },
    async retry(id) {
      return write(db, () => again().get({ id }) !== null)
    },
    async setElsewhere(id, hash, at) {
      write(db, () => paid(id, hash, at, true))
    },
  }
  return {
    ledger,
    riders: {
      ride({ paymentId: id, attempts }: Extract<JobRider, { kind: 'repay' }>): void {
        const found = paidOf().get({ id })
        if (found?.state !== 'confirmed') throw new RefusedError('payment-not-confirmed')
        if (attempt().get({ id, attempts, delivery: found.delivery }) === null)
          throw new RefusedError('refund-changed')
      },
      paid,
    },
  }
}
