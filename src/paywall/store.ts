import { eq, lte, min, sql } from 'drizzle-orm'
import type { Payment } from '../../db/Payment'
import { answers, payments } from '../../db/schema'
import type { Db } from '../../db/sqlite/open'
import { later } from '../../db/sqlite/statement'
import { write } from '../../db/sqlite/write'

/** An answer as it was delivered. */
export type Answer = { status: number; headers: Headers; body: Uint8Array }

/** Answers kept for idempotency keys: 24 hours, at most 1 MiB each, capped in total and per payer. */
export type Answers = {
  find(paymentId: string, now: number): Answer | undefined
  /** Stores an answer; false when it is too long and was not stored. */
  store(payment: Pick<Payment, 'id' | 'transfer'>, answer: Answer, now: number): boolean
  /**
   * Holds room for an answer of a payer, until the result is called: when the answer is stored, or never
   * will be. Undefined when the cap or the payer's share of it is reached: then nothing with a key may
   * be charged.
   */
  reserve(payer: string, now: number): (() => void) | undefined
}

const keptMs = 24 * 60 * 60 * 1000
/** Longest body that is kept. */
export const answerMaxBytes = 1024 * 1024

/** What a row takes beside headers and body. */
const rowBytes = 256
/** Most answers are shorter; those that are not may exceed a share while they are under way. */
const reservedBytes = 256 * 1024
/** One payer may fill this part of the store: the others can still buy with a key. */
const shares = 8
const sweepMs = 60_000

/** The answers of a database. `totalMaxBytes` bounds what strangers can make us store. */
export function createAnswers(db: Db, totalMaxBytes = 256 * answerMaxBytes): Answers {
  const { orm } = db
  const byPayment = later(orm, () =>
    orm
      .select()
      .from(answers)
      .where(eq(answers.paymentId, sql.placeholder('paymentId')))
      .prepare(),
  )
  const room = createRoom(db, totalMaxBytes)
  return {
    find(paymentId, now) {
      const row = byPayment.get({ paymentId })
      if (row === undefined || row.expiresAt <= now) return undefined
      const pairs: [string, string][] = JSON.parse(row.headers)
      return { status: row.status, headers: new Headers(pairs), body: new Uint8Array(row.body) }
    },
    store({ id, transfer }, { status, headers, body }, now) {
      if (body.byteLength > answerMaxBytes) return false
      const row = {
        paymentId: id,
        status,
        headers: JSON.stringify([...headers]),
        body: Buffer.from(body),
        createdAt: now,
        expiresAt: now + keptMs,
      }
      write(db, () => {
        orm.insert(answers).values(row).onConflictDoNothing().run()
      })
      room.use(transfer.payer, body.byteLength + row.headers.length + rowBytes)
      return true
    },
    reserve: room.reserve,
  }
}

/** What the answers take, in total and by payer, with what is reserved for those under way. */
function createRoom(db: Db, totalMaxBytes: number) {
  const { orm } = db
  let usage = createUsage(stored(db))
  const reserved = createUsage([])
  let sweepAt = 0

  function hasRoom(payer: string): boolean {
    const own = usage.of(payer) + reserved.of(payer)
    return (
      usage.total() + reserved.total() + answerMaxBytes <= totalMaxBytes &&
      own + Math.min(reservedBytes, totalMaxBytes / shares) <= totalMaxBytes / shares
    )
  }

  /** Forgets what has expired, when there may be some. */
  function sweep(now: number): void {
    if (now < sweepAt) return
    write(db, () => {
      orm.delete(answers).where(lte(answers.expiresAt, now)).run()
    })
    const [oldest] = orm
      .select({ at: min(answers.expiresAt) })
      .from(answers)
      .all()
    sweepAt = Math.max(oldest?.at ?? now, now + sweepMs)
    usage = createUsage(stored(db))
  }

  const reserve: Answers['reserve'] = (payer, now) => {
    if (!hasRoom(payer)) sweep(now)
    if (!hasRoom(payer)) return undefined
    let bytes = reservedBytes
    reserved.add(payer, bytes)
    return () => {
      reserved.add(payer, -bytes)
      bytes = 0
    }
  }
  return { reserve, use: (payer: string, bytes: number) => usage.add(payer, bytes) }
}

function stored({ orm }: Db): readonly Used[] {
  const length = sql`length(${answers.body}) + length(${answers.headers}) + ${rowBytes}`
  return orm
    .select({ payer: payments.payer, bytes: sql<number>`sum(${length})` })
    .from(answers)
    .leftJoin(payments, eq(payments.id, answers.paymentId))
    .groupBy(payments.payer)
    .all()
}

type Used = { payer: string | null; bytes: number }
type Usage = { total(): number; of(payer: string): number; add(payer: string, bytes: number): void }

/** Bytes in total and by payer. */
function createUsage(start: readonly Used[]): Usage {
  const byPayer = new Map<string, number>()
  let total = 0
  const add = (payer: string, bytes: number) => {
    const key = payer.toLowerCase()
    const own = (byPayer.get(key) ?? 0) + bytes
    if (own === 0) byPayer.delete(key)
    else byPayer.set(key, own)
    total += bytes
  }
  for (const { payer, bytes } of start) add(payer ?? '', bytes)
  return { total: () => total, of: (payer) => byPayer.get(payer.toLowerCase()) ?? 0, add }
}
