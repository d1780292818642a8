import { rowOf } from '../select'
import { createSweep, deletedMax, type SweepBase } from '../sweep'
import type { Attempt, Message, WebhookLedger } from '../WebhookLedger'
import { webhooks } from '../webhooks'
import type { Commits } from './commits'
import { storable } from './named'
import type { Outbox } from './outbox'
import type { Parts } from './parts'
import type { Json } from './rows'

type Options = Pick<Parts, 'commits' | 'reader'> & {
  outbox: Outbox
  /** Whether this gateway sends messages. Others write them, and have none that are due. */
  isSender?: () => boolean
}

/** Twins: db/sqlite/webhooks.ts and webhook-sweep.ts. */
export function createWebhooks(options: Options): WebhookLedger {
  const { commits, outbox } = options
  return {
    subscribe: outbox.subscribe,
    onMessage: outbox.onMessage,
    async add(event) {
      const messages = outbox.rowsOf([event])
      if (messages.length === 0) return
      await commits.addSoon(change('add_messages', { messages }))
      outbox.notify()
    },
    ...readMessages(options),
    ...changeMessages(commits),
    sweep: createSweep(sweepOf(options)),
  }
}

type Reads = Pick<WebhookLedger, 'due' | 'countWaiting' | 'list' | 'find'>

/**
 * The condition is that of the partial indexes. A subquery that gives a value cannot become a join,
 * which without statistics would compare all waiting messages with each other.
 */
export const dueSql = `SELECT * FROM webhooks
  WHERE state = 'waiting' AND endpoint = $1 AND due_at <= $2
    AND seq = (SELECT min(older.seq) FROM webhooks AS older WHERE older.endpoint = webhooks.endpoint
      AND older.subject = webhooks.subject AND older.state = 'waiting')
  ORDER BY due_at, seq LIMIT $3`

const countsSql = `SELECT endpoint, count(*) AS count FROM webhooks WHERE state = 'waiting'
  GROUP BY endpoint ORDER BY endpoint`

const newestSql = 'SELECT * FROM webhooks WHERE state = $1 ORDER BY seq DESC LIMIT $2'
const byIdSql = 'SELECT * FROM webhooks WHERE id = $1'

function readMessages({ reader, isSender }: Options): Reads {
  const messages = async (text: string, values: readonly unknown[]) =>
    (await reader.all<Json>(text, values)).map(toMessage)
  return {
    async due({ endpoint, at, limit }) {
      if (isSender?.() === false) return []
      return messages(dueSql, [endpoint, at, limit])
    },
    async countWaiting() {
      const counts = await reader.all<{ endpoint: string; count: number }>(countsSql)
      return new Map(counts.map(({ endpoint, count }) => [endpoint, count]))
    },
    async list(limit) {
      const states = ['waiting', 'failed', 'delivered'] as const
      const lists = await Promise.all(states.map((state) => messages(newestSql, [state, limit])))
      return lists.flat()
    },
    find: async (id) => (await messages(byIdSql, [storable(id)]))[0],
  }
}

type Changes = Pick<
  WebhookLedger,
  'delivered' | 'retry' | 'failed' | 'giveUp' | 'prolong' | 'resend'
>

function changeMessages(commits: Commits): Changes {
  const attempted = (call: string, attempt: Attempt, dueAt?: number) => {
    const { seq, status = null, error, at } = attempt
    const text = error === undefined ? null : storable(error)
    return commits.addSoon(change(call, { seq, status, error: text, at, dueAt }, seq))
  }
  return {
    delivered: (attempt) => attempted('message_delivered', attempt),
    retry: (attempt, dueAt) => attempted('retry_message', attempt, dueAt),
    failed: (attempt) => attempted('message_failed', attempt),
    giveUp: (endpoint, reason, at) =>
      commits.addSoon(giveUp({ endpoint, reason: storable(reason), at })),
    async prolong(endpoints, until) {
      if (endpoints.length > 0) await commits.add(change('prolong_messages', { endpoints, until }))
    },
    resend: (id, times) =>
      commits.add({
        ...change('resend_message', { id: storable(id), ...times }),
        read: (value) => (value === null ? undefined : toMessage(value)),
      }),
  }
}

const waitingSql = `SELECT endpoint, max(origin) AS origin, count(*) AS waiting,
    count(*) FILTER (WHERE expires_at <= $1) AS expired
  FROM webhooks WHERE state = 'waiting' GROUP BY endpoint ORDER BY endpoint`

const endedSql = `SELECT endpoint, count(*) AS ended, min(ended_at) AS oldest
  FROM webhooks WHERE ended_at IS NOT NULL GROUP BY endpoint ORDER BY endpoint`

const endAtSql = `SELECT ended_at AS at FROM webhooks
  WHERE ended_at IS NOT NULL AND endpoint = $1 ORDER BY ended_at DESC LIMIT 1 OFFSET $2`

function sweepOf({ reader, commits }: Options): SweepBase {
  return {
    waiting: (at) => reader.all(waitingSql, [at]),
    ended: () => reader.all(endedSql),
    endAt: async (endpoint, offset) =>
      (await reader.one<{ at: number }>(endAtSql, [endpoint, offset]))?.at,
    expire: (endpoint, reason, at) =>
      commits.addSoon(giveUp({ endpoint, reason, at, expiredAt: at })),
    drop: (endpoint, count, at) =>
      commits.addSoon(giveUp({ endpoint, reason: 'dropped', at, count })),
    forget: (endpoint, from) =>
      commits.addSoon(change('forget_messages', { endpoint, from, count: deletedMax })),
  }
}

type GiveUp = { endpoint: string; reason: string; at: number; expiredAt?: number; count?: number }

function giveUp(input: GiveUp) {
  return { ...change('give_up_messages', input), read: Number }
}

/** `seq`: the only message that it changes. */
function change(call: string, input: Json, seq = 0) {
  const key = `webhook:${String(seq).padStart(16, '0')}`
  return { call, input, key, read: () => undefined }
}

function toMessage(row: Json): Message {
  return rowOf(webhooks, row)
}
