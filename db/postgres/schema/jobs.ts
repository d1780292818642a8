// Written by db/postgres/generate.ts from db/jobs.ts.
import type * as Network from '../../../src/protocol/Network'
import {
  address,
  at,
  block,
  check,
  decimal,
  hex,
  index,
  integer,
  isAddress,
  isDecimal,
  isHex,
  isJson,
  isNetwork,
  oneOf,
  primaryKey,
  sql,
  table,
  text,
} from '../../columns.pg'
import { type GasProduct, products, transactions } from './schema'

export const jobStates = ['broadcast', 'confirmed', 'failed', 'replaced'] as const
export const jobKinds = ['swap', 'refund', 'grant', 'allowance'] as const

/** Transactions of our own that carry no payment. A row is written before its bytes are sent. */
export const jobs = table(
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
  (self) => [
    index('jobs_unfinished').on(self.state).where(sql`state = 'broadcast'`),
    check('jobs_kind', oneOf(self.kind, jobKinds)),
    check('jobs_product', oneOf(self.product, products)),
    check('jobs_network', isNetwork(self.network)),
    check('jobs_nonce', sql`${self.nonce} >= 0`),
    check('jobs_addresses', sql`${isAddress(self.relayer)} AND ${isAddress(self.to)}`),
    check('jobs_value', isDecimal(self.valueWei)),
    check('jobs_state', oneOf(self.state, jobStates)),
    check('jobs_transaction', isHex(self.transactionHash, 64)),
    check(
      'jobs_included',
      sql`(${self.state} IN ('confirmed', 'failed')) = (${self.blockNumber} IS NOT NULL) AND (${self.state} IN ('confirmed', 'failed')) = (${self.receipt} IS NOT NULL)`,
    ),
    check('jobs_ended', sql`(${self.state} = 'broadcast') = (${self.endedAt} IS NULL)`),
    check('jobs_receipt', sql`${self.receipt} IS NULL OR ${isJson(self.receipt)}`),
  ],
)

/** Every transaction that was ever signed for a job, all of them at its account nonce. */
export const jobTransactions = table(
  'job_transactions',
  {
    jobId: text('job_id')
      .notNull()
      .references(() => jobs.id),
    transactionHash: hex('transaction_hash')
      .notNull()
      .references(() => transactions.hash),
  },
  (self) => [
    primaryKey({ columns: [self.transactionHash] }),
    index('job_transactions_job').on(self.jobId),
  ],
)

export type JobRow = typeof jobs.$inferSelect
