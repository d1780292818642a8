import type { TransactionReads } from '../Ledger'
import { type TransactionRow, transactions } from '../schema'
import { decode, type Selected } from './payments'
import type { Reader } from './reader'
import { createRecent } from './recent'
import { fromJson, type Json } from './rows'

const unfinished = `SELECT to_jsonb(transactions) AS row, job_transactions.job_id AS job
  FROM transactions
  LEFT JOIN job_transactions ON job_transactions.transaction_hash = transactions.hash
  WHERE transactions.state IN ('signed', 'sent')
  ORDER BY transactions.nonce, transactions.created_at, transactions.seq`
// Each payment once, in the first of the transactions that has it.
const members = `SELECT to_jsonb(payments) AS row
  FROM (
    SELECT DISTINCT ON (m.payment_id) m.payment_id, asked.place, m.position
    FROM unnest($1::text[]) WITH ORDINALITY AS asked (hash, place)
    JOIN transaction_members AS m ON m.transaction_hash = asked.hash
    ORDER BY m.payment_id, asked.place, m.position
  ) AS first
  JOIN payments ON payments.id = first.payment_id
  ORDER BY first.place, first.position`
const hasMember = `SELECT 1 AS one FROM transaction_members
  WHERE transaction_hash = $1 AND ($2::text IS NULL OR payment_id = $2) LIMIT 1`
const carrying = `SELECT t.hash, t.state, t.relayer, t.nonce FROM transaction_members AS m
  JOIN transactions AS t ON t.hash = m.transaction_hash
  WHERE m.payment_id = $1 ORDER BY t.seq`

type Carrying = Awaited<ReturnType<TransactionReads['ofPayment']>>[number]

export function createTransactionReads(reader: Reader): TransactionReads {
  const { includedFrom, includedAt } = createRecent(reader)
  return {
    async unfinished() {
      const rows = await reader.all<{ row: Json; job: string | null }>(unfinished)
      return rows.map(({ row, job }) => ({
        transaction: decodeTransaction(row),
        job: job ?? undefined,
      }))
    },
    async paymentsOf(hashes) {
      if (hashes.length === 0) return []
      return (await reader.all<Selected>(members, [hashes])).map(({ row }) => decode(row))
    },
    hasPayment: async (hash, id) => (await reader.one(hasMember, [hash, id ?? null])) !== undefined,
    ofPayment: (id) => reader.all<Carrying>(carrying, [id]),
    includedFrom,
    includedAt,
  }
}

/** The transaction of a row that is JSON. */
export function decodeTransaction(row: Json): TransactionRow {
  return fromJson(transactions, row)
}
