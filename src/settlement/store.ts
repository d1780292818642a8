import { and, desc, eq, getTableColumns, inArray, ne, type Placeholder, sql } from 'drizzle-orm'
import type { SQLiteTable, SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'
import type { Db } from '../../db/open'
import {
  type GasProduct,
  gasSpent,
  type PaymentRow,
  payments,
  type TransactionRow,
  transactionMembers,
  transactions,
} from '../../db/schema'
import type * as Network from '../protocol/Network'
import type { Money } from '../protocol/Transfer'
import { type Payment, type State, transitions } from './Payment'

/** Prepared statements; every change is a compare-and-swap on the state. Call inside `write`. */
export type Store = ReturnType<typeof createStore>

export type { PaymentRow, TransactionRow }

/** What was known when the request came in whose simulation passed. */
export type Evidence = Pick<PaymentRow, 'receivedAt' | 'knownBlock'>

/** A buyer's own key means something only together with these. */
export type KeyScope = { merchant: string; route: string; payer: Address; key: string }

/** Which Transfer log pays. */
export type Assignment = { transaction: Hex; logIndex: number; blockNumber: bigint }

export function createStore(db: Db) {
  return { ...readPayments(db), ...changePayments(db), ...createTransactions(db), ...createGas(db) }
}

function readPayments(db: Db) {
  const { orm } = db
  const one = (condition: ReturnType<typeof and>) =>
    orm.select().from(payments).where(condition).prepare()
  const byMoney = one(
    and(
      eq(payments.network, parameter('network')),
      eq(payments.asset, parameter('asset')),
      eq(payments.payer, parameter('payer')),
      eq(payments.nonce, parameter('nonce')),
    ),
  )
  const byId = one(eq(payments.id, parameter('id')))
  const byRedeem = one(eq(payments.redeemTokenHash, parameter('hash')))
  const byLog = one(
    and(
      eq(payments.network, parameter('network')),
      eq(payments.transactionHash, parameter('hash')),
      eq(payments.logIndex, parameter('index')),
    ),
  )
  const byKey = orm
    .select()
    .from(payments)
    .where(
      and(
        eq(payments.merchant, parameter('merchant')),
        eq(payments.route, parameter('route')),
        eq(payments.payer, parameter('payer')),
        eq(payments.idempotencyKey, parameter('key')),
        ne(payments.state, 'expired'),
      ),
    )
    .orderBy(desc(payments.createdAt))
    .limit(1)
    .prepare()
  const unfinished = one(sql`state IN ('broadcast', 'reverted')`)
  const taken = orm
    .select({ index: payments.logIndex })
    .from(payments)
    .where(
      and(
        eq(payments.network, parameter('network')),
        eq(payments.transactionHash, parameter('hash')),
      ),
    )
    .prepare()
  return {
    find: ({ network, asset, payer, nonce }: Money) =>
      toPayment(byMoney.get({ network, asset, payer, nonce: nonce.toLowerCase() })),
    findById: (id: string) => toPayment(byId.get({ id })),
    findByRedeemToken: (hash: string) => toPayment(byRedeem.get({ hash })),
    findByIdempotencyKey: (scope: KeyScope) => toPayment(byKey.get(scope)),
    /** Payment that a Transfer log is assigned to. */
    findByLog: (network: Network.Id, hash: Hex, index: number) =>
      toPayment(byLog.get({ network, hash, index })),
    /** Indexes of the logs of a transaction that pay for payments. */
    takenLogs: (network: Network.Id, hash: Hex): Set<number> =>
      new Set(taken.all({ network, hash }).flatMap(({ index }) => index ?? [])),
    evidenceOf(id: string): Evidence {
      const row = byId.get({ id })
      if (!row) throw new Error(`no payment ${id}`)
      return { receivedAt: row.receivedAt, knownBlock: row.knownBlock }
    },
    unfinishedPayments: () => unfinished.all().map(fromRow),
  }
}

function changePayments(db: Db) {
  const { orm } = db
  const insert = orm.insert(payments).values(placeholders(payments)).prepare()
  const change = changeOf(db)
  const into = (state: State) => inArray(payments.state, sourcesOf(state))
  const confirm = change({
    state: 'confirmed',
    transactionHash: parameter('hash'),
    logIndex: parameter('index'),
    blockNumber: parameter('block'),
    confirmedAt: parameter('at'),
  }).when(into('confirmed'))
  // Only what still hangs on these transactions: a newer one may carry the payment by now.
  const isCarried = sql`transaction_hash IN (SELECT value FROM json_each(${parameter('hashes')}))`
  const revert = change({ state: 'reverted' }).when(into('reverted'), isCarried)
  const expire = change({ state: 'expired' }).when(into('expired'))
  const isSent = eq(payments.state, 'broadcast')
  const renew = change({ transactionHash: parameter('hash') }).when(isSent, isCarried)
  const rebroadcast = change({
    state: 'broadcast',
    transactionHash: parameter('hash'),
  }).when(eq(payments.state, 'reverted'))
  return {
    insertPayment: (row: PaymentRow) => insert.run(row),
    /** Undefined when the payment had ended before. Throws when the log pays for another payment. */
    confirm: (id: string, { transaction, logIndex, blockNumber }: Assignment, at: number) =>
      toPayment(
        confirm.get({
          id,
          hash: transaction.toLowerCase(),
          index: logIndex,
          block: Number(blockNumber),
          at,
        }),
      ),
    revert: (id: string, hashes: readonly Hex[]) =>
      revert.get({ id, hashes: JSON.stringify(hashes) }) !== undefined,
    expire: (id: string) => expire.get({ id }) !== undefined,
    /** Another transaction at the nonce of these carries the payment. */
    renew: (id: string, hash: Hex, hashes: readonly Hex[]) =>
      renew.get({ id, hash, hashes: JSON.stringify(hashes) }) !== undefined,
    /** A new transaction carries the payment. */
    rebroadcast: (id: string, hash: Hex) => rebroadcast.get({ id, hash }) !== undefined,
    ...changeDelivery(change),
  }
}

/** States from which the table of transitions leads to this one. */
function sourcesOf(target: State): State[] {
  const states = Object.keys(transitions) as State[]
  return states.filter((state) => transitions[state].includes(target))
}

/** Prepares a change of one payment that is made only under the conditions. */
function changeOf(db: Db) {
  return (set: SQLiteUpdateSetSource<typeof payments>) => ({
    when: (...conditions: Parameters<typeof and>) =>
      db.orm
        .update(payments)
        .set(set)
        .where(and(eq(payments.id, parameter('id')), ...conditions))
        .returning()
        .prepare(),
  })
}

function changeDelivery(change: ReturnType<typeof changeOf>) {
  const answered = change({ answered: true }).when()
  const begin = change({ delivery: 'delivering', attempts: sql`attempts + 1` }).when(
    eq(payments.state, 'confirmed'),
    inArray(payments.delivery, ['none', 'delivering']),
  )
  const deliver = change({
    delivery: 'delivered',
    upstreamStatus: parameter('status'),
    truncated: parameter('truncated'),
    deliveredAt: sql`coalesce(delivered_at, ${sql.placeholder('at')})`,
    // A stream is recorded at its first byte and corrected when it is cut.
  }).when(inArray(payments.delivery, ['delivering', 'delivered']))
  const fail = change({
    delivery: 'none',
    upstreamStatus: parameter('status'),
    redeemTokenHash: parameter('hash'),
    redeemUntil: parameter('until'),
  }).when(eq(payments.delivery, 'delivering'))
  return {
    markAnswered: (id: string) => answered.get({ id }) !== undefined,
    /** The payment as it is then; undefined when it is not to be delivered. */
    beginDelivery: (id: string) => toPayment(begin.get({ id })),
    deliver: (id: string, status: number, truncated: boolean, at: number) =>
      deliver.get({ id, status, truncated: truncated ? 1 : 0, at }) !== undefined,
    failDelivery: (id: string, status: number | undefined, hash: string, until: number) =>
      fail.get({ id, status: status ?? null, hash, until }) !== undefined,
  }
}

function createTransactions(db: Db) {
  const { orm } = db
  // Signing is deterministic: what was given up unsent comes back with the same hash.
  const insert = orm
    .insert(transactions)
    .values(placeholders(transactions))
    .onConflictDoUpdate({
      target: transactions.hash,
      set: { state: sql`excluded.state`, firstSentAt: sql`excluded.first_sent_at` },
      setWhere: eq(transactions.state, 'replaced'),
    })
    .prepare()
  const insertMember = orm
    .insert(transactionMembers)
    .values(placeholders(transactionMembers))
    .onConflictDoNothing()
    .prepare()
  const reopen = orm
    .update(transactions)
    .set({ state: 'sent', blockNumber: null })
    .where(
      and(
        eq(transactions.hash, parameter('hash')),
        inArray(transactions.state, ['mined', 'failed']),
      ),
    )
    .prepare()
  const unconfirm = orm
    .update(payments)
    .set({ state: 'broadcast', logIndex: null, blockNumber: null, confirmedAt: null })
    .where(
      and(
        eq(payments.network, parameter('network')),
        eq(payments.transactionHash, parameter('hash')),
        eq(payments.state, 'confirmed'),
      ),
    )
    .prepare()
  const displace = orm
    .update(transactions)
    .set({ state: 'replaced', blockNumber: null })
    .where(
      and(
        eq(transactions.network, parameter('network')),
        eq(transactions.relayer, parameter('relayer')),
        eq(transactions.nonce, parameter('nonce')),
        inArray(transactions.state, ['mined', 'failed']),
        ne(transactions.hash, parameter('hash')),
      ),
    )
    .prepare()
  const end = orm
    .update(transactions)
    .set({ state: parameter('state'), blockNumber: parameter('block') })
    .where(
      and(
        eq(transactions.hash, parameter('hash')),
        inArray(transactions.state, ['signed', 'sent']),
      ),
    )
    .prepare()
  const unfinished = orm
    .select()
    .from(transactions)
    .where(sql`state IN ('signed', 'sent')`)
    .orderBy(transactions.nonce, transactions.createdAt)
    .prepare()
  const members = orm
    .select({ id: transactionMembers.paymentId })
    .from(transactionMembers)
    .where(eq(transactionMembers.transactionHash, parameter('hash')))
    .orderBy(transactionMembers.position)
    .prepare()
  const carrying = orm
    .select({ hash: transactions.hash, state: transactions.state })
    .from(transactionMembers)
    .innerJoin(transactions, eq(transactions.hash, transactionMembers.transactionHash))
    .where(eq(transactionMembers.paymentId, parameter('id')))
    .prepare()
  return {
    insertTransaction(row: TransactionRow, paymentIds: readonly string[]): void {
      insert.run(row)
      for (const [position, paymentId] of paymentIds.entries()) {
        insertMember.run({ transactionHash: row.hash, position, paymentId })
      }
    },
    endTransaction: (hash: Hex, state: 'mined' | 'failed' | 'replaced', block: bigint | null) =>
      end.run({ hash, state, block: block === null ? null : Number(block) }),
    /** A reorganisation took the transaction away: it and what it paid are under way again. */
    reopen(network: Network.Id, hash: Hex): void {
      reopen.run({ hash })
      unconfirm.run({ network, hash })
    },
    /** The chain has this one at its nonce: whatever was there before a reorganisation is not. */
    displaceOthers: ({ network, relayer, nonce, hash }: TransactionRow) =>
      displace.run({ network, relayer, nonce, hash }),
    unfinishedTransactions: (): TransactionRow[] => unfinished.all(),
    membersOf: (hash: Hex): string[] => members.all({ hash }).map((row) => row.id),
    /** Every transaction that ever carried the payment. */
    transactionsOf: (id: string) => carrying.all({ id }),
  }
}

function createGas(db: Db) {
  const { orm } = db
  const read = orm
    .select({ wei: gasSpent.wei })
    .from(gasSpent)
    .where(
      and(
        eq(gasSpent.network, parameter('network')),
        eq(gasSpent.product, parameter('product')),
        eq(gasSpent.day, parameter('day')),
      ),
    )
    .prepare()
  const put = orm
    .insert(gasSpent)
    .values(placeholders(gasSpent))
    .onConflictDoUpdate({
      target: [gasSpent.network, gasSpent.product, gasSpent.day],
      set: { wei: sql`excluded.wei` },
    })
    .prepare()
  const gasSpentOn = (network: Network.Id, product: GasProduct, at: number): bigint =>
    read.get({ network, product, day: dayOf(at) })?.wei ?? 0n
  return {
    gasSpentOn,
    addGas(network: Network.Id, product: GasProduct, at: number, wei: bigint): void {
      const total = gasSpentOn(network, product, at) + wei
      put.run({ network, product, day: dayOf(at), wei: total })
    },
  }
}

function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}

/** A parameter that is written as it is given: no column's encoder sees it. */
function parameter(name: string) {
  return sql`${sql.placeholder(name)}`
}

function placeholders<T extends SQLiteTable>(
  table: T,
): { [Name in keyof T['_']['columns'] & string]: Placeholder<Name> } {
  const names = Object.keys(getTableColumns(table))
  return Object.fromEntries(names.map((name) => [name, sql.placeholder(name)])) as {
    [Name in keyof T['_']['columns'] & string]: Placeholder<Name>
  }
}

function toPayment(row: PaymentRow | undefined): Payment | undefined {
  return row && fromRow(row)
}

function fromRow(row: PaymentRow): Payment {
  const { id, state, delivery, attempts, truncated, answered, createdAt } = row
  return {
    id,
    state,
    delivery,
    attempts,
    truncated,
    answered,
    createdAt,
    transfer: {
      method: row.method,
      network: row.network,
      chainId: row.chainId,
      asset: row.asset,
      payer: row.payer,
      payee: row.payee,
      amountAtomic: row.amountAtomic,
      nonce: row.nonce,
      validAfter: row.validAfter,
      validBefore: row.validBefore,
      signature: row.signature,
    },
    purpose: {
      product: row.product,
      protocol: row.protocol,
      merchant: row.merchant,
      route: row.route,
      fingerprint: row.fingerprint,
      resource: row.resource,
      idempotencyKey: row.idempotencyKey ?? undefined,
      challengeId: row.challengeId ?? undefined,
      bound: row.bound,
    },
    transaction: row.transactionHash,
    logIndex: row.logIndex ?? undefined,
    blockNumber: row.blockNumber ?? undefined,
    upstreamStatus: row.upstreamStatus ?? undefined,
    redeemTokenHash: row.redeemTokenHash ?? undefined,
    redeemUntil: row.redeemUntil ?? undefined,
    confirmedAt: row.confirmedAt ?? undefined,
    deliveredAt: row.deliveredAt ?? undefined,
  }
}
