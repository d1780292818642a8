import { and, eq, lte, type SQL, sql } from 'drizzle-orm'
import type { Bounds, SweepReason, Swept, WebhookLedger } from '../WebhookLedger'
import { webhooks } from '../webhooks'
import type { Group } from './group'
import type { Db } from './open'
import { later, parameter } from './statement'

/** Most ended messages that one commit deletes. */
const deletedMax = 1_000

const isWaiting = sql`state = 'waiting'`

/** Keeps the outbox within its bounds. Reads first, so that nothing to do writes nothing. */
export function createSweep(db: Db, group: Group): WebhookLedger['sweep'] {
  const read = readCounts(db)
  const end = createEnds(db)
  return async (at, endpoints, bounds) => {
    const swept: Swept[] = []
    for (const { endpoint, origin, waiting, expired } of read.waiting(at)) {
      const reason: SweepReason = endpoints.includes(endpoint) ? 'expired' : 'removed'
      if (expired > 0) {
        const count = await group.addSoon(() => end.expired(endpoint, reason, at))
        if (count > 0) swept.push({ endpoint, origin, reason, count })
      }
      const more = waiting - expired - bounds.waitingMax
      if (more <= 0) continue
      const count = await group.addSoon(() => end.oldest(endpoint, more, at))
      if (count > 0) swept.push({ endpoint, origin, reason: 'dropped', count })
    }
    for (const { endpoint, from } of read.ended(at, bounds)) {
      await group.addSoon(() => end.forget(endpoint, from))
    }
    return swept
  }
}

function readCounts({ orm }: Db) {
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
    waiting: (at: number) => waiting.all({ at }),
    /** Endpoints with ended messages that are too old or too many: those up to `from`. */
    ended: (at: number, { endedMax, endedMs }: Bounds) =>
      known.all().flatMap(({ endpoint, ended, oldest }) => {
        const tooMany =
          ended > endedMax ? newest.get({ endpoint, offset: endedMax })?.endedAt : undefined
        const from = Math.max(tooMany ?? 0, at - endedMs)
        return oldest <= from ? [{ endpoint, from }] : []
      }),
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
