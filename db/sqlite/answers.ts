import type { AnswerLedger, AnswerUsage, StoredAnswer } from '../Ledger'
import { answers } from '../schema'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import { write } from './write'

export function createAnswers(db: Db): AnswerLedger {
  const byPayment = statement<StoredAnswer>(
    db,
    `SELECT status, headers, body, created_at AS createdAt, expires_at AS expiresAt
     FROM answers WHERE payment_id = $id`,
  )
  const insert = insertInto(db, answers, 'ON CONFLICT DO NOTHING')
  const sweep = statement(db, 'DELETE FROM answers WHERE expires_at <= $now')
  const oldest = statement<{ at: number | null }>(db, 'SELECT min(expires_at) AS at FROM answers')
  // An answer without a payment counts for an empty owner.
  const usage = statement<AnswerUsage>(
    db,
    `SELECT lower(CASE WHEN payments.method = 'channel' THEN substr(payments.nonce, 1, 34)
         ELSE coalesce(payments.payer, '') END) AS owner,
       sum(length(answers.body) + length(answers.headers) + $rowBytes) AS bytes
     FROM answers LEFT JOIN payments ON payments.id = answers.payment_id
     GROUP BY owner`,
  )
  return {
    find: async (id) => byPayment().get({ id }) ?? undefined,
    async store(paymentId, answer) {
      write(db, () => insert({ ...answer, paymentId, body: Buffer.from(answer.body) }))
    },
    async sweep(now) {
      write(db, () => sweep().run({ now }))
      return oldest().get()?.at ?? undefined
    },
    usage: async (rowBytes) => usage().all({ rowBytes }),
  }
}
