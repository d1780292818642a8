import { and, desc, eq, gt, inArray, ne, type SQL, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import type { Address } from 'viem'
import type { Money } from '../../src/protocol/Transfer'
import {
  type Authorization,
  type Charge,
  type Delivered,
  type State,
  sourcesOf,
} from '../Authorization'
import {
  type AuthorizationLedger,
  type Buyer,
  type Loss,
  type Standing,
  standingRowsMax,
} from '../AuthorizationLedger'
import { fromRow, toRow } from '../authorization-rows'
import { type AuthorizationRow, authorizations } from '../authorizations'
import type { KeyScope } from '../Payment'
import type { Group } from './group'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'
import { isBarred, isDuplicate } from './write'

export type AuthorizationStatements = ReturnType<typeof createAuthorizationStatements>

/** Prepared statements on authorizations. Call those that change one inside `write`. */
export function createAuthorizationStatements(db: Db) {
  return { ...readAuthorizations(db), ...changeAuthorizations(db) }
}

function readAuthorizations({ orm }: Db) {
  // The conditions are made with the statement: a start needs few of them.
  const select = (condition: () => SQL | undefined) =>
    later(orm, () =>
      orm
        .select()
        .from(authorizations)
        .where(condition())
        .orderBy(desc(authorizations.createdAt))
        .prepare(),
    )
  // Literal text, as in the partial indexes, or SQLite does not use them.
  const isOpen = sql`state IN ('authorized', 'metered')`
  const byMoney = select(() =>
    and(
      eq(authorizations.network, parameter('network')),
      eq(authorizations.asset, parameter('asset')),
      eq(authorizations.payer, parameter('payer')),
      eq(authorizations.nonce, parameter('nonce')),
    ),
  )
  const byId = select(() => eq(authorizations.id, parameter('id')))
  const isOfKey = () =>
    and(
      eq(authorizations.merchant, parameter('merchant')),
      eq(authorizations.route, parameter('route')),
      eq(authorizations.payer, parameter('payer')),
      eq(authorizations.idempotencyKey, parameter('key')),
    )
  const byKey = select(() => and(isOfKey(), isOpen))
  const voidByKey = select(() => and(isOfKey(), eq(authorizations.state, 'void')))
  const open = select(() => isOpen)
  const isUnpaid = sql`NOT EXISTS (
    SELECT 1 FROM payments WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`
  const failed = select(() =>
    and(
      eq(authorizations.payer, parameter('payer')),
      gt(authorizations.failedAt, parameter('at')),
      ne(authorizations.state, 'void'),
      isUnpaid,
    ),
  )
  const lastFailed = later(orm, () =>
    orm
      .select({ at: sql<number | null>`max(${authorizations.failedAt})` })
      .from(authorizations)
      .where(sql`failed_at IS NOT NULL`)
      .prepare(),
  )
  const isLost = sql.raw(`failed_at IS NOT NULL AND product = 'gateway' AND NOT EXISTS (
    SELECT 1 FROM payments WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`)
  const losses = later(orm, () =>
    orm
      .select({
        id: authorizations.id,
        merchant: authorizations.merchant,
        payer: authorizations.payer,
        at: authorizations.failedAt,
        ceiling: authorizations.ceilingAtomic,
        charge: authorizations.chargeAtomic,
      })
      .from(authorizations)
      .where(and(isLost, gt(authorizations.failedAt, parameter('at'))))
      .prepare(),
  )
  const standing = later(orm, () =>
    orm
      .select({
        paid: sql<number>`(SELECT coalesce(sum(CAST(amount_atomic AS INTEGER)), 0) FROM (
          SELECT amount_atomic, merchant, product, state FROM payments
          WHERE network = ${parameter('network')} AND asset = ${parameter('asset')}
            AND payer = ${parameter('payer')} LIMIT ${sql.raw(String(standingRowsMax))})
          WHERE merchant = ${parameter('merchant')} AND product = 'gateway' AND state = 'confirmed')`,
        lost: sql<number>`(SELECT coalesce(sum(CAST(lost AS INTEGER)), 0) FROM (
          SELECT CASE state WHEN 'void' THEN ceiling_atomic ELSE charge_atomic END AS lost
          FROM authorizations
          WHERE ${isLost} AND payer = ${parameter('payer')} AND merchant = ${parameter('merchant')}
          ORDER BY failed_at DESC LIMIT ${sql.raw(String(standingRowsMax))}))`,
      })
      .from(sql`(SELECT 1)`)
      .prepare(),
  )
  return {
    find: ({ network, asset, payer, nonce }: Money) =>
      toAuthorization(byMoney.get({ network, asset, payer, nonce: nonce.toLowerCase() })),
    findById: (id: string) => toAuthorization(byId.get({ id })),
    findByIdempotencyKey: (scope: KeyScope) => toAuthorization(byKey.get(scope)),
    findVoid: (scope: KeyScope) => toAuthorization(voidByKey.get(scope)),
    open: () => open.all().map(fromRow),
    hasFailedSince: (payer: Address, at: number) => failed.get({ payer, at }) !== undefined,
    lossesSince: (since: number): Loss[] =>
      losses.all({ at: since }).map(({ id, merchant, payer, at, ceiling, charge }) => {
        return { id, merchant, payer, atomic: charge || ceiling, at: at ?? since }
      }),
    standingOf({ network, asset, payer, merchant }: Buyer): Standing {
      const { paid = 0, lost = 0 } = standing.get({ network, asset, payer, merchant }) ?? {}
      return { paidAtomic: BigInt(paid), lostAtomic: BigInt(lost) }
    },
    /** When a settlement of any payer failed last, unix ms; 0 for never. */
    lastFailedAt: () => lastFailed.get()?.at ?? 0,
  }
}

function changeAuthorizations({ orm }: Db) {
  const insert = later(orm, () =>
    orm.insert(authorizations).values(placeholders(authorizations)).prepare(),
  )
  const change = (set: SQLiteUpdateSetSource<typeof authorizations>, into?: State) =>
    later(orm, () =>
      orm
        .update(authorizations)
        .set(set)
        .where(
          and(
            eq(authorizations.id, parameter('id')),
            into && inArray(authorizations.state, sourcesOf(into)),
          ),
        )
        .returning()
        .prepare(),
    )
  const charged = {
    chargeAtomic: parameter('amount'),
    units: parameter('units'),
    isDelivered: parameter('isDelivered'),
    upstreamStatus: parameter('status'),
    truncated: parameter('truncated'),
  }
  const meter = change({ state: 'metered', ...charged }, 'metered')
  const voided = change({ state: 'void', ...charged, failedAt: parameter('lostAt') }, 'void')
  const send = change({ state: 'sent' }, 'sent')
  const fail = change({ state: 'failed' }, 'failed')
  const markFailed = change({ failedAt: parameter('at') })
  return {
    insert: (authorization: Authorization) => void insert.run(toRow(authorization)),
    meter: (id: string, charge: Charge, delivered: Delivered | undefined) =>
      meter.get({ id, ...columnsOf(charge, delivered) }) !== undefined,
    void: (id: string, charge: Charge, delivered: Delivered | undefined, lostAt?: number) =>
      voided.get({ id, ...columnsOf(charge, delivered), lostAt: lostAt ?? null }) !== undefined,
    /** The authorization that a payment of its id settles; undefined when it is not `metered`. */
    send: (id: string) => toAuthorization(send.get({ id })),
    fail: (id: string) => fail.get({ id }) !== undefined,
    markFailed: (id: string, at: number) => void markFailed.run({ id, at }),
  }
}

/** Writes share their commits: each of them costs a flush of the disk. */
export function createAuthorizations(
  group: Group,
  own: AuthorizationStatements,
): AuthorizationLedger {
  /** Read once. Most services have no failure in a day, and then no payment reads any. */
  let lastFailedAt: number | undefined
  return {
    find: async (money) => own.find(money),
    findById: async (id) => own.findById(id),
    findByIdempotencyKey: async (scope) => own.findByIdempotencyKey(scope),
    findVoid: async (scope) => own.findVoid(scope),
    open: async () => own.open(),
    async hasFailedSince(payer, at) {
      lastFailedAt ??= own.lastFailedAt()
      return lastFailedAt > at && own.hasFailedSince(payer, at)
    },
    async insert(authorization) {
      try {
        // A lost row of state `authorized` loses nothing, because it has no charge yet. A `void`
        // one is a success that the caller was told of, which a power loss must not undo.
        const add = authorization.state === 'authorized' ? group.addSoon : group.add
        await add(() => own.insert(authorization))
        return 'stored'
      } catch (error) {
        if (isDuplicate(error) || isBarred(error)) return 'known'
        throw error
      }
    },
    // An answer that is held waits for its payment, whose commit brings this row to the disk, too.
    meter: (id, charge, delivered) =>
      delivered === undefined
        ? group.addSoon(() => own.meter(id, charge, delivered))
        : group.add(() => own.meter(id, charge, delivered)),
    void: (id, charge, delivered, lostAt) =>
      group.addSoon(() => own.void(id, charge, delivered, lostAt)),
    lossesSince: async (at) => own.lossesSince(at),
    standingOf: async (buyer) => own.standingOf(buyer),
    fail: (id) => group.add(() => own.fail(id)),
    markFailed: (id, at) =>
      group.add(() => {
        own.markFailed(id, at)
        // After a rollback the time may be too late, which only costs a read.
        lastFailedAt = Math.max(lastFailedAt ?? own.lastFailedAt(), at)
      }),
  }
}

/** Written as they are given, without the encoders of the columns. */
function columnsOf({ amountAtomic, units }: Charge, delivered: Delivered | undefined) {
  return {
    amount: String(amountAtomic),
    units: JSON.stringify(units),
    isDelivered: delivered === undefined ? 0 : 1,
    status: delivered?.upstreamStatus ?? null,
    truncated: delivered?.truncated === true ? 1 : 0,
  }
}

function toAuthorization(row: AuthorizationRow | undefined): Authorization | undefined {
  return row && fromRow(row)
}
