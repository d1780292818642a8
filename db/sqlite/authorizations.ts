import { and, eq, inArray, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import {
  type Authorization,
  type Charge,
  type Delivered,
  type State,
  sourcesOf,
} from '../Authorization'
import type { AuthorizationLedger } from '../AuthorizationLedger'
import type { AuthorizationReads } from '../authorization-reads'
import { fromRow, toRow } from '../authorization-rows'
import { type AuthorizationRow, authorizations } from '../authorizations'
import type { Group } from './group'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'
import { isBarred, isDuplicate } from './write'

export type AuthorizationStatements = ReturnType<typeof createAuthorizationStatements>

/** Prepared statements that change authorizations. Call them inside `write`. */
export function createAuthorizationStatements({ orm }: Db) {
  const lastFailed = later(orm, () =>
    orm
      .select({ at: sql<number | null>`max(${authorizations.failedAt})` })
      .from(authorizations)
      .where(sql`failed_at IS NOT NULL`)
      .prepare(),
  )
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
    /** When a settlement of any payer failed last, unix ms; 0 for never. */
    lastFailedAt: () => lastFailed.get()?.at ?? 0,
  }
}

/** Writes share their commits: each of them costs a flush of the disk. */
export function createAuthorizations(
  group: Group,
  own: AuthorizationStatements,
  reads: AuthorizationReads,
): AuthorizationLedger {
  /** Read once. Most services have no failure in a day, and then no payment reads any. */
  let lastFailedAt: number | undefined
  return {
    ...reads,
    async hasFailedSince(payer, at) {
      lastFailedAt ??= own.lastFailedAt()
      return lastFailedAt > at && (await reads.hasFailedSince(payer, at))
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
