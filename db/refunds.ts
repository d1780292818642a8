import type { Hex } from 'viem'
import { dayMs, dayStart } from '../src/protocol/Time'
import * as Refund from './Refund'
import { idAt } from './sales'
import { type RefundRow, refunds } from './schema'
import { columnsIn, decoderOf, type Selects } from './select'

/** The job of the newest attempt: its id is that of `Refund.jobId`. */
const ofJob = (column: string) => `(SELECT ${column} FROM jobs
  WHERE jobs.id = 'repay:' || refunds.payment_id || ':' || refunds.attempts)`

export const columns = `${columnsIn(refunds)}, ${ofJob('jobs.state')} AS "jobState",
  ${ofJob('jobs.transaction_hash')} AS "jobHash"`

type Found = { jobState: string | null; jobHash: Hex | null }

const decode = decoderOf(refunds)

/** The refund of a row with the columns above. */
export function toRefund(found: unknown): Refund.Refund {
  const { note, paidHash, ...row } = decode(found)
  const { jobState, jobHash } = found as Found
  return {
    ...row,
    note: note ?? undefined,
    transaction: paidHash ?? jobHash ?? undefined,
    state: paidHash !== null ? 'refunded' : openStateOf(jobState),
  }
}

function openStateOf(job: string | null): Exclude<Refund.State, 'refunded'> {
  if (job === null) return 'requested'
  return job === 'broadcast' ? 'sent' : 'failed'
}

/** A payment without a refund: a value of one row, as in db/entitlements.ts. */
const isUnrefunded = `(SELECT refunds.payment_id FROM refunds
  WHERE refunds.payment_id = payments.id) IS NULL`

/** Whether what a payment entitles to was used. A use that failed is given back, so it does not count. */
export const isUsed = `EXISTS (SELECT 1 FROM entitlements AS used WHERE used.uses > 0
  AND used.id IN ('again|' || payments.id, 'pass|' || payments.id))`

export function createRefundReads(selects: Selects) {
  const { dialect, select } = selects
  const all = (rest: string) => {
    const found = select(`SELECT ${columns} FROM refunds ${rest}`)
    return async (values = {}) => (await found(values)).map(toRefund)
  }
  const byId = all('WHERE payment_id = $id')
  const open = all(`WHERE paid_hash IS NULL
      AND (created_at, payment_id) > (CAST($at AS BIGINT), CAST($after AS TEXT))
    ORDER BY created_at, payment_id LIMIT $limit`)
  const counts = select<{ job: string | null; times: number }>(
    `SELECT job, count(*) AS times FROM (SELECT ${ofJob('jobs.state')} AS job FROM refunds
       WHERE paid_hash IS NULL) AS found GROUP BY job`,
  )
  const list = all(`WHERE (created_at, payment_id) < (CAST($at AS BIGINT), CAST($before AS TEXT))
    ORDER BY created_at DESC, payment_id DESC LIMIT $limit`)
  // What a channel was charged is claimed by its voucher, and is not sent back.
  const isDue = `state = 'confirmed' AND product = 'gateway' AND method <> 'channel' AND delivery <> 'delivered'
    AND ${dialect.isIn('merchant', '$merchants')} AND ${isUnrefunded} AND NOT ${isUsed}`
  const unanswered = select<{ id: string; isDue: number }>(
    `SELECT id, CASE WHEN redeem_until IS NULL AND ${isDue} THEN 1 ELSE 0 END AS "isDue"
     FROM payments WHERE id > $afterId AND id < $toId ORDER BY id LIMIT $limit`,
  )
  const ended = select<{ id: string; at: number }>(
    `SELECT id, redeem_until AS at FROM payments
     WHERE redeem_until >= $from AND redeem_until <= $now AND ${isDue}
     ORDER BY redeem_until LIMIT $limit`,
  )
  /** From where the next read continues, so that those that cannot be refunded do not hide the others. */
  let endedFrom = 0
  const find = async (id: string) => (await byId({ id }))[0]
  return {
    find,
    async open({ after = '', limit }: { after: string | undefined; limit: number }) {
      const at = (await find(after))?.createdAt ?? 0
      return open({ at, after, limit })
    },
    async countOpen() {
      const found = { requested: 0, sent: 0, failed: 0 }
      for (const { job, times } of await counts()) found[openStateOf(job)] += times
      return found
    },
    async list({ before = '', limit }: { before: string | undefined; limit: number }) {
      const at = (await find(before))?.createdAt ?? Number.MAX_SAFE_INTEGER
      return list({ at, before, limit })
    },
    async undelivered(of: Parameters<Refund.RefundLedger['undelivered']>[0]) {
      const { afterId, now, limit } = of
      const merchants = JSON.stringify(of.merchants)
      const toId = idAt(now - Refund.unansweredMs)
      const rows = await unanswered({ afterId, toId, merchants, limit })
      const ids = rows.filter((row) => row.isDue === 1).map(({ id }) => id)
      const lastId = rows.at(-1)?.id ?? afterId
      if (rows.length === limit) return { ids, lastId }
      const from = Math.max(endedFrom, now - Refund.lookBackMs)
      const others = await ended({ from, now, merchants, limit })
      endedFrom = others.length < limit ? 0 : (others.at(-1)?.at ?? 0)
      return { ids: [...ids, ...others.map(({ id }) => id)], lastId }
    },
  }
}

/** The UTC day whose refunds are summed for a request. Unix ms. */
export function summedDay(now: number): { from: number; to: number } {
  const from = dayStart(now)
  return { from, to: from + dayMs }
}

export function refundRow(
  { paymentId, account, reason, note, now }: Refund.RefundRequest,
  amountAtomic: bigint,
): RefundRow {
  return {
    ...{ paymentId, account, amountAtomic, reason, note: note ?? null },
    ...{ attempts: 0, paidHash: null, createdAt: now },
  }
}
