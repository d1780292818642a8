import type { WebhookLedger } from '../WebhookLedger'
import { createMessages, type MessagesBase } from '../webhook-messages'
import type { Group } from './group'
import type { Db } from './open'
import type { Outbox } from './outbox'
import { selectsOf, statement } from './statement'
import { write } from './write'

export function createWebhooks(db: Db, group: Group, outbox: Outbox): WebhookLedger {
  const change: MessagesBase['change'] = <Row>(kind: 'commit' | 'soon', text: string) => {
    const messages = statement<Row>(db, text)
    return kind === 'soon'
      ? (values) => group.addSoon(() => messages().all(values))
      : async (values) => write(db, () => messages().all(values))
  }
  return {
    subscribe: outbox.subscribe,
    onMessage: outbox.onMessage,
    async add(event) {
      await group.addSoon(() => outbox.add(event))
    },
    ...createMessages({ ...selectsOf(db), change }),
  }
}
