import { notInArray } from 'drizzle-orm'
import type { Db } from './open'
import { merchants } from './schema'
import { write } from './write'

/** A merchant as the table keeps it; `json` must be without secrets. */
export type MerchantRow = { slug: string; title: string; hash: string; json: string }

/** Makes the table equal to the configuration; rows whose hash is the same stay untouched. */
export function mirrorMerchants(db: Db, rows: readonly MerchantRow[], now: number): void {
  write(db, () => {
    const known = new Map(
      db.orm
        .select({ slug: merchants.slug, hash: merchants.hash })
        .from(merchants)
        .all()
        .map((row) => [row.slug, row.hash]),
    )
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
      if (known.get(row.slug) === row.hash) continue
      const set = { title: row.title, hash: row.hash, json: row.json, updatedAt: now }
      db.orm
        .insert(merchants)
        .values({ slug: row.slug, ...set })
        .onConflictDoUpdate({ target: merchants.slug, set })
        .run()
    }
  })
}
