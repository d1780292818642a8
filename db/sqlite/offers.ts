import { lt, sql } from 'drizzle-orm'
import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { offers } from '../offers'
import type { Db } from './open'
import { later } from './statement'
import { write } from './write'

export type RetiredOffer = {
  merchant: string
  route: string
  network: Network.Id
  asset: Address
  payTo: Address
  amountAtomic: bigint
  /** Unix ms. */
  retiredAt: number
}

/**
 * Adds offers, or renews the time of those that are there, and forgets what was retired before
 * `keptFrom` (unix ms).
 */
export function retireOffers(db: Db, rows: readonly RetiredOffer[], keptFrom: number): void {
  const values = {
    merchant: sql.placeholder('merchant'),
    route: sql.placeholder('route'),
    network: sql.placeholder('network'),
    asset: sql.placeholder('asset'),
    payTo: sql.placeholder('payTo'),
    amountAtomic: sql.placeholder('amountAtomic'),
    retiredAt: sql.placeholder('retiredAt'),
  }
  const upsert = later(db.orm, () =>
    db.orm
      .insert(offers)
      .values(values)
      .onConflictDoUpdate({ target: keyColumns, set: { retiredAt: sql`excluded.retired_at` } })
      .prepare(),
  )
  write(db, () => {
    db.orm.delete(offers).where(lt(offers.retiredAt, keptFrom)).run()
    for (const row of rows) upsert.run(row)
  })
}

const keyColumns = [
  offers.merchant,
  offers.route,
  offers.network,
  offers.asset,
  offers.payTo,
  offers.amountAtomic,
]

/** All that are kept. */
export function readOffers(db: Db): RetiredOffer[] {
  return db.orm.select().from(offers).all()
}
