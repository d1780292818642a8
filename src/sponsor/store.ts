import { and, eq, gte, sql } from 'drizzle-orm'
import type { Address } from 'viem'
import { type GrantRow, grants, grantTopUps, type TopUpRow } from '../../db/grants'
import type { Db } from '../../db/sqlite/open'
import { later } from '../../db/sqlite/statement'
import type * as Network from '../protocol/Network'
import type { Tally } from './Grant'

/** The ledger's rows. They are only ever added; of one that is there, only the gas is learnt. */
export type Store = ReturnType<typeof createStore>

export function createStore(db: Db) {
  const { orm } = db
  const network = sql`${sql.placeholder('network')}`
  const isOne = and(
    eq(grants.network, network),
    eq(grants.address, sql`${sql.placeholder('address')}`),
  )
  const one = later(orm, () => orm.select().from(grants).where(isOne).prepare())
  const isOneMore = and(
    eq(grantTopUps.network, network),
    eq(grantTopUps.address, sql`${sql.placeholder('address')}`),
  )
  const more = later(orm, () => orm.select().from(grantTopUps).where(isOneMore).prepare())
  const since = later(orm, () =>
    orm
      .select({ amountWei: grants.amountWei, feeWei: grants.feeWei })
      .from(grants)
      .where(and(eq(grants.network, network), gte(grants.createdAt, sql.placeholder('at'))))
      .prepare(),
  )
  const moreSince = later(orm, () =>
    orm
      .select({ amountWei: grantTopUps.amountWei, feeWei: grantTopUps.feeWei })
      .from(grantTopUps)
      .where(
        and(eq(grantTopUps.network, network), gte(grantTopUps.createdAt, sql.placeholder('at'))),
      )
      .prepare(),
  )
  return {
    find(id: Network.Id, address: Address): GrantRow | undefined {
      return one.get({ network: id, address })
    },
    /** Throws when the address has a row: see `isDuplicate`. */
    insert(row: GrantRow): void {
      orm.insert(grants).values(row).run()
    },
    findTopUp(id: Network.Id, address: Address): TopUpRow | undefined {
      return more.get({ network: id, address })
    },
    /** Throws when the address has a row, as `insert` does, and when it has no grant. */
    insertTopUp(row: TopUpRow): void {
      orm.insert(grantTopUps).values(row).run()
    },
    setTopUpFee(id: Network.Id, address: Address, feeWei: bigint): void {
      orm
        .update(grantTopUps)
        .set({ feeWei })
        .where(and(eq(grantTopUps.network, id), eq(grantTopUps.address, address)))
        .run()
    },
    /** What the transfer cost in gas, once that is known. */
    setFee(id: Network.Id, address: Address, feeWei: bigint): void {
      orm
        .update(grants)
        .set({ feeWei })
        .where(and(eq(grants.network, id), eq(grants.address, address)))
        .run()
    },
    /** What was given since a time (unix ms), gas included. */
    tallySince(id: Network.Id, at: number): Tally {
      const rows = [...since.all({ network: id, at }), ...moreSince.all({ network: id, at })]
      const wei = rows.reduce((sum, row) => sum + row.amountWei + row.feeWei, 0n)
      return { grants: rows.length, wei }
    },
  }
}
