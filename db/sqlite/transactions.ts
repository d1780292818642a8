import { and, eq, inArray, ne, sql } from 'drizzle-orm'
import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { payments, type TransactionRow, transactionMembers, transactions } from '../schema'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'

/** Prepared statements on transactions. Make changes inside `write`. */
export function createTransactions(db: Db) {
  return {
    ...insertTransactions(db),
    ...endTransactions(db),
    ...reopenTransactions(db),
  }
}

function insertTransactions({ orm }: Db) {
  // Signing is deterministic: an abandoned transaction returns with the same hash.
  const insert = later(orm, () =>
    orm
      .insert(transactions)
      .values(placeholders(transactions))
      .onConflictDoUpdate({
        target: transactions.hash,
        set: { state: sql`excluded.state`, firstSentAt: sql`excluded.first_sent_at` },
        setWhere: eq(transactions.state, 'replaced'),
      })
      .prepare(),
  )
  const insertMember = later(orm, () =>
    orm
      .insert(transactionMembers)
      .values(placeholders(transactionMembers))
      .onConflictDoNothing()
      .prepare(),
  )
  return {
    insertTransaction(row: TransactionRow, paymentIds: readonly string[]): void {
      insert.run({ ...row, costWei: null })
      for (const [position, paymentId] of paymentIds.entries()) {
        insertMember.run({ transactionHash: row.hash, position, paymentId })
      }
    },
  }
}

function endTransactions({ orm }: Db) {
  const end = later(orm, () =>
    orm
      .update(transactions)
      .set({
        state: parameter('state'),
        blockNumber: parameter('block'),
        costWei: parameter('cost'),
      })
      .where(and(eq(transactions.hash, parameter('hash')), eq(transactions.state, 'sent')))
      .prepare(),
  )
  return {
    /** `costWei`: what the transaction cost. */
    includeTransaction: (hash: Hex, state: 'mined' | 'failed', block: bigint, costWei: bigint) =>
      end.run({ hash, state, block: Number(block), cost: String(costWei) }),
    replaceTransaction: (hash: Hex) =>
      end.run({ hash, state: 'replaced', block: null, cost: null }),
  }
}

/** The changes of a reorganisation. */
function reopenTransactions({ orm }: Db) {
  const reopen = later(orm, () =>
    orm
      .update(transactions)
      .set({ state: 'sent', blockNumber: null, costWei: null })
      .where(
        and(
          eq(transactions.hash, parameter('hash')),
          inArray(transactions.state, ['mined', 'failed']),
        ),
      )
      .prepare(),
  )
  const unconfirm = later(orm, () =>
    orm
      .update(payments)
      .set({ state: 'broadcast', logIndex: null, blockNumber: null, confirmedAt: null })
      .where(
        and(
          eq(payments.network, parameter('network')),
          eq(payments.transactionHash, parameter('hash')),
          eq(payments.state, 'confirmed'),
        ),
      )
      .prepare(),
  )
  const displace = later(orm, () =>
    orm
      .update(transactions)
      .set({ state: 'replaced', blockNumber: null, costWei: null })
      .where(
        and(
          eq(transactions.network, parameter('network')),
          eq(transactions.relayer, parameter('relayer')),
          eq(transactions.nonce, parameter('nonce')),
          inArray(transactions.state, ['mined', 'failed']),
          ne(transactions.hash, parameter('hash')),
        ),
      )
      .returning({ hash: transactions.hash })
      .prepare(),
  )
  return {
    /** A reorganisation removed the transaction: it and its payments are open again. */
    reopen(network: Network.Id, hash: Hex): void {
      reopen.run({ hash })
      unconfirm.run({ network, hash })
    },
    /**
     * The chain has this transaction at its nonce, so others at the nonce are displaced: what they
     * paid is open again. Returns their hashes.
     */
    displaceOthers({ network, relayer, nonce, hash }: TransactionRow): Hex[] {
      const displaced = displace.all({ network, relayer, nonce, hash }).map((row) => row.hash)
      for (const each of displaced) unconfirm.run({ network, hash: each })
      return displaced
    },
  }
}
