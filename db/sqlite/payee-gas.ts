import { and, eq, gte, ne, sql } from 'drizzle-orm'
import type { Address } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { payments, transactionMembers, transactions } from '../schema'
import type { Db } from './open'
import { later, parameter } from './statement'

/** Reserved gas of the payments of a payee. */
export type PayeeGas = { network: Network.Id; payee: Address; gas: number }

/**
 * Reads the gas of the facilitator by payee, as parts of the gas limits of its transactions. The
 * gas that each of them used is not stored, and the limit distinguishes a wallet that uses it all.
 * Members of a batch have equal parts of it. A replacement counts once, a payment that is sent
 * again twice.
 */
export function createPayeeGas(db: Db) {
  const { orm } = db
  const gas = sql<number>`max(CAST(${transactions.gasLimit} AS INTEGER) / (
    SELECT count(*) FROM ${transactionMembers} AS m
    WHERE m.transaction_hash = ${transactions.hash}))`.as('gas')
  const slots = (condition: ReturnType<typeof and>) =>
    orm
      .select({ network: payments.network, payee: payments.payee, gas })
      .from(payments)
      .innerJoin(transactionMembers, eq(transactionMembers.paymentId, payments.id))
      .innerJoin(transactions, eq(transactions.hash, transactionMembers.transactionHash))
      .where(
        and(condition, eq(payments.product, 'facilitator'), ne(transactions.state, 'replaced')),
      )
      .groupBy(payments.id, transactions.relayer, transactions.nonce)
      .as('slots')
  const total = sql<number>`sum(gas)`
  const since = later(orm, () => {
    const all = slots(gte(payments.id, parameter('id')))
    return orm
      .select({ network: all.network, payee: all.payee, gas: total })
      .from(all)
      .groupBy(all.network, all.payee)
      .prepare()
  })
  const ofOne = later(orm, () =>
    orm
      .select({ gas: total })
      .from(slots(eq(payments.id, parameter('id'))))
      .prepare(),
  )
  return {
    /** Gas of payments that arrived since then (unix ms): their ids begin with the time. */
    gasSince: (at: number): PayeeGas[] =>
      since.all({ id: `pay_${at.toString(16).padStart(12, '0')}` }),
    /** Zero for a payment that is not the facilitator's. */
    gasOf: (paymentId: string): number => ofOne.get({ id: paymentId })?.gas ?? 0,
  }
}
