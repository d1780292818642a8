import { webhooks } from './schema'
import { columnsIn, decoderOf, rowsOf, type Selects, type Values } from './select'
import type { Attempt, Bounds, Message, SweepReason, Swept, WebhookLedger } from './WebhookLedger'

const decode: (found: unknown) => Message = decoderOf(webhooks)

/** All but what writes the messages of events. */
type Messages = Omit<WebhookLedger, 'subscribe' | 'onMessage' | 'add'>

export type MessagesBase = Selects & {
  /**
   * A change that may run twice, with the rows that it returns. `soon`: a loss of power may undo it.
   */
  change<Row = object>(
    kind: 'commit' | 'soon',
    text: string,
  ): (values: Values) => Promise<readonly Row[]>
}

/**
 * The condition is that of the partial indexes. A subquery that gives a value cannot become a join,
 * which in PostgreSQL without statistics would compare all waiting messages with each other.
 */
export const isDue = `state = 'waiting' AND endpoint = $endpoint AND due_at <= $at
  AND seq = (SELECT min(older.seq) FROM webhooks AS older WHERE older.endpoint = webhooks.endpoint
    AND older.subject = webhooks.subject AND older.state = 'waiting')
  ORDER BY due_at, seq LIMIT $limit`

export function createMessages(base: MessagesBase): Messages {
  return { ...readMessages(base), ...changeMessages(base), sweep: createSweep(base) }
}

function readMessages(base: Selects): Pick<Messages, 'due' | 'countWaiting' | 'list' | 'find'> {
  const { all, one } = rowsOf(base, webhooks, decode)
  const due = all(`WHERE ${isDue}`)
  const counts = base.select<{ endpoint: string; count: number }>(
    `SELECT endpoint, count(*) AS count FROM webhooks WHERE state = 'waiting'
     GROUP BY endpoint ORDER BY endpoint`,
  )
  const newest = all('WHERE state = $state ORDER BY seq DESC LIMIT $limit')
  const byId = one('WHERE id = $id')
  return {
    due: ({ endpoint, at, limit }) => due({ endpoint, at, limit }),
    countWaiting: async () =>
      new Map((await counts()).map(({ endpoint, count }) => [endpoint, count])),
    async list(limit) {
      const states = ['waiting', 'failed', 'delivered'] as const
      return (await Promise.all(states.map((state) => newest({ state, limit })))).flat()
    },
    find: (id) => byId({ id }),
  }
}

const attempted =
  'UPDATE webhooks SET attempts = attempts + 1, last_status = $status, last_error = $error'
const isWaiting = "state = 'waiting'"

/** Gives up waiting messages, and returns a row for each. */
function giveUp(condition: string): string {
  return `UPDATE webhooks SET state = 'failed', last_error = $reason, ended_at = $at
    WHERE ${isWaiting} AND endpoint = $endpoint ${condition} RETURNING seq`
}

type Changes = Pick<Messages, 'delivered' | 'retry' | 'failed' | 'giveUp' | 'prolong' | 'resend'>

function changeMessages({ change, dialect }: MessagesBase): Changes {
  const delivered = change(
    'soon',
    `${attempted}, state = 'delivered', ended_at = $at WHERE seq = $seq`,
  )
  const failed = change(
    'soon',
    `${attempted}, state = 'failed', ended_at = $at WHERE seq = $seq AND ${isWaiting}`,
  )
  const retry = change('soon', `${attempted}, due_at = $dueAt WHERE seq = $seq AND ${isWaiting}`)
  const end = change('soon', giveUp(''))
  const prolong = change(
    'commit',
    `UPDATE webhooks SET expires_at = $until
     WHERE ${isWaiting} AND ${dialect.isIn('endpoint', '$endpoints')} AND expires_at < $until`,
  )
  const resend = change(
    'commit',
    `UPDATE webhooks SET state = 'waiting', due_at = $at, expires_at = $expiresAt, ended_at = NULL
     WHERE id = $id RETURNING ${columnsIn(webhooks)}`,
  )
  const of = ({ seq, status, error, at }: Attempt): Values => {
    return { seq, status: status ?? null, error: error ?? null, at }
  }
  return {
    async delivered(attempt) {
      await delivered(of(attempt))
    },
    async failed(attempt) {
      await failed(of(attempt))
    },
    async retry(attempt, dueAt) {
      await retry({ ...of(attempt), dueAt })
    },
    giveUp: async (endpoint, reason, at) => (await end({ endpoint, reason, at })).length,
    async prolong(endpoints, until) {
      if (endpoints.length > 0) await prolong({ endpoints: JSON.stringify(endpoints), until })
    },
    async resend(id, { at, expiresAt }) {
      const [row] = await resend({ id, at, expiresAt })
      return row && decode(row)
    },
  }
}

/** Most ended messages that one commit deletes. */
const deletedMax = 1_000

/** Keeps the outbox within its bounds. Reads first, so that nothing to do writes nothing. */
function createSweep(base: MessagesBase): Messages['sweep'] {
  const counts = base.select<{
    endpoint: string
    origin: string
    waiting: number
    expired: number
  }>(
    `SELECT endpoint, max(origin) AS origin, count(*) AS waiting,
       count(*) FILTER (WHERE expires_at <= $at) AS expired
     FROM webhooks WHERE ${isWaiting} GROUP BY endpoint ORDER BY endpoint`,
  )
  const expire = base.change('soon', giveUp('AND expires_at <= $at'))
  const oldest = `SELECT seq FROM webhooks WHERE ${isWaiting} AND endpoint = $endpoint
    ORDER BY seq LIMIT $count`
  const drop = base.change('soon', giveUp(`AND seq IN (${oldest})`))
  const findTooOld = readTooOld(base)
  const forget = base.change(
    'soon',
    `DELETE FROM webhooks WHERE seq IN (SELECT seq FROM webhooks WHERE ended_at IS NOT NULL
       AND endpoint = $endpoint AND ended_at <= $from ORDER BY ended_at, seq LIMIT ${deletedMax})`,
  )
  return async (at, endpoints, bounds) => {
    const swept: Swept[] = []
    for (const { endpoint, origin, waiting, expired } of await counts({ at })) {
      const reason: SweepReason = endpoints.includes(endpoint) ? 'expired' : 'removed'
      if (expired > 0) {
        const { length: count } = await expire({ endpoint, reason, at })
        if (count > 0) swept.push({ endpoint, origin, reason, count })
      }
      const more = waiting - expired - bounds.waitingMax
      if (more <= 0) continue
      const { length: count } = await drop({ endpoint, count: more, at, reason: 'dropped' })
      if (count > 0) swept.push({ endpoint, origin, reason: 'dropped', count })
    }
    for (const each of await findTooOld(at, bounds)) await forget(each)
    return swept
  }
}

/** Reads the endpoints with ended messages that are too old or too many: those up to `from`. */
function readTooOld({ select }: MessagesBase) {
  const counts = select<{ endpoint: string; ended: number; oldest: number }>(
    `SELECT endpoint, count(*) AS ended, min(ended_at) AS oldest
     FROM webhooks WHERE ended_at IS NOT NULL GROUP BY endpoint ORDER BY endpoint`,
  )
  const endAt = select<{ at: number }>(
    `SELECT ended_at AS at FROM webhooks WHERE ended_at IS NOT NULL AND endpoint = $endpoint
     ORDER BY ended_at DESC LIMIT 1 OFFSET $offset`,
  )
  return async (at: number, { endedMax, endedMs }: Bounds) => {
    const found: { endpoint: string; from: number }[] = []
    for (const { endpoint, ended, oldest } of await counts()) {
      const [last] = ended > endedMax ? await endAt({ endpoint, offset: endedMax }) : []
      const from = Math.max(last?.at ?? 0, at - endedMs)
      if (oldest <= from) found.push({ endpoint, from })
    }
    return found
  }
}
