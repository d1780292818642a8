import type { AnswerLedger, AnswerUsage, StoredAnswer } from '../Ledger'
import type { Parts } from './parts'

const byPayment = `SELECT status, headers, body, created_at AS "createdAt", expires_at AS "expiresAt"
  FROM answers WHERE payment_id = $1`
/** An answer without a payment counts for an empty owner. */
const usageOf = `SELECT lower(CASE WHEN payments.method = 'channel' THEN substr(payments.nonce, 1, 34)
      ELSE coalesce(payments.payer, '') END) AS owner,
    sum(length(body) + length(headers) + $1)::bigint AS bytes
  FROM answers LEFT JOIN payments ON payments.id = answers.payment_id
  GROUP BY owner`

/** Shorter answers, in base64, delay a commit no more than other changes do. */
const longMin = 8 * 1024

/** `portion`: most answers that are deleted in one commit. */
export function createAnswers(
  { commits, reader }: Pick<Parts, 'commits' | 'reader'>,
  { portion = 500 }: { portion?: number } = {},
): AnswerLedger {
  const sweep = (now: number) =>
    commits.add({
      call: 'sweep_answers',
      input: { now, limit: portion },
      key: 'answers',
      read: Number,
    })
  return {
    async find(paymentId) {
      const row = await reader.one<StoredAnswer>(byPayment, [paymentId])
      return row && { ...row, body: new Uint8Array(row.body) }
    },
    store(paymentId, answer) {
      const body = Buffer.from(answer.body).toString('base64')
      return commits.add({
        call: 'store_answer',
        input: { ...answer, paymentId, body },
        length: body.length > longMin ? body.length : undefined,
        key: paymentId,
      })
    },
    async sweep(now) {
      while ((await sweep(now)) === portion);
      const next = 'SELECT min(expires_at) AS at FROM answers'
      return (await reader.one<{ at: number | null }>(next))?.at ?? undefined
    },
    usage: (rowBytes) => reader.all<AnswerUsage>(usageOf, [rowBytes]),
  }
}
