import { and, eq, gte, inArray, isNotNull, lt, or, sql } from 'drizzle-orm'
import type { Address, Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Included } from '../Ledger'
import { payments, transactionMembers, transactions } from '../schema'
import type { Db } from './open'
import { later, parameter } from './statement'

/** Reads of what a reorganisation can remove. */
export type Recent = ReturnType<typeof createRecent>

export function createRecent(db: Db) {
  return { ...readIncluded(db), ...readAtNonces(db), ...readConfirmed(db) }
}

/** No transaction of ours contains the payment. */
const isExternal = sql`NOT EXISTS (SELECT 1 FROM ${transactions} WHERE ${transactions.hash} = ${payments.transactionHash})`

/** Another transaction was included at the account nonce of the payment's transaction. */
const isDisplaced = sql`EXISTS (SELECT 1 FROM ${transactions} WHERE ${transactions.hash} = ${payments.transactionHash} AND ${transactions.state} = 'replaced')`

/** No transaction with the payment can still be included. */
const hasNoOpen = sql`NOT EXISTS (SELECT 1 FROM ${transactionMembers} JOIN ${transactions} ON ${transactions.hash} = ${transactionMembers.transactionHash} WHERE ${transactionMembers.paymentId} = ${payments.id} AND ${transactions.state} IN ('signed', 'sent'))`

function readIncluded({ orm }: Db) {
  const own = later(orm, () =>
    orm
      .select({
        hash: transactions.hash,
        blockNumber: transactions.blockNumber,
        relayer: transactions.relayer,
        nonce: transactions.nonce,
      })
      .from(transactions)
      .where(
        and(
          eq(transactions.network, parameter('network')),
          gte(transactions.blockNumber, parameter('block')),
        ),
      )
      .prepare(),
  )
  const external = later(orm, () =>
    orm
      .selectDistinct({ hash: payments.transactionHash, blockNumber: payments.blockNumber })
      .from(payments)
      .where(
        and(
          eq(payments.network, parameter('network')),
          gte(payments.blockNumber, parameter('block')),
          isExternal,
        ),
      )
      .prepare(),
  )
  return {
    /** Transactions in this block and above it, those of ours and those that paid us. */
    includedFrom(id: Network.Id, from: bigint): Included[] {
      const bounds = { network: id, block: Number(from) }
      const all = [
        ...own.all(bounds),
        ...external.all(bounds).map((row) => ({ ...row, relayer: undefined, nonce: 0 })),
      ]
      return all.flatMap(({ blockNumber, ...row }) =>
        blockNumber === null ? [] : [{ ...row, blockNumber: Number(blockNumber) }],
      )
    },
  }
}

function readAtNonces({ orm }: Db) {
  const at = later(orm, () =>
    orm
      .select({
        hash: transactions.hash,
        blockNumber: transactions.blockNumber,
        nonce: transactions.nonce,
      })
      .from(transactions)
      .where(
        and(
          eq(transactions.network, parameter('network')),
          eq(transactions.relayer, parameter('relayer')),
          gte(transactions.nonce, parameter('from')),
          lt(transactions.nonce, parameter('to')),
          inArray(transactions.state, ['mined', 'failed']),
        ),
      )
      .orderBy(transactions.nonce)
      .prepare(),
  )
  return {
    /** Those of a relayer at these account nonces, `to` not included. */
    includedAt: (
      id: Network.Id,
      relayer: Address,
      nonces: { from: number; to: number },
    ): Included[] =>
      at
        .all({ network: id, relayer, ...nonces })
        .flatMap(({ blockNumber, ...row }) =>
          blockNumber === null ? [] : [{ ...row, relayer, blockNumber: Number(blockNumber) }],
        ),
  }
}

function readConfirmed({ orm }: Db) {
  const paidBy = later(orm, () =>
    orm
      .select({ id: payments.id })
      .from(payments)
      .where(
        and(
          eq(payments.network, parameter('network')),
          eq(payments.transactionHash, parameter('hash')),
          isNotNull(payments.logIndex),
        ),
      )
      .prepare(),
  )
  const openOf = later(orm, () =>
    orm
      .select({ id: payments.id })
      .from(payments)
      .where(
        and(
          eq(payments.network, parameter('network')),
          eq(payments.transactionHash, parameter('hash')),
          eq(payments.state, 'broadcast'),
        ),
      )
      .prepare(),
  )
  const orphans = later(orm, () =>
    orm
      .select({ id: payments.id })
      .from(payments)
      // The state as text, because only then SQLite uses the partial index.
      .where(
        and(
          sql`state IN ('broadcast', 'reverted')`,
          eq(payments.state, 'broadcast'),
          eq(payments.network, parameter('network')),
          or(isExternal, and(isDisplaced, hasNoOpen)),
        ),
      )
      .prepare(),
  )
  return {
    /** Payments that a transaction confirmed. */
    paidBy: (id: Network.Id, hash: Hex): string[] =>
      paidBy.all({ network: id, hash }).map((row) => row.id),
    /** Payments that a transaction contained last and that the chain does not confirm. */
    openOf: (id: Network.Id, hash: Hex): string[] =>
      openOf.all({ network: id, hash }).map((row) => row.id),
    /** Payments whose external settlement was removed, or whose transaction was displaced. */
    orphans: (id: Network.Id): string[] => orphans.all({ network: id }).map((row) => row.id),
  }
}
