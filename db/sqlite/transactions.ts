import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { type TransactionRow, transactionMembers, transactions } from '../schema'
import type { Db } from './open'
import { insertInto, statement } from './statement'

/** Prepared statements on transactions. Make changes inside `write`. */
export function createTransactions(db: Db) {
  // Signing is deterministic: an abandoned transaction returns with the same hash.
  const insert = insertInto(
    db,
    transactions,
    `ON CONFLICT (hash) DO UPDATE SET state = excluded.state, first_sent_at = excluded.first_sent_at
     WHERE transactions.state = 'replaced'`,
  )
  const insertMember = insertInto(db, transactionMembers, 'ON CONFLICT DO NOTHING')
  const end = statement(
    db,
    `UPDATE transactions SET state = $state, block_number = $block, cost_wei = $cost
     WHERE hash = $hash AND state = 'sent'`,
  )
  const isIncluded = "state IN ('mined', 'failed')"
  const reopen = statement(
    db,
    `UPDATE transactions SET state = 'sent', block_number = NULL, cost_wei = NULL
     WHERE hash = $hash AND ${isIncluded}`,
  )
  const unconfirm = statement(
    db,
    `UPDATE payments
     SET state = 'broadcast', log_index = NULL, block_number = NULL, confirmed_at = NULL
     WHERE network = $network AND transaction_hash = $hash AND log_index IS NOT NULL
       AND state = 'confirmed'`,
  )
  const displace = statement<{ hash: Hex }>(
    db,
    `UPDATE transactions SET state = 'replaced', block_number = NULL, cost_wei = NULL
     WHERE network = $network AND relayer = $relayer AND nonce = $nonce AND ${isIncluded}
       AND hash <> $hash
     RETURNING hash`,
  )
  return {
    insertTransaction(row: TransactionRow, paymentIds: readonly string[]): void {
      insert({ ...row, costWei: null })
      for (const [position, paymentId] of paymentIds.entries())
        insertMember({ transactionHash: row.hash, position, paymentId })
    },
    /** `costWei`: what the transaction cost. */
    includeTransaction: (hash: Hex, state: 'mined' | 'failed', block: bigint, costWei: bigint) =>
      end().run({ hash, state, block: Number(block), cost: String(costWei) }),
    replaceTransaction: (hash: Hex) =>
      end().run({ hash, state: 'replaced', block: null, cost: null }),
    /** A reorganisation removed the transaction: it and its payments are open again. */
    reopen(network: Network.Id, hash: Hex): void {
      reopen().run({ hash })
      unconfirm().run({ network, hash })
    },
    /**
     * The chain has this transaction at its nonce, so others at the nonce are displaced: what they
     * paid is open again. Returns their hashes.
     */
    displaceOthers({ network, relayer, nonce, hash }: TransactionRow): Hex[] {
      const displaced = displace()
        .all({ network, relayer, nonce, hash })
        .map((row) => row.hash)
      for (const each of displaced) unconfirm().run({ network, hash: each })
      return displaced
    },
  }
}
