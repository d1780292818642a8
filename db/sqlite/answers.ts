import { eq, lte, min } from 'drizzle-orm'
import type { AnswerLedger, AnswerUsage } from '../AnswerLedger'
import { answers } from '../schema'
import type { Db } from './open'
import { later, parameter } from './statement'
import { write } from './write'

export function createAnswers(db: Db): AnswerLedger {
  const { orm } = db
  const byPayment = later(orm, () =>
    orm
      .select()
      .from(answers)
      .where(eq(answers.paymentId, parameter('paymentId')))
      .prepare(),
  )
  return {
    async find(paymentId) {
      const row = byPayment.get({ paymentId })
      return row && { ...row, body: new Uint8Array(row.body) }
    },
    async store(paymentId, answer) {
      const row = { ...answer, paymentId, body: Buffer.from(answer.body) }
      write(db, () => void orm.insert(answers).values(row).onConflictDoNothing().run())
    },
    async sweep(now) {
      write(db, () => void orm.delete(answers).where(lte(answers.expiresAt, now)).run())
      const [oldest] = orm
        .select({ at: min(answers.expiresAt) })
        .from(answers)
        .all()
      return oldest?.at ?? undefined
    },
    usage: async (rowBytes) => usageOf(db, rowBytes),
  }
}

/**
 * An answer without a payment counts for an empty payer. As text, because every start runs it and
 * the builder would take ten times as long.
 */
function usageOf({ sqlite }: Db, rowBytes: number): AnswerUsage[] {
  return sqlite
    .query<AnswerUsage, [number]>(
      `SELECT coalesce(payments.payer, '') AS payer,
        sum(length(answers.body) + length(answers.headers) + ?) AS bytes
      FROM answers LEFT JOIN payments ON payments.id = answers.payment_id
      GROUP BY payments.payer`,
    )
    .all(rowBytes)
}
