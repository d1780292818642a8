import { lt, sql } from 'drizzle-orm'
import { assets, hours, ownAccounts } from '../books'
import type { SalesLedger } from '../SalesLedger'
import type { Db } from './open'
import { createSalesReads } from './sales'
import { later, placeholders } from './statement'
import { write } from './write'

export function createSales(db: Db): SalesLedger {
  const { orm } = db
  const add = later(orm, () =>
    orm
      .insert(hours)
      .values(placeholders(hours))
      .onConflictDoUpdate({
        target: [hours.hour, hours.merchant, hours.route],
        set: {
          asked: sql`asked + excluded.asked`,
          paid: sql`paid + excluded.paid`,
          failed: sql`failed + excluded.failed`,
        },
      })
      .prepare(),
  )
  const addAccount = later(orm, () =>
    orm.insert(ownAccounts).values(placeholders(ownAccounts)).onConflictDoNothing().prepare(),
  )
  const addAsset = later(orm, () =>
    orm
      .insert(assets)
      .values(placeholders(assets))
      .onConflictDoUpdate({
        target: [assets.network, assets.address],
        set: {
          networkName: sql`excluded.network_name`,
          symbol: sql`excluded.symbol`,
          decimals: sql`excluded.decimals`,
          coinUsd: sql`excluded.coin_usd`,
          updatedAt: sql`excluded.updated_at`,
        },
      })
      .prepare(),
  )
  return {
    ...createSalesReads(db.sqlite),
    async addRequests(hour, counts, keptFrom) {
      db.withoutSync(() =>
        write(db, () => {
          for (const count of counts) add.run({ hour, ...count })
          orm.delete(hours).where(lt(hours.hour, keptFrom)).run()
        }),
      )
    },
    async describe({ accounts, assets: rows, now }) {
      db.withoutSync(() =>
        write(db, () => {
          for (const address of accounts) addAccount.run({ address, addedAt: now })
          for (const row of rows) addAsset.run({ ...row, updatedAt: now })
        }),
      )
    },
  }
}
