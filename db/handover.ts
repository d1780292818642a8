import { and, eq, sql } from 'drizzle-orm'
import type { Db } from './open'
import { payments } from './schema'

/**
 * Prepares the one step from confirmed and undelivered to delivered; true for exactly one caller ever.
 * Call the result inside `write`.
 */
export function prepareHandOver(db: Db): (id: string, at: number) => boolean {
  const statement = db.orm
    .update(payments)
    .set({
      delivery: 'delivered',
      attempts: sql`attempts + 1`,
      deliveredAt: sql`${sql.placeholder('at')}`,
    })
    .where(
      and(
        eq(payments.id, sql.placeholder('id')),
        eq(payments.state, 'confirmed'),
        eq(payments.delivery, 'none'),
      ),
    )
    .returning({ id: payments.id })
    .prepare()
  return (id, at) => statement.get({ id, at }) !== undefined
}
