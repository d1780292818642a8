import { sql } from 'drizzle-orm'
import { check, index, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import { address, at, block, decimal, hex, isAddress, isDecimal, isHex, oneOf } from './columns'
import { type GasProduct, products, transactions } from './schema'

export const jobStates = ['broadcast', 'confirmed', 'failed', 'replaced'] as const
export const jobKinds = ['swap', 'refund', 'grant', 'allowance'] as const

/** Transactions of our own that carry no payment. A row is written before its bytes are sent. */
export const jobs = sqliteTable(
  'jobs',
  {
    id: text('id').primaryKey(),
    kind: text('kind').$type<(typeof jobKinds)[number]>().notNull(),
    /** The product whose gas budget pays. */
    product: text('product').$type<GasProduct>().notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    relayer: address('relayer').notNull(),
    /** Account nonce of the relayer: constant over all replacements. */
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
