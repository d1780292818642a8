import { createSubscribers, type Subscribers } from '../outbox'
import { createWebhookMessages, type MessagesBase, type WebhookLedger } from '../webhooks'
import type { Messages } from './commits'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { positional } from './rows'

type Options = Pick<Parts, 'commits' | 'reader'> & {
  outbox: Outbox
  /** Whether this gateway sends messages. Others write them, and have none that are due. */
  isSender?: () => boolean
}

export function createWebhooks({ commits, reader, outbox, isSender }: Options): WebhookLedger {
  const messages = createWebhookMessages({ ...selectsOf(reader), change: changeOf({ commits }) })
  return {
    subscribe: outbox.subscribe,
    onMessage: outbox.onMessage,
    async add(event) {
      const rows = outbox.rowsOf([event])
      if (rows.length === 0) return
      await commits.addSoon({
        call: 'add_messages',
        input: { messages: rows },
        key: 'webhook',
      })
      outbox.notify()
    },
    ...messages,
    due: async (query) => (isSender?.() === false ? [] : messages.due(query)),
  }
}

/** Makes statements that change rows, and may return some. */
export function changeOf({ commits }: Pick<Parts, 'commits'>): MessagesBase['change'] {
  return <Row>(kind: 'commit' | 'soon', text: string) =>
    (values) =>
      commits.run<Row>(kind, ...positional(text, values))
}

/** The subscriptions of this process, and what writes their messages in commits. */
type Outbox = Subscribers & Messages

/** Twin: db/sqlite/webhooks.ts. */
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
