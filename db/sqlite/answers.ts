import { eq, lte, min, sql } from 'drizzle-orm'
import type { AnswerLedger, AnswerUsage } from '../AnswerLedger'
import { answers, payments } from '../schema'
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

/** An answer without a payment counts for an empty payer. */
function usageOf({ orm }: Db, rowBytes: number): AnswerUsage[] {
  const length = sql`length(${answers.body}) + length(${answers.headers}) + ${rowBytes}`
  return orm
    .select({
      payer: sql<string>`coalesce(${payments.payer}, '')`,
      bytes: sql<number>`sum(${length})`,
    })
    .from(answers)
    .leftJoin(payments, eq(payments.id, answers.paymentId))
    .groupBy(payments.payer)
    .all()
}
