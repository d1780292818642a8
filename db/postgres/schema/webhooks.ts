// Written by db/postgres/generate.ts from db/webhooks.ts.
import { at, check, index, integer, oneOf, sequence, sql, table, text } from '../../columns.pg'
import type { MessageState } from '../../WebhookLedger'

export const messageStates = [
  'waiting',
  'delivered',
  'failed',
] as const satisfies readonly MessageState[]

/**
 * The outbox: one row for each event and endpoint, written in the commit of the event. Its CHECKs
 * are few, because a refused row would refuse the payment that it is about.
 */
export const webhooks = table(
  'webhooks',
  {
    /** The order of the events. */
    seq: sequence('seq'),
    /** The `webhook-id`, the same for each attempt. */
    id: text('id').notNull().unique('webhooks_id'),
    /** 16 hex digits, of the URL. The URL is not stored: its path may be a secret. */
    endpoint: text('endpoint').notNull(),
    /** Scheme, host and port of the URL. */
    origin: text('origin').notNull(),
    type: text('type').notNull(),
    /** Id of the payment, of the order or of the network: one after the other for each of them. */
    subject: text('subject').notNull(),
    /** The JSON that is sent. */
    body: text('body').notNull(),
    state: text('state').$type<MessageState>().notNull(),
    attempts: integer('attempts').notNull().default(0),
    /** HTTP status of the last answer. */
    lastStatus: integer('last_status'),
    /** Why the last attempt has no answer, or why there is no further attempt. */
    lastError: text('last_error'),
    createdAt: at('created_at').notNull(),
    dueAt: at('due_at').notNull(),
    /** No attempt begins after this time. */
    expiresAt: at('expires_at').notNull(),
    endedAt: at('ended_at'),
  },
  (self) => [
    index('webhooks_due').on(self.endpoint, self.dueAt).where(sql`state = 'waiting'`),
    index('webhooks_subject')
      .on(self.endpoint, self.subject, self.seq)
      .where(sql`state = 'waiting'`),
    index('webhooks_ended').on(self.endpoint, self.endedAt).where(sql`ended_at IS NOT NULL`),
    check('webhooks_state', oneOf(self.state, messageStates)),
    check('webhooks_ended_at', sql`(${self.state} = 'waiting') = (${self.endedAt} IS NULL)`),
  ],
)
