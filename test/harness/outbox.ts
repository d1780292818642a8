import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import type { WebhookEvent, WebhookLedger } from '../../db/webhooks'
import type { Webhook } from '../../src/config/Config'
import { createLog } from '../../src/log'
import { parseSecret } from '../../src/protocol/Webhook'
import { createPost, type PostOptions } from '../../src/webhooks/post'
import { createSender, type SenderOptions, endpointOf as targetOf } from '../../src/webhooks/sender'
import { secret } from './receiver'

/** Endpoint of a receiver, which takes every event. */
export function endpointOf(url: string, changes: Partial<Webhook> = {}): Webhook {
  const id = new Bun.CryptoHasher('sha256').update(url).digest('hex').slice(0, 16)
  const secrets = [keyOf(secret)]
  return { id, url: new URL(url), events: ['*'], secrets, allowPrivate: true, ...changes }
}

export function keyOf(text: string): Uint8Array {
  const key = parseSecret(text)
  if (key === undefined) throw new Error('not a secret')
  return key
}

type Options = {
  endpoints: readonly Webhook[]
  posting?: Partial<PostOptions>
  bounds?: SenderOptions['bounds']
  gasPerDay?: SenderOptions['gasPerDay']
  /** The query for due messages; the one of the database by default. */
  due?: ((due: WebhookLedger['due']) => WebhookLedger['due']) | undefined
}

/** A sender over a database in memory, whose clock the test moves. */
export async function startSender({ endpoints, posting, bounds, gasPerDay = [], due }: Options) {
  // Verifiers refuse messages that are old by the time of this machine.
  const clock = { ms: Date.now() }
  const now = () => clock.ms
  const db = openInMemory({ now })
  const ledger = createLedger(db)
  const logged: Record<string, unknown>[] = []
  const counts = new Map<string, number>()
  const post = createPost({ now, ...posting })
  const create = () => {
    const created = createSender({
      ledger: due ? { ...ledger.webhooks, due: due(ledger.webhooks.due) } : ledger.webhooks,
      now,
      random: () => 0.5,
      ended: (result, by = 1) => void counts.set(result, (counts.get(result) ?? 0) + by),
      log: createLog({ write: (line) => void logged.push(JSON.parse(line)), now }),
      gasPerDay,
      bounds,
    })
    const apply = (wanted: readonly Webhook[]) =>
      created.apply(wanted.map((each) => targetOf(each, post, now)))
    return { ...created, apply }
  }
  const sender = create()
  sender.apply(endpoints)
  await sender.recover()
  let serial = 0
  const rows = () =>
    db.sqlite.query('SELECT * FROM webhooks ORDER BY seq').all() as Record<string, unknown>[]
  return {
    ...{ db, ledger, sender, create, clock, logged, counts, rows },
    /** Writes an event about a subject. Resolves with the number that its data has. */
    async add(subject: string, changes: Partial<WebhookEvent> = {}): Promise<number> {
      const data = { serial: ++serial }
      const occurrence = String(serial)
      const type = 'payment.confirmed' as const
      await ledger.webhooks.add({ type, subject, occurrence, at: now(), data, ...changes })
      return serial
    },
    /** Moves the clock, and sends what is due. Resolves when nothing is in progress. */
    async pass(ms: number): Promise<void> {
      clock.ms += ms
      await sender.poll()
      await sender.idle()
    },
    events: () => logged.map(({ event }) => event),
    async [Symbol.asyncDispose]() {
      await sender.stop(0)
      db.close()
    },
  }
}

export type Sending = Awaited<ReturnType<typeof startSender>>
