import { asc, count, sql } from 'drizzle-orm'
import { payments } from '../schema'
import type { Db } from './open'

// As text, because only then SQLite uses the partial index.
const isUnfinished = sql`state IN ('broadcast', 'reverted')`

/** How many payments are sent and not decided, and the oldest of them. */
export function readPending(db: Db, limit: number) {
  const { id, network, merchant, route, amountAtomic, state, transactionHash, createdAt } = payments
  const total = db.orm.select({ total: count() }).from(payments).where(isUnfinished).get()
  const oldest = db.orm
    .select({
      id,
      network,
      merchant,
      route,
      amountAtomic,
      state,
      transaction: transactionHash,
      createdAt,
    })
    .from(payments)
    .where(isUnfinished)
    .orderBy(asc(createdAt))
    .limit(limit)
    .all()
  return { count: total?.total ?? 0, oldest }
}
