import * as Crypto from '../src/protocol/Crypto'
import type * as Network from '../src/protocol/Network'
import { dayMs, hourMs } from '../src/protocol/Time'
import type { EventType } from '../src/protocol/Webhook'
import { type GasProduct, webhooks } from './schema'
import { columnsIn, decoderOf, rowsOf, type Selects, type Values } from './select'

/** An event as it is written. Ids are made from it, so that the same event has the same id. */
export type WebhookEvent = {
  type: EventType | 'webhook.test'
  /** Only for this endpoint, whatever it takes. */
  endpoint?: string
  /** Id of the payment, order or network. Messages about it are sent in the order of its events. */
  subject: string
  /** Tells two events of one type and subject apart. */
  occurrence: string
  /** Unix ms. */
  at: number
  /** JSON without bigint. */
  data: Readonly<Record<string, unknown>>
}

/** What is written from now on, until the next call. */
export type Subscriptions = {
  endpoints: readonly Subscription[]
  /** Gas of a UTC day, by product. Reaching it is the event `budget.spent`. */
  gasPerDay: readonly { network: Network.Id; product: GasProduct; wei: bigint }[]
}

/** An alert for one place, which is an endpoint with few messages. */
export type NewAlert = {
  endpoint: string
  origin: string
  type: WebhookEvent['type']
  /** What it is about: one text for the failure of a thing and for its end. */
  subject: string
  body: string
  /**
   * `begins`: a state that lasts, told again after a day. `ends`: its end, told once, and only after
   * its begin. `once`: something that has no end.
   */
  phase: 'begins' | 'ends' | 'once'
  /** Unix ms. */
  at: number
}

type Subscription = { endpoint: string; origin: string; types: readonly EventType[] }

/** A message for one endpoint. Times are unix ms. */
export type Message = typeof webhooks.$inferSelect

/** How an attempt ended. */
type Attempt = {
  seq: number
  status: number | undefined
  error: string | undefined
  at: number
}

/** What the outbox keeps; the oldest messages beyond it are given up or deleted. */
export type Bounds = {
  /** Waiting messages of one endpoint. */
  waitingMax: number
  /** Ended messages of one endpoint. */
  endedMax: number
  /** How long an ended message is kept, ms. */
  endedMs: number
}

export type SweepReason = 'expired' | 'dropped' | 'removed'

/** Messages that were given up, by endpoint. */
type Swept = {
  endpoint: string
  origin: string
  reason: SweepReason
  count: number
}

/**
 * The outbox of webhooks. Events of payments, deliveries, orders and budgets are written by the
 * commits of those; `subscribe` says for which endpoints. None of the writes here waits for the
 * disk: what a power loss undoes is sent again with the same id.
 */
export type WebhookLedger = ReturnType<typeof createWebhookMessages> & {
  subscribe(subscriptions: Subscriptions): void
  /** Notifies inside the transaction that writes messages, which may still be rolled back. */
  onMessage(listener: () => void): void
  /** Writes an event that no other commit writes. */
  add(event: WebhookEvent): Promise<void>
}

const decode = decoderOf(webhooks)

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

/** All but what writes the messages of events. */
export function createWebhookMessages(base: MessagesBase) {
  return { ...readMessages(base), ...changeMessages(base), sweep: createSweep(base) }
}

function readMessages(base: Selects) {
  const { all, one } = rowsOf(base, webhooks, decode)
  const due = all(`WHERE ${isDue}`)
  const counts = base.select<{ endpoint: string; count: number }>(
    `SELECT endpoint, count(*) AS count FROM webhooks WHERE state = 'waiting'
     GROUP BY endpoint ORDER BY endpoint`,
  )
  const newest = all('WHERE state = $state ORDER BY seq DESC LIMIT $limit')
  const byId = one('WHERE id = $id')
  return {
    /** Messages that may be sent, the longest due first: of each subject only the oldest waiting. */
    due: ({ endpoint, at, limit }: { endpoint: string; at: number; limit: number }) =>
      due({ endpoint, at, limit }),
    /** Waiting messages by endpoint. */
    async countWaiting(): Promise<ReadonlyMap<string, number>> {
      return new Map((await counts()).map(({ endpoint, count }) => [endpoint, count]))
    },
    /** Waiting messages of an operator's list first, then failed ones, then the newest of the rest. */
    async list(limit: number): Promise<readonly Message[]> {
      const states = ['waiting', 'failed', 'delivered'] as const
      return (await Promise.all(states.map((state) => newest({ state, limit })))).flat()
    },
    find: (id: string) => byId({ id }),
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

/** How long an alert is sent, ms: nine attempts. */
const alertMs = 2 * hourMs

const toldAlerts = (condition: string) => `SELECT seq, type, state, created_at FROM webhooks
  WHERE ${condition} AND endpoint = $endpoint AND subject = $subject`

/**
 * The id names the newest alert about the subject, so of two writers that saw the same one only the
 * first writes. Both parts of `told` have an index.
 */
export const alertSql = `WITH told AS (${toldAlerts(isWaiting)} UNION ALL ${toldAlerts('ended_at IS NOT NULL')}),
  newest AS (SELECT * FROM told ORDER BY seq DESC LIMIT 1)
  INSERT INTO webhooks (id, endpoint, origin, type, subject, body, state, attempts, created_at,
    due_at, expires_at)
  SELECT CAST($id AS TEXT) || '_' || coalesce((SELECT seq FROM newest), 0), CAST($endpoint AS TEXT),
    CAST($origin AS TEXT), CAST($type AS TEXT), CAST($subject AS TEXT), CAST($body AS TEXT), 'waiting', 0,
    CAST($at AS BIGINT), CAST($at AS BIGINT), CAST($expiresAt AS BIGINT)
  WHERE CASE CAST($phase AS TEXT) WHEN 'ends' THEN EXISTS (SELECT 1 FROM newest WHERE type <> $type)
    ELSE NOT EXISTS (SELECT 1 FROM told WHERE type = $type AND created_at > $hourAt)
      AND NOT EXISTS (SELECT 1 FROM newest WHERE $phase = 'begins' AND type = $type
        AND state <> 'failed' AND created_at > $dayAt) END
  ON CONFLICT DO NOTHING RETURNING seq`

function changeMessages({ change, dialect }: MessagesBase) {
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
  const alert = change<{ seq: number }>('soon', alertSql)
  return {
    /**
     * Writes an alert unless its rules forbid it: at most one an hour of a type and a subject, also
     * after a restart and by several gateways at once. Resolves with whether it was written.
     */
    alert: async ({ endpoint, type, subject, at, ...rest }: NewAlert) => {
      const key = JSON.stringify([endpoint, type, subject])
      const id = `evt_${Crypto.sha256(key).slice(0, 24)}`
      const from = { hourAt: at - hourMs, dayAt: at - dayMs, expiresAt: at + alertMs }
      return (await alert({ id, endpoint, type, subject, at, ...rest, ...from })).length > 0
    },
    /** Also for a message that was given up during the attempt. */
    async delivered(attempt: Attempt) {
      await delivered(of(attempt))
    },
    async failed(attempt: Attempt) {
      await failed(of(attempt))
    },
    /** A message that no longer waits stays as it is, here and below. */
    async retry(attempt: Attempt, dueAt: number) {
      await retry({ ...of(attempt), dueAt })
    },
    /** Gives up all waiting messages of an endpoint. Resolves with their number. */
    giveUp: async (endpoint: string, reason: string, at: number) =>
      (await end({ endpoint, reason, at })).length,
    /** Lets waiting messages of these endpoints live at least until a time. */
    async prolong(endpoints: readonly string[], until: number) {
      if (endpoints.length > 0) await prolong({ endpoints: JSON.stringify(endpoints), until })
    },
    /** Makes a message due now, whatever its state. Undefined when there is none. */
    async resend(id: string, { at, expiresAt }: { at: number; expiresAt: number }) {
      const [row] = await resend({ id, at, expiresAt })
      return row && decode(row)
    },
  }
}

/** Most ended messages that one commit deletes. */
const deletedMax = 1_000

/**
 * Gives up what has expired and what exceeds the bounds, and deletes old ended messages. `endpoints`: the
 * configured ones. Reads first, so that nothing to do writes nothing.
 */
function createSweep(base: MessagesBase) {
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
  return async (at: number, endpoints: readonly string[], bounds: Bounds) => {
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
