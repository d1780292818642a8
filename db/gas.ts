import { and, eq, sql } from 'drizzle-orm'
import type * as Network from '../src/protocol/Network'
import type { Db } from './open'
import { type GasProduct, gasSpent } from './schema'
import { later, parameter, placeholders } from './statement'

/** What transactions cost, by product and UTC day. Changes belong inside `write`. */
export function createGas(db: Db) {
  const { orm } = db
  const read = later(orm, () =>
    orm
      .select({ wei: gasSpent.wei })
      .from(gasSpent)
      .where(
        and(
          eq(gasSpent.network, parameter('network')),
          eq(gasSpent.product, parameter('product')),
          eq(gasSpent.day, parameter('day')),
        ),
      )
      .prepare(),
  )
  const put = later(orm, () =>
    orm
      .insert(gasSpent)
      .values(placeholders(gasSpent))
      .onConflictDoUpdate({
        target: [gasSpent.network, gasSpent.product, gasSpent.day],
        set: { wei: sql`excluded.wei` },
      })
      .prepare(),
  )
  const gasSpentOn = (network: Network.Id, product: GasProduct, at: number): bigint =>
    read.get({ network, product, day: dayOf(at) })?.wei ?? 0n
  return {
    gasSpentOn,
    addGas(network: Network.Id, product: GasProduct, at: number, wei: bigint): void {
      const total = gasSpentOn(network, product, at) + wei
      put.run({ network, product, day: dayOf(at), wei: total })
    },
  }
}

function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}
