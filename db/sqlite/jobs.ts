import { and, eq, inArray, sql } from 'drizzle-orm'
import type { Hex } from 'viem'
import { type JobRow, jobs, jobTransactions } from '../jobs'
import { type TransactionRow, transactions } from '../schema'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'

/** Statements on jobs. Each change is a compare-and-swap on the state. Call them inside `write`. */
export function createJobs(db: Db) {
  const { orm } = db
  const carrying = later(orm, () =>
    orm
      .select()
      .from(transactions)
      .where(
        inArray(
          transactions.hash,
          sql`(SELECT transaction_hash FROM job_transactions WHERE job_id = ${parameter('id')})`,
        ),
      )
      .orderBy(transactions.createdAt, sql`rowid`)
      .prepare(),
  )
  return {
    ...changeJobs(db),
    ...reopenJobs(db),
    /** Every transaction of a job, oldest first. */
    transactionsOf: (id: string): TransactionRow[] => carrying.all({ id }),
  }
}

function changeJobs(db: Db) {
  const { orm } = db
  const insert = later(orm, () => orm.insert(jobs).values(placeholders(jobs)).prepare())
  const link = later(orm, () =>
    orm.insert(jobTransactions).values(placeholders(jobTransactions)).prepare(),
  )
  const isOpen = eq(jobs.state, 'broadcast')
  const renew = later(orm, () =>
    orm
      .update(jobs)
      .set({ transactionHash: parameter('hash') })
      .where(and(eq(jobs.id, parameter('id')), isOpen))
      .prepare(),
  )
  const end = later(orm, () =>
    orm
      .update(jobs)
      .set({
        state: parameter('state'),
        transactionHash: parameter('hash'),
        blockNumber: parameter('block'),
        receipt: parameter('receipt'),
        endedAt: parameter('at'),
      })
      .where(and(eq(jobs.id, parameter('id')), isOpen))
      .returning({ id: jobs.id })
      .prepare(),
  )
  return {
    insert(row: JobRow): void {
      insert.run(row)
      link.run({ jobId: row.id, transactionHash: row.transactionHash })
    },
    /** Another transaction at its nonce carries the job. */
    renew(id: string, hash: Hex): void {
      link.run({ jobId: id, transactionHash: hash })
      renew.run({ id, hash })
    },
    end: (
      id: string,
      {
        state,
        transactionHash,
        blockNumber,
        receipt,
      }: Pick<JobRow, 'state' | 'transactionHash' | 'blockNumber' | 'receipt'>,
      at: number,
    ): boolean =>
      end.get({
        id,
        state,
        hash: transactionHash,
        block: blockNumber === null ? null : Number(blockNumber),
        receipt,
        at,
      }) !== undefined,
  }
}

/** The changes of a reorganisation. */
function reopenJobs(db: Db) {
  const { orm } = db
  const reopen = later(orm, () =>
    orm
      .update(jobs)
      .set({ state: 'broadcast', blockNumber: null, receipt: null, endedAt: null })
      .where(
        and(
          eq(jobs.transactionHash, parameter('hash')),
          inArray(jobs.state, ['confirmed', 'failed']),
        ),
      )
      .returning({ id: jobs.id })
      .prepare(),
  )
  const resend = later(orm, () =>
    orm
      .update(transactions)
      .set({ state: 'sent', blockNumber: null })
      .where(
        and(
          inArray(
            transactions.hash,
            sql`(SELECT transaction_hash FROM job_transactions WHERE job_id = ${parameter('id')})`,
          ),
          eq(transactions.state, 'replaced'),
        ),
      )
      .prepare(),
  )
  return {
    /**
     * Reopens the job of a transaction that a reorganisation removed. Returns the id of the job.
     */
    reopen: (hash: Hex): string | undefined => reopen.get({ hash })?.id,
    /**
     * Marks replaced transactions of an open job as sent, because any may be included. This
     * covers those that were abandoned for a sibling that a reorganisation removed.
     */
    resend: (id: string): void => void resend.run({ id }),
  }
}
