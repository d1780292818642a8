import type { Ledger } from '../../db/Ledger'
import { createSubscribers } from '../../db/outbox'
import { createJobReads, createTransactionReads } from '../../db/payment-reads'
import { createCommits } from '../../db/postgres/commits'
import { createDeliveries } from '../../db/postgres/deliveries'
import { createEntitlements } from '../../db/postgres/entitlements'
import { PostgresError } from '../../db/postgres/errors'
import type { Fences } from '../../db/postgres/fences'
import { installFunctions, searchFunctions } from '../../db/postgres/functions'
import { type Lines, openLines } from '../../db/postgres/line-pool'
import { createReader, createSharedPaymentReads, selectsOf } from '../../db/postgres/reader'
import { createRefunds } from '../../db/postgres/refunds'
import { createSettling } from '../../db/postgres/settling'
import { startGas } from '../../db/postgres/sums'
import { recoverUses } from '../../db/sqlite/entitlements'
import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import * as Event from '../../db/WebhookEvent'
import type { Subscriptions } from '../../db/webhooks'
import { eventTypes } from '../../src/protocol/Webhook'
import { freshDatabase, hasPostgres } from './postgres'
import { at } from './settling-rows'

/** The part of a ledger that settlement uses, and what a test sees of it. */
export type Settling = Pick<
  Ledger,
  | 'payments'
  | 'transactions'
  | 'jobs'
  | 'settling'
  | 'deliveries'
  | 'gas'
  | 'entitlements'
  | 'refunds'
>

export type SettlingLedger = {
  ledger: Settling
  /** Another gateway's ledger of the same rows; SQLite has only one. */
  other: Settling
  /** Ids of changed payments and jobs, as the listeners of `ledger` were told. */
  changed: string[]
  /** Runs a statement that both databases understand. */
  run(statement: string): Promise<readonly Record<string, unknown>[]>
  /** Messages of the events about a subject, in the order of their writing. */
  events(subject: string): Promise<readonly { type: string; body: string }[]>
  subscribe(gasPerDay: Subscriptions['gasPerDay']): void
  /** Gives back the uses of processes that are gone. */
  recover(): Promise<void>
  close(): Promise<void>
}

const now = () => at
const endpoints = [{ endpoint: 'e'.repeat(16), origin: 'https://hooks.test', types: eventTypes }]

export async function openSqlite(): Promise<SettlingLedger> {
  const db = openInMemory({ now })
  const ledger = createLedger(db)
  const changed: string[] = []
  ledger.onChange({ payment: (id) => void changed.push(id), job: (id) => void changed.push(id) })
  ledger.webhooks.subscribe({ endpoints, gasPerDay: [] })
  return {
    ledger,
    other: ledger,
    changed,
    run: async (statement) => db.sqlite.query(statement).all() as Record<string, unknown>[],
    events: async (subject) =>
      db.sqlite
        .query<{ type: string; body: string }, [string]>(
          'SELECT type, body FROM webhooks WHERE subject = ? ORDER BY seq',
        )
        .all(subject),
    subscribe: (gasPerDay) => ledger.webhooks.subscribe({ endpoints, gasPerDay }),
    recover: async () => recoverUses(db),
    close: async () => db.close(),
  }
}

type Gateway = Awaited<ReturnType<typeof openGateway>>

/** One process over a database. */
export async function openGateway(
  url: string,
  options: { gateway?: string; fences?: Fences } = {},
) {
  const opened = await openLines({
    servers: [{ connectionString: url }],
    name: 'test',
    session: () => [searchFunctions()],
    monotonic: () => performance.now(),
  })
  let deadlocks = 0
  const lines: Lines = {
    ...opened,
    run: (kind, work) =>
      opened.run(kind, work).catch((error) => {
        // Commits repeat what a deadlock has ended, so no caller sees it.
        if (error instanceof PostgresError && error.code === '40P01') deadlocks++
        throw error
      }),
  }
  const stop = new AbortController()
  const changed: string[] = []
  const events: { type: string; subject: string; body: string }[] = []
  const subscribers = createSubscribers()
  const gateway = options.gateway ?? crypto.randomUUID()
  const commits = createCommits({
    lines,
    gateway,
    messages: {
      takes: (types) => subscribers.takes(types),
      notify: () => undefined,
      async write(_, written) {
        events.push(...written.map((each) => ({ ...each, body: Event.bodyOf(each) })))
      },
    },
    changed: ({ payments, jobs }) => void changed.push(...payments, ...jobs),
    signal: stop.signal,
    monotonic: () => performance.now(),
  })
  const reader = createReader(lines)
  const gas = await startGas(reader, now)
  const changes = { payment: () => undefined, job: () => undefined }
  const parts = { commits, reader, changes, gateway }
  const entitlements = createEntitlements(parts)
  const ledger: Settling = {
    payments: createSharedPaymentReads(reader),
    transactions: createTransactionReads(selectsOf(reader)),
    jobs: createJobReads(selectsOf(reader)),
    settling: createSettling({
      ...parts,
      gas,
      spent: subscribers.spent,
      fences: options.fences,
    }),
    deliveries: createDeliveries(parts),
    gas: gas.totals,
    entitlements,
    refunds: createRefunds(parts),
  }
  return {
    recover: entitlements.recover,
    ...{ ledger, lines, changed, events, gateway, subscribers },
    deadlocks: () => deadlocks,
    close() {
      gas.close()
      stop.abort()
      lines.close()
    },
  }
}

/** A new database with the functions. */
export async function settlingDatabase(): Promise<string> {
  const url = await freshDatabase()
  const lines = await openLines({
    servers: [{ connectionString: url }],
    name: 'test',
    session: () => [],
    monotonic: () => performance.now(),
  })
  await lines.run('commit', installFunctions)
  lines.close()
  return url
}

export async function openPostgres(): Promise<
  SettlingLedger & { url: string; deadlocks(): number }
> {
  const url = await settlingDatabase()
  const [own, other] = (await Promise.all([openGateway(url), openGateway(url)])) as [
    Gateway,
    Gateway,
  ]
  own.subscribers.subscribe({ endpoints, gasPerDay: [] })
  return {
    url,
    deadlocks: () => own.deadlocks() + other.deadlocks(),
    ledger: own.ledger,
    other: other.ledger,
    changed: own.changed,
    run: (statement) => own.lines.run('commit', (query) => query(statement)),
    events: async (subject) =>
      own.events
        .filter((each) => each.subject === subject)
        .map(({ type, body }) => ({ type, body })),
    subscribe: (gasPerDay) => own.subscribers.subscribe({ endpoints, gasPerDay }),
    recover: other.recover,
    async close() {
      own.close()
      other.close()
    },
  }
}

/** The same cases run over both. */
export const ledgers = [
  { name: 'SQLite', open: openSqlite, isThere: true },
  { name: 'PostgreSQL', open: openPostgres, isThere: hasPostgres },
]
