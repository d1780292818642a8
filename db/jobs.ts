import { and, eq, inArray, sql } from 'drizzle-orm'
import { check, index, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type { Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import { address, at, block, decimal, hex, isAddress, isDecimal, isHex, oneOf } from './columns'
import type { Db } from './open'
import { type GasProduct, products, type TransactionRow, transactions } from './schema'
import { later, parameter, placeholders } from './statement'

export const jobStates = ['broadcast', 'confirmed', 'failed', 'replaced'] as const
export const jobKinds = ['swap', 'refund', 'grant', 'allowance'] as const

/** Transactions of our own that are nobody's payment. A row is there before its bytes leave. */
export const jobs = sqliteTable(
  'jobs',
  {
    id: text('id').primaryKey(),
    kind: text('kind').$type<(typeof jobKinds)[number]>().notNull(),
    /** Whose gas budget pays. */
    product: text('product').$type<GasProduct>().notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    relayer: address('relayer').notNull(),
    /** Account nonce of the relayer: one for ever, whatever the fees. */
    nonce: integer('nonce').notNull(),
    to: address('to').notNull(),
    valueWei: decimal('value_wei').notNull(),
    state: text('state').$type<(typeof jobStates)[number]>().notNull(),
    /** The included transaction; before, the newest one signed. */
    transactionHash: hex('transaction_hash').notNull(),
    blockNumber: block('block_number'),
    /** JSON of the receipt that ended it. */
    receipt: text('receipt'),
    createdAt: at('created_at').notNull(),
    endedAt: at('ended_at'),
  },
  (table) => [
    index('jobs_unfinished').on(table.state).where(sql`state = 'broadcast'`),
    check('jobs_kind', oneOf(table.kind, jobKinds)),
    check('jobs_product', oneOf(table.product, products)),
    check('jobs_network', sql`${table.network} GLOB 'eip155:[1-9]*'`),
    check('jobs_nonce', sql`${table.nonce} >= 0`),
    check('jobs_addresses', sql`${isAddress(table.relayer)} AND ${isAddress(table.to)}`),
    check('jobs_value', isDecimal(table.valueWei)),
    check('jobs_state', oneOf(table.state, jobStates)),
    check('jobs_transaction', isHex(table.transactionHash, 64)),
    check(
      'jobs_included',
      sql`(${table.state} IN ('confirmed', 'failed')) = (${table.blockNumber} IS NOT NULL) AND (${table.state} IN ('confirmed', 'failed')) = (${table.receipt} IS NOT NULL)`,
    ),
    check('jobs_ended', sql`(${table.state} = 'broadcast') = (${table.endedAt} IS NULL)`),
    check('jobs_receipt', sql`${table.receipt} IS NULL OR json_valid(${table.receipt})`),
  ],
)

/** Every transaction that was ever signed for a job, all of them at its account nonce. */
export const jobTransactions = sqliteTable(
  'job_transactions',
  {
    jobId: text('job_id')
      .notNull()
      .references(() => jobs.id),
    transactionHash: hex('transaction_hash')
      .notNull()
      .references(() => transactions.hash),
  },
  (table) => [
    primaryKey({ columns: [table.transactionHash] }),
    index('job_transactions_job').on(table.jobId),
  ],
)

export type JobRow = typeof jobs.$inferSelect

/** Prepared statements; every change is a compare-and-swap on the state. Call inside `write`. */
export type JobStatements = ReturnType<typeof createJobs>

export function createJobs(db: Db) {
  const { orm } = db
  const byId = later(orm, () =>
    orm
      .select()
      .from(jobs)
      .where(eq(jobs.id, parameter('id')))
      .prepare(),
  )
  const byTransaction = later(orm, () =>
    orm
      .select({ id: jobTransactions.jobId })
      .from(jobTransactions)
      .where(eq(jobTransactions.transactionHash, parameter('hash')))
      .prepare(),
  )
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
    find: (id: string): JobRow | undefined => byId.get({ id }),
    /** Id of the job that a transaction is of. */
    findByTransaction: (hash: Hex): string | undefined => byTransaction.get({ hash })?.id,
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

/** What a reorganisation changes. */
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
    /** A reorganisation took the transaction away. The id of its job, which is under way again. */
    reopen: (hash: Hex): string | undefined => reopen.get({ hash })?.id,
    /**
     * All transactions of a job that is under way may be included, also those that were given up for
     * a sibling that a reorganisation took away.
     */
    resend: (id: string): void => void resend.run({ id }),
  }
}
