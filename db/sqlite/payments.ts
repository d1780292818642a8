import { and, eq, inArray, isNotNull, type SQL, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Money } from '../../src/protocol/Transfer'
import type { Assignment, DeliveryCommits } from '../Ledger'
import { type Payment, type State, transitions } from '../Payment'
import { fromRow } from '../payment-rows'
import { type PaymentRow, payments } from '../schema'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'

/** Statements on payments. Each change is a compare-and-swap on the state. Call them inside `write`. */
export function createPayments(db: Db) {
  return { ...readPayments(db), ...changePayments(db) }
}

function readPayments({ orm }: Db) {
  const byMoney = later(orm, () =>
    orm
      .select()
      .from(payments)
      .where(
        and(
          eq(payments.network, parameter('network')),
          eq(payments.asset, parameter('asset')),
          eq(payments.payer, parameter('payer')),
          eq(payments.nonce, parameter('nonce')),
        ),
      )
      .prepare(),
  )
  const ofTransaction = (condition: SQL) =>
    later(orm, () =>
      orm
        .select({ id: payments.id, index: payments.logIndex })
        .from(payments)
        .where(
          and(
            eq(payments.network, parameter('network')),
            eq(payments.transactionHash, parameter('hash')),
            condition,
          ),
        )
        .prepare(),
    )
  const paidBy = ofTransaction(isNotNull(payments.logIndex))
  const openOf = ofTransaction(eq(payments.state, 'broadcast'))
  return {
    find: ({ network, asset, payer, nonce }: Money) =>
      toPayment(byMoney.get({ network, asset, payer, nonce: nonce.toLowerCase() })),
    /** Indexes of the logs of a transaction that pay for payments. */
    takenLogs: (network: Network.Id, hash: Hex): Set<number> =>
      new Set(paidBy.all({ network, hash }).flatMap(({ index }) => index ?? [])),
    /** Payments that a transaction confirmed. */
    paidBy: (network: Network.Id, hash: Hex): string[] =>
      paidBy.all({ network, hash }).map(({ id }) => id),
    /** Payments that a transaction contained last and that the chain does not confirm. */
    openOf: (network: Network.Id, hash: Hex): string[] =>
      openOf.all({ network, hash }).map(({ id }) => id),
  }
}

function changePayments(db: Db) {
  const { orm } = db
  const insert = later(orm, () => orm.insert(payments).values(placeholders(payments)).prepare())
  const change = changeOf(db)
  const into = (state: State) => inArray(payments.state, sourcesOf(state))
  const confirmed = {
    state: 'confirmed' as const,
    transactionHash: parameter('hash'),
    logIndex: parameter('index'),
    blockNumber: parameter('block'),
    confirmedAt: parameter('at'),
    nonceUsed: false,
  }
  const confirm = change(confirmed).rowIf(into('confirmed'))
  const confirmAndBegin = change({ ...confirmed, ...delivering }).rowIf(
    into('confirmed'),
    eq(payments.delivery, 'none'),
  )
  const assigned = (
    id: string,
    { transaction, logIndex, blockNumber }: Assignment,
    at: number,
  ) => ({
    id,
    hash: transaction.toLowerCase(),
    index: logIndex,
    block: Number(blockNumber),
    at,
  })
  // Only payments whose current transaction is one of these: a newer one may contain the payment by
  // now.
  const isMember = sql`transaction_hash IN (SELECT value FROM json_each(${parameter('hashes')}))`
  const revert = change({ state: 'reverted' }).idIf(into('reverted'), isMember)
  const expire = change({ state: 'expired', nonceUsed: parameter('used') }).idIf(into('expired'))
  const isSent = eq(payments.state, 'broadcast')
  const renew = change({ transactionHash: parameter('hash') }).idIf(isSent, isMember)
  const rebroadcast = change({
    state: 'broadcast',
    transactionHash: parameter('hash'),
  }).idIf(eq(payments.state, 'reverted'))
  return {
    insertPayment: (row: PaymentRow) => insert.run(row),
    /** Undefined when the payment had ended before. Throws when the log pays for another payment. */
    confirm: (id: string, assignment: Assignment, at: number) =>
      toPayment(confirm.get(assigned(id, assignment, at))),
    /** Like `confirm`, and starts the first delivery. */
    confirmAndBegin: (id: string, assignment: Assignment, at: number) =>
      toPayment(confirmAndBegin.get(assigned(id, assignment, at))),
    revert: (id: string, hashes: readonly Hex[]) =>
      revert.get({ id, hashes: JSON.stringify(hashes) }) !== undefined,
    /** `isUsed`: the chain has its nonce as used, by something else. */
    expire: (id: string, isUsed: boolean) => expire.get({ id, used: isUsed ? 1 : 0 }) !== undefined,
    /** Moves the payment to another transaction at the nonce of these. */
    renew: (id: string, hash: Hex, hashes: readonly Hex[]) =>
      renew.get({ id, hash, hashes: JSON.stringify(hashes) }) !== undefined,
    /** Moves the payment to a new transaction. */
    rebroadcast: (id: string, hash: Hex) => rebroadcast.get({ id, hash }) !== undefined,
    ...changeDelivery(change),
  }
}

/** States from which the table of transitions permits this one. */
function sourcesOf(target: State): State[] {
  const states = Object.keys(transitions) as State[]
  return states.filter((state) => transitions[state].includes(target))
}

/**
 * Prepares a change of one payment that is made only under the conditions. It returns the row after the
 * change, or only its id, because to read all columns takes longer than some of the changes.
 */
function changeOf({ orm }: Db) {
  return (set: SQLiteUpdateSetSource<typeof payments>) => {
    const under = (conditions: Parameters<typeof and>) =>
      orm
        .update(payments)
        .set(set)
        .where(and(eq(payments.id, parameter('id')), ...conditions))
    return {
      rowIf: (...conditions: Parameters<typeof and>) =>
        later(orm, () => under(conditions).returning().prepare()),
      idIf: (...conditions: Parameters<typeof and>) =>
        later(orm, () => under(conditions).returning({ id: payments.id }).prepare()),
    }
  }
}

type Undelivered = Parameters<DeliveryCommits['fail']>[1]

const delivering = { delivery: 'delivering' as const, attempts: sql`attempts + 1` }

function changeDelivery(change: ReturnType<typeof changeOf>) {
  const answered = change({ answered: true }).idIf()
  const begin = change(delivering).rowIf(
    eq(payments.state, 'confirmed'),
    inArray(payments.delivery, ['none', 'delivering']),
  )
  const deliver = change({
    delivery: 'delivered',
    upstreamStatus: parameter('status'),
    truncated: parameter('truncated'),
    deliveredAt: sql`coalesce(delivered_at, ${sql.placeholder('at')})`,
    // A stream is recorded at its first byte and corrected when it is cut.
  }).idIf(inArray(payments.delivery, ['delivering', 'delivered']))
  const handOver = change({
    delivery: 'delivered',
    attempts: sql`attempts + 1`,
    deliveredAt: parameter('at'),
  }).idIf(eq(payments.state, 'confirmed'), eq(payments.delivery, 'none'))
  const fail = change({
    delivery: 'none',
    upstreamStatus: parameter('status'),
    redeemTokenHash: parameter('hash'),
    redeemUntil: parameter('until'),
  }).rowIf(eq(payments.delivery, 'delivering'))
  return {
    markAnswered: (id: string) => answered.get({ id }) !== undefined,
    /** The payment after the change; undefined when it is not to be delivered. */
    beginDelivery: (id: string) => toPayment(begin.get({ id })),
    deliver: (id: string, status: number, truncated: boolean, at: number) =>
      deliver.get({ id, status, truncated: truncated ? 1 : 0, at }) !== undefined,
    handOver: (id: string, at: number) => handOver.get({ id, at }) !== undefined,
    /** The payment after the change; undefined when no delivery was started. */
    failDelivery: (id: string, { upstreamStatus, redeemTokenHash, redeemUntil }: Undelivered) =>
      toPayment(
        fail.get({
          id,
          status: upstreamStatus ?? null,
          hash: redeemTokenHash,
          until: redeemUntil,
        }),
      ),
  }
}

function toPayment(row: PaymentRow | undefined): Payment | undefined {
  return row && fromRow(row)
}
