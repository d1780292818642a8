import {
  type Authorization,
  type Charge,
  type Delivered,
  type State,
  sourcesOf,
} from '../Authorization'
import type { AuthorizationLedger, AuthorizationReads } from '../authorizations'
import { authorizationRow, toAuthorization } from '../rows'
import { authorizations } from '../schema'
import type { Values } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import { type Group, isBarred, isDuplicate } from './write'

type AuthorizationStatements = ReturnType<typeof createAuthorizationStatements>

/** Prepared statements that change authorizations. Call them inside `write`. */
export function createAuthorizationStatements(db: Db) {
  const lastFailed = statement<{ at: number | null }>(
    db,
    'SELECT max(failed_at) AS at FROM authorizations WHERE failed_at IS NOT NULL',
  )
  const insert = insertInto(db, authorizations)
  /** A change into a state, only from the states before it. */
  const change = (into: State, more = '') => {
    const sources = sourcesOf(into).map((state) => `'${state}'`)
    const changed = statement(
      db,
      `UPDATE authorizations SET state = '${into}' ${more}
       WHERE id = $id AND state IN (${sources.join(', ')}) RETURNING *`,
    )
    return (values: Values): Authorization | undefined => {
      const row = changed().get(values)
      return row === null ? undefined : toAuthorization(row)
    }
  }
  const charged = `, charge_atomic = $amount, units = $units, is_delivered = $isDelivered,
    upstream_status = $status, truncated = $truncated`
  const meter = change('metered', charged)
  const voided = change('void', `${charged}, failed_at = $lostAt`)
  const send = change('sent')
  const fail = change('failed')
  const markFailed = statement(db, 'UPDATE authorizations SET failed_at = $at WHERE id = $id')
  return {
    insert: (authorization: Authorization) => insert(authorizationRow(authorization)),
    meter: (id: string, charge: Charge, delivered: Delivered | undefined) =>
      meter({ id, ...columnsOf(charge, delivered) }) !== undefined,
    void: (id: string, charge: Charge, delivered: Delivered | undefined, lostAt?: number) =>
      voided({ id, ...columnsOf(charge, delivered), lostAt: lostAt ?? null }) !== undefined,
    /** The authorization that a payment of its id settles; undefined when it is not `metered`. */
    send: (id: string) => send({ id }),
    fail: (id: string) => fail({ id }) !== undefined,
    markFailed: (id: string, at: number) => void markFailed().run({ id, at }),
    /** When a settlement of any payer failed last, unix ms; 0 for never. */
    lastFailedAt: () => lastFailed().get({})?.at ?? 0,
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
