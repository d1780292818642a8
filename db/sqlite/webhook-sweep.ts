import { and, eq, lte, type SQL, sql } from 'drizzle-orm'
import { deletedMax, type SweepBase } from '../sweep'
import { webhooks } from '../webhooks'
import type { Group } from './group'
import type { Db } from './open'
import { later, parameter } from './statement'

const isWaiting = sql`state = 'waiting'`

/** The statements of a sweep; each change shares a commit with others. */
export function sweepOf(db: Db, group: Group): SweepBase {
  const end = createEnds(db)
  return {
    ...readCounts(db),
    expire: (endpoint, reason, at) => group.addSoon(() => end.expired(endpoint, reason, at)),
    drop: (endpoint, count, at) => group.addSoon(() => end.oldest(endpoint, count, at)),
    forget: (endpoint, from) => group.addSoon(() => end.forget(endpoint, from)),
  }
}

function readCounts({ orm }: Db): Pick<SweepBase, 'waiting' | 'ended' | 'endAt'> {
  const waiting = later(orm, () =>
    orm
      .select({
        endpoint: webhooks.endpoint,
        origin: sql<string>`max(origin)`,
        waiting: sql<number>`count(*)`,
        expired: sql<number>`sum(expires_at <= ${parameter('at')})`,
      })
      .from(webhooks)
      .where(isWaiting)
      .groupBy(webhooks.endpoint)
      .prepare(),
  )
  const known = later(orm, () =>
    orm
      .select({
        endpoint: webhooks.endpoint,
        ended: sql<number>`count(*)`,
        oldest: sql<number>`min(ended_at)`,
      })
      .from(webhooks)
      .where(sql`ended_at IS NOT NULL`)
      .groupBy(webhooks.endpoint)
      .prepare(),
  )
  const newest = later(orm, () =>
    orm
      .select({ endedAt: webhooks.endedAt })
      .from(webhooks)
      .where(and(sql`ended_at IS NOT NULL`, eq(webhooks.endpoint, parameter('endpoint'))))
      .orderBy(sql`ended_at DESC`)
      .limit(1)
      .offset(sql.placeholder('offset'))
      .prepare(),
  )
  return {
    waiting: (at) => waiting.all({ at }),
    ended: () => known.all(),
    endAt: (endpoint, offset) => newest.get({ endpoint, offset })?.endedAt ?? undefined,
  }
}

function createEnds({ orm }: Db) {
  const end = (...conditions: SQL[]) =>
    later(orm, () =>
      orm
        .update(webhooks)
        .set({ state: 'failed', lastError: parameter('reason'), endedAt: parameter('at') })
        .where(and(isWaiting, eq(webhooks.endpoint, parameter('endpoint')), ...conditions))
        .returning({ seq: webhooks.seq })
        .prepare(),
    )
  const expired = end(lte(webhooks.expiresAt, parameter('at')))
  const oldest = end(
    sql`seq IN (SELECT seq FROM webhooks WHERE state = 'waiting' AND endpoint = ${parameter('endpoint')} ORDER BY seq LIMIT ${parameter('count')})`,
  )
  const forget = later(orm, () =>
    orm
      .delete(webhooks)
      .where(
        sql`seq IN (SELECT seq FROM webhooks WHERE ended_at IS NOT NULL AND endpoint = ${parameter('endpoint')} AND ended_at <= ${parameter('from')} ORDER BY ended_at LIMIT ${sql.raw(String(deletedMax))})`,
      )
      .prepare(),
  )
  return {
    expired: (endpoint: string, reason: string, at: number) =>
      expired.all({ endpoint, reason, at }).length,
    oldest: (endpoint: string, count: number, at: number) =>
      oldest.all({ endpoint, count, at, reason: 'dropped' }).length,
    forget: (endpoint: string, from: number) => void forget.run({ endpoint, from }),
  }
}
