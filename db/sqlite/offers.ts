import { lt, notInArray, sql } from 'drizzle-orm'
import type { MerchantRow, OfferLedger, RetiredOffer } from '../OfferLedger'
import { offers } from '../offers'
import { merchants } from '../schema'
import type { Db } from './open'
import { later, placeholders } from './statement'
import { write } from './write'

export function createOffers(db: Db): OfferLedger {
  const retire = createRetire(db)
  const read = createRead(db)
  const mirror = createMirror(db, read)
  return {
    merchants: async () => read(),
    retired: async () => db.orm.select().from(offers).all(),
    async replace({ merchants: rows, ended, keptFrom, now }) {
      write(db, () => {
        retire(ended, keptFrom)
        mirror(rows, now)
      })
    },
    // No other process uses the file.
    onReplace: () => undefined,
  }
}

const keyColumns = [
  offers.merchant,
  offers.route,
  offers.network,
  offers.asset,
  offers.payTo,
  offers.amountAtomic,
]

/** Adds offers, or renews the time of existing ones. */
function createRetire({ orm }: Db) {
  const upsert = later(orm, () =>
    orm
      .insert(offers)
      .values(placeholders(offers))
      .onConflictDoUpdate({ target: keyColumns, set: { retiredAt: sql`excluded.retired_at` } })
      .prepare(),
  )
  return (rows: readonly RetiredOffer[], keptFrom: number): void => {
    orm.delete(offers).where(lt(offers.retiredAt, keptFrom)).run()
    for (const row of rows) upsert.run(row)
  }
}

/** Prepared, because a start reads the rows several times. */
function createRead({ orm }: Db): () => MerchantRow[] {
  const { slug, title, hash, json } = merchants
  const all = later(orm, () => orm.select({ slug, title, hash, json }).from(merchants).prepare())
  return () => all.all()
}

/** Makes the table equal to the configuration; rows that are the same stay untouched. */
function createMirror({ orm }: Db, read: () => MerchantRow[]) {
  // Prepared once for all rows, because a start writes each of them.
  const upsert = later(orm, () =>
    orm
      .insert(merchants)
      .values(placeholders(merchants))
      .onConflictDoUpdate({
        target: merchants.slug,
        set: {
          title: sql`excluded.title`,
          hash: sql`excluded.hash`,
          json: sql`excluded.json`,
          updatedAt: sql`excluded.updated_at`,
        },
      })
      .prepare(),
  )
  return (rows: readonly MerchantRow[], now: number): void => {
    const known = new Map(read().map((row) => [row.slug, row]))
    const slugs = rows.map((row) => row.slug)
    orm.delete(merchants).where(notInArray(merchants.slug, slugs)).run()
    for (const { slug, title, hash, json } of rows) {
      const before = known.get(slug)
      // The hash does not cover values from other tables, such as the payout.
      if (before?.hash === hash && before.json === json) continue
      upsert.run({ slug, title, hash, json, updatedAt: now })
    }
  }
}
