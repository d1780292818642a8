import { and, asc, desc, eq, lte, type SQL, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import { createSweep } from '../sweep'
import type { Attempt, WebhookLedger } from '../WebhookLedger'
import { webhooks } from '../webhooks'
import type { Group } from './group'
import type { Db } from './open'
import type { Outbox } from './outbox'
import { later, parameter } from './statement'
import { sweepOf } from './webhook-sweep'
import { write } from './write'

/** Literal text, as in the partial indexes, or SQLite does not use them. */
const isWaiting = sql`state = 'waiting'`

export function createWebhooks(db: Db, group: Group, outbox: Outbox): WebhookLedger {
  const reads = readMessages(db)
  const changes = changeMessages(db)
  return {
    subscribe: outbox.subscribe,
    onMessage: outbox.onMessage,
    async add(event) {
      await group.addSoon(() => outbox.add(event))
    },
    ...reads,
    delivered: (attempt) => group.addSoon(() => changes.delivered(attempt)),
    retry: (attempt, dueAt) => group.addSoon(() => changes.retry(attempt, dueAt)),
    failed: (attempt) => group.addSoon(() => changes.failed(attempt)),
    giveUp: (endpoint, reason, at) => group.addSoon(() => changes.giveUp(endpoint, reason, at)),
    async prolong(endpoints, until) {
      for (const endpoint of endpoints) write(db, () => changes.prolong(endpoint, until))
    },
    async resend(id, times) {
      return write(db, () => changes.resend(id, times) ?? null) ?? undefined
    },
    sweep: createSweep(sweepOf(db, group)),
  }
}

function readMessages({ orm }: Db): Pick<WebhookLedger, 'due' | 'countWaiting' | 'list' | 'find'> {
  const isFirst = sql`NOT EXISTS (SELECT 1 FROM webhooks AS older WHERE older.endpoint = webhooks.endpoint AND older.subject = webhooks.subject AND older.state = 'waiting' AND older.seq < webhooks.seq)`
  const due = later(orm, () =>
    orm
      .select()
      .from(webhooks)
      .where(
        and(
          isWaiting,
          eq(webhooks.endpoint, parameter('endpoint')),
          lte(webhooks.dueAt, parameter('at')),
          isFirst,
        ),
      )
      .orderBy(asc(webhooks.dueAt), asc(webhooks.seq))
      .limit(sql.placeholder('limit'))
      .prepare(),
  )
  const counts = later(orm, () =>
    orm
      .select({ endpoint: webhooks.endpoint, count: sql<number>`count(*)` })
      .from(webhooks)
      .where(isWaiting)
      .groupBy(webhooks.endpoint)
      .prepare(),
  )
  const newest = (condition: SQL) =>
    later(orm, () =>
      orm
        .select()
        .from(webhooks)
        .where(condition)
        .orderBy(desc(webhooks.seq))
        .limit(sql.placeholder('limit'))
        .prepare(),
    )
  const lists = (['waiting', 'failed', 'delivered'] as const).map((state) =>
    newest(eq(webhooks.state, state)),
  )
  const byId = later(orm, () =>
    orm
      .select()
      .from(webhooks)
      .where(eq(webhooks.id, parameter('id')))
      .prepare(),
  )
  return {
    due: async (query) => due.all(query),
    countWaiting: async () => new Map(counts.all().map(({ endpoint, count }) => [endpoint, count])),
    list: async (limit) => lists.flatMap((each) => each.all({ limit })),
    find: async (id) => byId.get({ id }),
  }
}

function changeMessages({ orm }: Db) {
  const change = (set: SQLiteUpdateSetSource<typeof webhooks>, ...conditions: SQL[]) =>
    later(orm, () =>
      orm
        .update(webhooks)
        .set(set)
        .where(and(...conditions))
        .returning()
        .prepare(),
    )
  const ofSeq = eq(webhooks.seq, parameter('seq'))
  const ofEndpoint = eq(webhooks.endpoint, parameter('endpoint'))
  const attempted = {
    attempts: sql`attempts + 1`,
    lastStatus: parameter('status'),
    lastError: parameter('error'),
  }
  const ended = (state: 'delivered' | 'failed') => ({ state, endedAt: parameter('at') })
  const delivered = change({ ...attempted, ...ended('delivered') }, ofSeq)
  const failed = change({ ...attempted, ...ended('failed') }, ofSeq, isWaiting)
  const retry = change({ ...attempted, dueAt: parameter('dueAt') }, ofSeq, isWaiting)
  const giveUp = change(
    { ...ended('failed'), lastError: parameter('reason') },
    ofEndpoint,
    isWaiting,
  )
  const prolong = change(
    { expiresAt: sql`max(expires_at, ${parameter('until')})` },
    ofEndpoint,
    isWaiting,
    sql`expires_at < ${parameter('until')}`,
  )
  const resend = change(
    {
      state: 'waiting',
      dueAt: parameter('at'),
      expiresAt: parameter('expiresAt'),
      endedAt: null,
    },
    eq(webhooks.id, parameter('id')),
  )
  const of = ({ seq, status, error, at }: Attempt) => ({
    seq,
    status: status ?? null,
    error: error ?? null,
    at,
  })
  return {
    delivered: (attempt: Attempt) => void delivered.run(of(attempt)),
    failed: (attempt: Attempt) => void failed.run(of(attempt)),
    retry: (attempt: Attempt, dueAt: number) => void retry.run({ ...of(attempt), dueAt }),
    giveUp: (endpoint: string, reason: string, at: number) =>
      giveUp.all({ endpoint, reason, at }).length,
    prolong: (endpoint: string, until: number) => void prolong.run({ endpoint, until }),
    resend: (id: string, times: { at: number; expiresAt: number }) => resend.get({ id, ...times }),
  }
}
