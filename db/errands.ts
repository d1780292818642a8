import { and, eq, inArray, sql } from 'drizzle-orm'
import { check, index, integer, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type { Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import { address, at, block, decimal, hex, isAddress, isDecimal, isHex, oneOf } from './columns'
import type { Db } from './open'
import { type GasProduct, products, type TransactionRow, transactions } from './schema'
import { later, parameter, placeholders } from './statement'

export const errandStates = ['broadcast', 'confirmed', 'failed', 'replaced'] as const
export const errandKinds = ['swap', 'refund', 'grant', 'allowance'] as const

/** Transactions of our own that are nobody's payment. A row is there before its bytes leave. */
export const errands = sqliteTable(
  'errands',
  {
    id: text('id').primaryKey(),
    kind: text('kind').$type<(typeof errandKinds)[number]>().notNull(),
    /** Whose gas budget pays. */
    product: text('product').$type<GasProduct>().notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    relayer: address('relayer').notNull(),
    /** Account nonce of the relayer: one for ever, whatever the fees. */
    nonce: integer('nonce').notNull(),
    to: address('to').notNull(),
    valueWei: decimal('value_wei').notNull(),
    state: text('state').$type<(typeof errandStates)[number]>().notNull(),
    /** The included transaction; before, the newest one signed. */
    transactionHash: hex('transaction_hash').notNull(),
    blockNumber: block('block_number'),
    /** JSON of the receipt that ended it. */
    receipt: text('receipt'),
    createdAt: at('created_at').notNull(),
    endedAt: at('ended_at'),
  },
  (table) => [
    index('errands_unfinished').on(table.state).where(sql`state = 'broadcast'`),
    check('errands_kind', oneOf(table.kind, errandKinds)),
    check('errands_product', oneOf(table.product, products)),
    check('errands_network', sql`${table.network} GLOB 'eip155:[1-9]*'`),
    check('errands_nonce', sql`${table.nonce} >= 0`),
    check('errands_addresses', sql`${isAddress(table.relayer)} AND ${isAddress(table.to)}`),
    check('errands_value', isDecimal(table.valueWei)),
    check('errands_state', oneOf(table.state, errandStates)),
    check('errands_transaction', isHex(table.transactionHash, 64)),
    check(
      'errands_included',
      sql`(${table.state} IN ('confirmed', 'failed')) = (${table.blockNumber} IS NOT NULL) AND (${table.state} IN ('confirmed', 'failed')) = (${table.receipt} IS NOT NULL)`,
    ),
    check('errands_ended', sql`(${table.state} = 'broadcast') = (${table.endedAt} IS NULL)`),
    check('errands_receipt', sql`${table.receipt} IS NULL OR json_valid(${table.receipt})`),
  ],
)

/** Every transaction that was ever signed for an errand, all of them at its account nonce. */
export const errandTransactions = sqliteTable(
  'errand_transactions',
  {
    errandId: text('errand_id')
      .notNull()
      .references(() => errands.id),
    transactionHash: hex('transaction_hash')
      .notNull()
      .references(() => transactions.hash),
  },
  (table) => [
    primaryKey({ columns: [table.transactionHash] }),
    index('errand_transactions_errand').on(table.errandId),
  ],
)

export type ErrandRow = typeof errands.$inferSelect

/** Prepared statements; every change is a compare-and-swap on the state. Call inside `write`. */
export type ErrandStatements = ReturnType<typeof createErrands>

export function createErrands(db: Db) {
  const { orm } = db
  const byId = later(orm, () =>
    orm
      .select()
      .from(errands)
      .where(eq(errands.id, parameter('id')))
      .prepare(),
  )
  const byTransaction = later(orm, () =>
    orm
      .select({ id: errandTransactions.errandId })
      .from(errandTransactions)
      .where(eq(errandTransactions.transactionHash, parameter('hash')))
      .prepare(),
  )
  const carrying = later(orm, () =>
    orm
      .select()
      .from(transactions)
      .where(
        inArray(
          transactions.hash,
          sql`(SELECT transaction_hash FROM errand_transactions WHERE errand_id = ${parameter('id')})`,
        ),
      )
      .orderBy(transactions.createdAt, sql`rowid`)
      .prepare(),
  )
  return {
    ...changeErrands(db),
    ...reopenErrands(db),
    find: (id: string): ErrandRow | undefined => byId.get({ id }),
    /** Id of the errand that a transaction is of. */
    findByTransaction: (hash: Hex): string | undefined => byTransaction.get({ hash })?.id,
    /** Every transaction of an errand, oldest first. */
    transactionsOf: (id: string): TransactionRow[] => carrying.all({ id }),
  }
}

function changeErrands(db: Db) {
  const { orm } = db
  const insert = later(orm, () => orm.insert(errands).values(placeholders(errands)).prepare())
  const link = later(orm, () =>
    orm.insert(errandTransactions).values(placeholders(errandTransactions)).prepare(),
  )
  const isOpen = eq(errands.state, 'broadcast')
  const renew = later(orm, () =>
    orm
      .update(errands)
      .set({ transactionHash: parameter('hash') })
      .where(and(eq(errands.id, parameter('id')), isOpen))
      .prepare(),
  )
  const end = later(orm, () =>
    orm
      .update(errands)
      .set({
        state: parameter('state'),
        transactionHash: parameter('hash'),
        blockNumber: parameter('block'),
        receipt: parameter('receipt'),
        endedAt: parameter('at'),
      })
      .where(and(eq(errands.id, parameter('id')), isOpen))
      .returning({ id: errands.id })
      .prepare(),
  )
  return {
    insert(row: ErrandRow): void {
      insert.run(row)
      link.run({ errandId: row.id, transactionHash: row.transactionHash })
    },
    /** Another transaction at its nonce carries the errand. */
    renew(id: string, hash: Hex): void {
      link.run({ errandId: id, transactionHash: hash })
      renew.run({ id, hash })
    },
    end: (
      id: string,
      {
        state,
        transactionHash,
        blockNumber,
        receipt,
      }: Pick<ErrandRow, 'state' | 'transactionHash' | 'blockNumber' | 'receipt'>,
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
function reopenErrands(db: Db) {
  const { orm } = db
  const reopen = later(orm, () =>
    orm
      .update(errands)
      .set({ state: 'broadcast', blockNumber: null, receipt: null, endedAt: null })
      .where(
        and(
          eq(errands.transactionHash, parameter('hash')),
          inArray(errands.state, ['confirmed', 'failed']),
        ),
      )
      .returning({ id: errands.id })
      .prepare(),
  )
  const resend = later(orm, () =>
    orm
      .update(transactions)
      .set({
        state: 'sent',
        blockNumber: null,
        firstSentAt: sql`coalesce(first_sent_at, ${sql.placeholder('at')})`,
      })
      .where(
        and(
          inArray(
            transactions.hash,
            sql`(SELECT transaction_hash FROM errand_transactions WHERE errand_id = ${parameter('id')})`,
          ),
          inArray(transactions.state, ['signed', 'replaced']),
        ),
      )
      .prepare(),
  )
  return {
    /** A reorganisation took the transaction away. The id of its errand, which is under way again. */
    reopen: (hash: Hex): string | undefined => reopen.get({ hash })?.id,
    /**
     * All transactions of an errand that is under way may be included: what was given up for a
     * sibling that a reorganisation took away, and what was signed and never sent.
     */
    resend: (id: string, at: number): void => void resend.run({ id, at }),
  }
}
