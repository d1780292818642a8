import type { Address, Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Included, PaymentReads, TransactionReads } from '../Ledger'
import type { Reader } from './reader'

/** No transaction of ours contains the payment. */
const isExternal = `NOT EXISTS (SELECT 1 FROM transactions
  WHERE transactions.hash = payments.transaction_hash)`

/** Another transaction was included at the account nonce of the payment's transaction. */
const isDisplaced = `EXISTS (SELECT 1 FROM transactions
  WHERE transactions.hash = payments.transaction_hash AND transactions.state = 'replaced')`

/** No transaction with the payment can still be included. */
const hasNoOpen = `NOT EXISTS (SELECT 1 FROM transaction_members
  JOIN transactions ON transactions.hash = transaction_members.transaction_hash
  WHERE transaction_members.payment_id = payments.id
    AND transactions.state IN ('signed', 'sent'))`

const own = `SELECT hash, block_number AS "blockNumber", relayer, nonce FROM transactions
  WHERE network = $1 AND block_number >= $2`
const external = `SELECT DISTINCT transaction_hash AS hash, block_number AS "blockNumber"
  FROM payments WHERE network = $1 AND block_number >= $2 AND ${isExternal}`
const atNonces = `SELECT hash, block_number AS "blockNumber", nonce FROM transactions
  WHERE network = $1 AND lower(relayer) = lower($2) AND nonce >= $3 AND nonce < $4
    AND state IN ('mined', 'failed') AND block_number IS NOT NULL
  ORDER BY nonce`
// Both conditions, so that the partial index is used.
const orphaned = `SELECT id FROM payments
  WHERE state IN ('broadcast', 'reverted') AND state = 'broadcast' AND network = $1
    AND (${isExternal} OR (${isDisplaced} AND ${hasNoOpen}))
  ORDER BY id`

type Row = { hash: Hex; blockNumber: number }

/** Reads of what a reorganisation can remove. */
export function createRecent(
  reader: Reader,
): Pick<TransactionReads, 'includedFrom' | 'includedAt'> & Pick<PaymentReads, 'orphans'> {
  return {
    async includedFrom(network: Network.Id, from: bigint): Promise<Included[]> {
      const bounds = [network, Number(from)]
      const [ours, others] = await Promise.all([
        reader.all<Included>(own, bounds),
        reader.all<Row>(external, bounds),
      ])
      return [...ours, ...others.map((row) => ({ ...row, relayer: undefined, nonce: 0 }))]
    },
    async includedAt(
      network: Network.Id,
      relayer: Address,
      { from, to }: { from: number; to: number },
    ): Promise<Included[]> {
      const rows = await reader.all<Row & { nonce: number }>(atNonces, [network, relayer, from, to])
      return rows.map((row) => ({ ...row, relayer }))
    },
    /** Payments whose external settlement was removed, or whose transaction was displaced. */
    orphans: async (network: Network.Id) =>
      (await reader.all<{ id: string }>(orphaned, [network])).map(({ id }) => id),
  }
}
