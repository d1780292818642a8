import { eq, lt, sql } from 'drizzle-orm'
import type { Db } from '../../db/open'
import { answers } from '../../db/schema'
import { write } from '../../db/write'

/** An answer as it was delivered. */
export type Answer = { status: number; headers: Headers; body: Uint8Array }

/** Answers kept for idempotency keys: 24 hours, at most 1 MiB each, capped in total. */
export type Answers = {
  find(paymentId: string, now: number): Answer | undefined
  /** Keeps an answer; one that is too long is not kept. */
  store(paymentId: string, answer: Answer, now: number): void
  /** The cap is reached: nothing with a key may be charged until room is made. */
  isFull(now: number): boolean
}

const keptMs = 24 * 60 * 60 * 1000
/** Longest body that is kept. */
export const answerMaxBytes = 1024 * 1024

/** The answers of a database. `totalMaxBytes` bounds what strangers can make us store. */
export function createAnswers(db: Db, totalMaxBytes = 256 * answerMaxBytes): Answers {
  const { orm } = db
  const byPayment = orm
    .select()
    .from(answers)
    .where(eq(answers.paymentId, sql.placeholder('paymentId')))
    .prepare()
  let total = sum()

  function sum(): number {
    const row = orm
      .select({ bytes: sql<number>`coalesce(sum(length(body)), 0)` })
      .from(answers)
      .get()
    return row?.bytes ?? 0
  }

  return {
    find(paymentId, now) {
      const row = byPayment.get({ paymentId })
      if (row === undefined || row.expiresAt <= now) return undefined
      const pairs: [string, string][] = JSON.parse(row.headers)
      return { status: row.status, headers: new Headers(pairs), body: new Uint8Array(row.body) }
    },
    store(paymentId, { status, headers, body }, now) {
      if (body.byteLength > answerMaxBytes) return
      const row = {
        paymentId,
        status,
        headers: JSON.stringify([...headers]),
        body: Buffer.from(body),
        createdAt: now,
        expiresAt: now + keptMs,
      }
      write(db, () => {
        orm.insert(answers).values(row).onConflictDoNothing().run()
      })
      total += body.byteLength
    },
    isFull(now) {
      if (total + answerMaxBytes <= totalMaxBytes) return false
      write(db, () => {
        orm.delete(answers).where(lt(answers.expiresAt, now)).run()
      })
      total = sum()
      return total + answerMaxBytes > totalMaxBytes
    },
  }
}
