import type { Hex } from 'viem'
import { type JobRow, jobs, jobTransactions, type TransactionRow, transactions } from '../schema'
import { decoderOf } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'

const decode = decoderOf(transactions)

/** Statements on jobs. Each change is a compare-and-swap on the state. Call them inside `write`. */
export function createJobs(db: Db) {
  const insert = insertInto(db, jobs)
  const link = insertInto(db, jobTransactions)
  const renew = statement(
    db,
    "UPDATE jobs SET transaction_hash = $hash WHERE id = $id AND state = 'broadcast'",
  )
  const end = statement(
    db,
    `UPDATE jobs
     SET state = $state, transaction_hash = $hash, block_number = $block, receipt = $receipt,
       ended_at = $at
     WHERE id = $id AND state = 'broadcast' RETURNING id`,
  )
  const reopen = statement<{ id: string }>(
    db,
    `UPDATE jobs SET state = 'broadcast', block_number = NULL, receipt = NULL, ended_at = NULL
     WHERE transaction_hash = $hash AND state IN ('confirmed', 'failed') RETURNING id`,
  )
  const isOfJob = 'hash IN (SELECT transaction_hash FROM job_transactions WHERE job_id = $id)'
  const resend = statement(
    db,
    `UPDATE transactions SET state = 'sent', block_number = NULL
     WHERE ${isOfJob} AND state = 'replaced'`,
  )
  const carrying = statement(
    db,
    `SELECT * FROM transactions WHERE ${isOfJob} ORDER BY created_at, rowid`,
  )
  return {
    insert(row: JobRow): void {
      insert(row)
      link({ jobId: row.id, transactionHash: row.transactionHash })
    },
    /** Another transaction at its nonce carries the job. */
    renew(id: string, hash: Hex): void {
      link({ jobId: id, transactionHash: hash })
      renew().run({ id, hash })
    },
    end(
      id: string,
      how: Pick<JobRow, 'state' | 'transactionHash' | 'receipt' | 'blockNumber'>,
      at: number,
    ) {
      const { state, transactionHash: hash, receipt, blockNumber } = how
      const block = blockNumber === null ? null : Number(blockNumber)
      return end().get({ id, state, hash, block, receipt, at }) !== null
    },
    /**
     * Reopens the job of a transaction that a reorganisation removed. Returns the id of the job.
     */
    reopen: (hash: Hex): string | undefined => reopen().get({ hash })?.id,
    /**
     * Marks replaced transactions of an open job as sent, because any may be included. This
     * covers those that were abandoned for a sibling that a reorganisation removed.
     */
    resend: (id: string): void => void resend().run({ id }),
    /** Every transaction of a job, oldest first. */
    transactionsOf: (id: string): TransactionRow[] => carrying().all({ id }).map(decode),
  }
}
