import { notInArray } from 'drizzle-orm'
import { merchants } from '../schema'
import type { Db } from './open'
import { write } from './write'

/** A merchant as the table keeps it; `json` must be without secrets. */
export type MerchantRow = { slug: string; title: string; hash: string; json: string }

/** The rows as the last configuration left them. */
export function readMerchants(db: Db): MerchantRow[] {
  const { slug, title, hash, json } = merchants
  return db.orm.select({ slug, title, hash, json }).from(merchants).all()
}

/** Makes the table equal to the configuration; rows that are the same stay untouched. */
export function mirrorMerchants(db: Db, rows: readonly MerchantRow[], now: number): void {
  write(db, () => {
    const known = new Map(readMerchants(db).map((row) => [row.slug, row]))
    db.orm
      .delete(merchants)
      .where(
        notInArray(
          merchants.slug,
          rows.map((row) => row.slug),
        ),
      )
      .run()
    for (const row of rows) {
      const before = known.get(row.slug)
      // The hash does not see what the merchant takes from other tables, such as the payout.
      if (before?.hash === row.hash && before.json === row.json) continue
      const set = { title: row.title, hash: row.hash, json: row.json, updatedAt: now }
      db.orm
        .insert(merchants)
        .values({ slug: row.slug, ...set })
        .onConflictDoUpdate({ target: merchants.slug, set })
        .run()
    }
  })
}
