import { createSubscribers, type Subscribers } from '../outbox'
import type { Messages } from './commits'

/** The subscriptions of this process, and what writes their messages in commits. */
export type Outbox = Subscribers & Messages

/** Twin: db/sqlite/outbox.ts. */
export function createOutbox(): Outbox {
  const subscribers = createSubscribers()
  return {
    ...subscribers,
    async write(query, events) {
      const messages = subscribers.rowsOf(events)
      if (messages.length === 0) return
      const input = JSON.stringify({ messages })
      await query('SELECT add_messages($1::jsonb)', [input], { name: 'add_messages' })
    },
  }
}
