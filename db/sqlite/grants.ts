import { and, eq, gte, sql } from 'drizzle-orm'
import type { SQLiteColumn } from 'drizzle-orm/sqlite-core'
import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { roomFor, type Tally } from '../GrantBudget'
import type { GrantLedger, NewGrant } from '../GrantLedger'
import { grants, grantTopUps } from '../grants'
import type { Db } from './open'
import type { Outbox } from './outbox'
import { RefusedError, type Riders } from './riders'
import { later, parameter } from './statement'
import { isDuplicate, write } from './write'

/** Grants and top-ups. Rows are only added; only their gas cost changes. */
export function createGrants(
  db: Db,
  outbox: Outbox,
): { ledger: GrantLedger; riders: Riders['grants'] } {
  const rows = createRows(db)
  /** Sums of the day that began at `from`, by network. */
  const tallies = new Map<Network.Id, Tally & { from: number }>()

  function tallySince(network: Network.Id, from: number): Tally {
    const known = tallies.get(network)
    if (known?.from === from) return known
    const fresh = { from, ...rows.tallySince(network, from) }
    tallies.set(network, fresh)
    return fresh
  }

  function add(network: Network.Id, at: number, more: Tally): void {
    const known = tallies.get(network)
    if (known === undefined || at < known.from) return
    tallies.set(network, {
      from: known.from,
      grants: known.grants + more.grants,
      wei: known.wei + more.wei,
    })
  }

  return {
    ledger: {
      find: async (network, address) => rows.find(network, address),
      findTopUp: async (network, address) => rows.findTopUp(network, address),
      async setFee({ network, address, isTopUp }, feeWei) {
        const row = isTopUp ? rows.findTopUp(network, address) : rows.find(network, address)
        if (row === undefined || row.feeWei === feeWei) return
        if (isTopUp) rows.setTopUpFee({ network, address, feeWei })
        else rows.setFee({ network, address, feeWei })
        add(network, row.createdAt, { grants: 0, wei: feeWei - row.feeWei })
      },
      tallySince: async (network, from) => tallySince(network, from),
    },
    riders: {
      ride({ grant }, transactionHash) {
        const { budget, isSigned, row } = grant
        const wei = row.amountWei + row.feeWei
        const room = roomFor(tallySince(row.network, budget.from), budget, wei)
        if (room === 'spent') throw new RefusedError('grants-spent')
        if (room === 'signed' && !isSigned) throw new RefusedError('grants-signed-only')
        rows.insert(grant, transactionHash)
        add(row.network, row.createdAt, { grants: 1, wei })
        outbox.granted(grant, tallySince(row.network, budget.from))
      },
      undo: () => tallies.clear(),
    },
  }
}

function createRows(db: Db) {
  const { orm } = db
  const isOf = (table: { network: SQLiteColumn; address: SQLiteColumn }) =>
    and(eq(table.network, parameter('network')), eq(table.address, parameter('address')))
  const isSince = (table: { network: SQLiteColumn; createdAt: SQLiteColumn }) =>
    and(eq(table.network, parameter('network')), gte(table.createdAt, sql.placeholder('at')))
  const one = later(orm, () => orm.select().from(grants).where(isOf(grants)).prepare())
  const more = later(orm, () => orm.select().from(grantTopUps).where(isOf(grantTopUps)).prepare())
  const since = later(orm, () =>
    orm
      .select({ amountWei: grants.amountWei, feeWei: grants.feeWei })
      .from(grants)
      .where(isSince(grants))
      .prepare(),
  )
  const moreSince = later(orm, () =>
    orm
      .select({ amountWei: grantTopUps.amountWei, feeWei: grantTopUps.feeWei })
      .from(grantTopUps)
      .where(isSince(grantTopUps))
      .prepare(),
  )
  return {
    find: (network: Network.Id, address: Hex) => one.get({ network, address }),
    findTopUp: (network: Network.Id, address: Hex) => more.get({ network, address }),
    /** Refused when the address has a row. Throws for a top-up without a grant. */
    insert(grant: NewGrant, transactionHash: Hex): void {
      try {
        if (grant.isTopUp)
          orm
            .insert(grantTopUps)
            .values({ ...grant.row, transactionHash })
            .run()
        else
          orm
            .insert(grants)
            .values({ ...grant.row, transactionHash })
            .run()
      } catch (error) {
        throw isDuplicate(error) ? new RefusedError('grant-exists') : error
      }
    },
    setFee({ network, address, feeWei }: Fee): void {
      const isOne = and(eq(grants.network, network), eq(grants.address, address))
      write(db, () => void orm.update(grants).set({ feeWei }).where(isOne).run())
    },
    setTopUpFee({ network, address, feeWei }: Fee): void {
      const isOne = and(eq(grantTopUps.network, network), eq(grantTopUps.address, address))
      write(db, () => void orm.update(grantTopUps).set({ feeWei }).where(isOne).run())
    },
    /** Sum since a time (unix ms), gas included. */
    tallySince(network: Network.Id, at: number): Tally {
      const all = [...since.all({ network, at }), ...moreSince.all({ network, at })]
      const wei = all.reduce((sum, row) => sum + row.amountWei + row.feeWei, 0n)
      return { grants: all.length, wei }
    },
  }
}

type Fee = { network: Network.Id; address: Hex; feeWei: bigint }
