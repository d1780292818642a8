import { afterAll, test } from 'bun:test'
import { getTableName } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/bun-sqlite'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'
import { createAuthorizationReads } from '../../db/authorizations'
import type { JobRider, Ledger, OrderRows, RowsRefusal } from '../../db/Ledger'
import { createAnswers as answersOnPostgres } from '../../db/postgres/answers'
import { createAuthorizations as authorizationsOnPostgres } from '../../db/postgres/authorizations'
import { type Change, type Commits, createCommits } from '../../db/postgres/commits'
import { isBarred, RefusedError } from '../../db/postgres/errors'
import { installFunctions, searchFunctions } from '../../db/postgres/functions'
import { createGrants as grantsOnPostgres } from '../../db/postgres/grants'
import { connect } from '../../db/postgres/Line'
import { openLines } from '../../db/postgres/line-pool'
import { createOffers as offersOnPostgres } from '../../db/postgres/offers'
import { createOrders as ordersOnPostgres } from '../../db/postgres/orders'
import { createReader } from '../../db/postgres/reader'
import { type Json, toJson } from '../../db/postgres/rows'
import { productRows } from '../../db/postgres/settling'
import { type PaymentRow, payments } from '../../db/schema'
import { decoderOf } from '../../db/select'
import { createAnswers } from '../../db/sqlite/answers'
import { createAuthorizationStatements, createAuthorizations } from '../../db/sqlite/authorizations'
import { createGrants } from '../../db/sqlite/grants'
import { createLedger } from '../../db/sqlite/ledger'
import { createOffers } from '../../db/sqlite/offers'
import { openInMemory } from '../../db/sqlite/open'
import { createOrders } from '../../db/sqlite/orders'
import { selectsOf } from '../../db/sqlite/statement'
import { createOutbox } from '../../db/sqlite/webhooks'
import { createGroup, RefusedError as SqliteRefusedError, write } from '../../db/sqlite/write'
import * as Event from '../../db/WebhookEvent'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { eventTypes } from '../../src/protocol/Webhook'
import { freshDatabase, hasPostgres } from './postgres'

/** The ledgers of the products over one database, and what settlement does with their rows. */
export type Products = Pick<
  Ledger,
  'orders' | 'grants' | 'authorizations' | 'answers' | 'offers'
> & {
  /** Writes a row as it is. */
  insert<T extends SQLiteTable>(table: T, row: T['$inferInsert']): Promise<void>
  /** All rows of a table. */
  rows<T extends SQLiteTable>(table: T): Promise<readonly T['$inferSelect'][]>
  /** Writes the order of a payment that is stored. Undefined: written. */
  order(rows: OrderRows, payment: { id: string; hash: Hex }): Promise<RowsRefusal | undefined>
  /** Writes the rider of a job with this hash. */
  ride(rider: JobRider, hash: Hex): Promise<RowsRefusal | undefined>
  /** Writes the payment that settles the authorization of its id. */
  settle(row: PaymentRow): Promise<RowsRefusal | undefined>
  /** The events since the last call. */
  events(): readonly { type: string; body: string }[]
  close(): void
}

/** Answers that a sweep of the harness deletes in one commit. */
export const portion = 4

const takesAll = { endpoint: 'https://a.example/', origin: 'https://a.example', types: eventTypes }

export function sqliteProducts(): Products {
  const db = openInMemory({ now: () => 1 })
  const outbox = createOutbox(db)
  outbox.subscribe({ endpoints: [takesAll], gasPerDay: [] })
  const orders = createOrders(db, outbox)
  const grants = createGrants(db, outbox)
  const attempt = async (change: () => void) => {
    try {
      write(db, change)
      return undefined
    } catch (error) {
      grants.riders.undo()
      if (error instanceof SqliteRefusedError) return error.reason
      throw error
    }
  }
  let seen = 0
  return {
    orders: orders.ledger,
    grants: grants.ledger,
    authorizations: createAuthorizations(
      createGroup(db),
      createAuthorizationStatements(db),
      createAuthorizationReads(selectsOf(db)),
    ),
    answers: createAnswers(db),
    offers: createOffers(db),
    insert: async (table, row) => void drizzle(db.sqlite).insert(table).values(row).run(),
    rows: async (table) => drizzle(db.sqlite).select().from<SQLiteTable>(table).all(),
    order: (rows, { id, hash }) =>
      attempt(() => orders.riders.insert(rows, { id, transaction: hash })),
    ride: (rider, hash) =>
      attempt(() => {
        if (rider.kind === 'order') orders.riders.ride(rider, hash)
        if (rider.kind === 'grant') grants.riders.ride(rider, hash)
      }),
    async settle(row) {
      const fresh = [{ row, rows: { settles: 'authorization' } as const }]
      const transaction = transactionOf(row.transactionHash)
      const end = await createLedger(db).settling.launch({ transaction, fresh, again: [] })
      if (end.kind === 'known') throw new Error('the money is known')
      return end.kind === 'refused' ? end.reason : undefined
    },
    events() {
      const query = db.sqlite.query<{ seq: number; type: string; body: string }, [number]>(
        'SELECT seq, type, body FROM webhooks WHERE seq > ? ORDER BY seq',
      )
      const found = query.all(seen)
      seen = found.at(-1)?.seq ?? seen
      return found.map(({ type, body }) => ({ type, body }))
    },
    close: () => db.close(),
  }
}

/** Functions that call those of products as settlement does it. */
const callers = [
  `CREATE OR REPLACE FUNCTION test_order(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    PERFORM insert_order(input->'rows', input->>'id', input->>'hash');
    RETURN '{"value": null}';
  END $$`,
  `CREATE OR REPLACE FUNCTION test_ride(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    RETURN jsonb_build_object('value', CASE input->'rider'->>'kind'
      WHEN 'order' THEN ride_order(input->'rider', input->>'hash')
      ELSE ride_grant(input->'rider', input->>'hash')
    END);
  END $$`,
  `CREATE OR REPLACE FUNCTION test_settle(input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO payments
    SELECT * FROM jsonb_populate_record(NULL::payments, settle_authorization(input));
    RETURN '{"value": null}';
  END $$`,
]

/** Prepares a database that has the schema. */
export async function prepare(url: string): Promise<void> {
  const line = await connect({
    client: { connectionString: url },
    session: [],
    onEnd: () => undefined,
  })
  await line.run(async (query) => {
    await installFunctions(query)
    for (const caller of callers) await query(caller)
  })
  line.close()
}

/** One gateway on a database that is prepared. */
export async function postgresProducts(url: string): Promise<Products> {
  const stop = new AbortController()
  const lines = await openLines({
    servers: [{ connectionString: url }],
    name: 'test',
    session: () => [searchFunctions()],
    monotonic: () => performance.now(),
  })
  const reader = createReader(lines)
  let events: { type: string; body: string }[] = []
  const commits = createCommits({
    lines,
    gateway: crypto.randomUUID(),
    messages: {
      takes: () => true,
      notify: () => undefined,
      async write(_, written) {
        events.push(...written.map((each) => ({ type: each.type, body: Event.bodyOf(each) })))
      },
    },
    changed: () => undefined,
    monotonic: () => performance.now(),
    signal: stop.signal,
  })
  const parts = { commits, reader, gateway: crypto.randomUUID() }
  return {
    orders: ordersOnPostgres(parts),
    grants: grantsOnPostgres(parts),
    authorizations: authorizationsOnPostgres(parts),
    answers: answersOnPostgres(parts, { portion }),
    offers: offersOnPostgres(parts, () => undefined),
    ...settlementOf(commits),
    async insert(table, row) {
      const name = getTableName(table)
      const text = `INSERT INTO ${name} SELECT * FROM jsonb_populate_record(NULL::${name}, $1::jsonb)`
      await lines.run('commit', (query) => query(text, [JSON.stringify(toJson(table, row))]))
    },
    async rows(table) {
      const name = getTableName(table)
      const found = await reader.all<{ row: Json }>(`SELECT to_jsonb(${name}) AS row FROM ${name}`)
      return found.map(({ row }) => decoderOf(table)(row))
    },
    events() {
      const found = events
      events = []
      return found
    },
    close() {
      stop.abort()
      lines.close()
    },
  }
}

/** What settlement does with the rows of products. */
function settlementOf(commits: Commits): Pick<Products, 'order' | 'ride' | 'settle'> {
  const attempt = async (change: Change<unknown>) => {
    try {
      await commits.add(change)
      return undefined
    } catch (error) {
      if (error instanceof RefusedError) return error.reason
      if (isBarred(error)) return 'money-authorized'
      throw error
    }
  }
  const read = () => undefined
  return {
    order(rows, { id, hash }) {
      const input = { rows: productRows.order(rows), id, hash }
      return attempt({ call: 'test_order', input, key: id, read })
    },
    ride(rider, hash) {
      const { types, of } = productRows.events
      const input = { rider: productRows.rider(rider), hash }
      const events = { types, of: (ridden: Json) => of(rider, ridden) }
      return attempt({ call: 'test_ride', input, key: 'ride', read, events })
    },
    settle: (row) =>
      attempt({ call: 'test_settle', input: toJson(payments, row), key: row.id, read }),
  }
}

/** The same over a new database of its own. */
export async function freshProducts(): Promise<Products> {
  const url = await freshDatabase()
  await prepare(url)
  return postgresProducts(url)
}

type Run = (ledger: Products) => Promise<void>

/** Makes tests that run over one database of each kind, which they share. */
export function eachProducts(): (title: string, run: Run) => void {
  const opened: Promise<Products>[] = []
  afterAll(async () => {
    for (const ledger of opened) (await ledger).close()
  })
  const kinds = { SQLite: async () => sqliteProducts(), PostgreSQL: freshProducts }
  const runners = Object.entries(kinds).map(([kind, open]) => {
    let ledger: Promise<Products> | undefined
    const get = () => {
      if (ledger !== undefined) return ledger
      ledger = open()
      opened.push(ledger)
      return ledger
    }
    const run = test.skipIf(kind === 'PostgreSQL' && !hasPostgres)
    return (title: string, body: Run) => run(`${title}, on ${kind}`, async () => body(await get()))
  })
  return (title, run) => {
    for (const each of runners) each(title, run)
  }
}

let addresses = 0

/** An address with letters, which no other test of the process has. */
export function newAddress(): Address {
  return Crypto.checksum((++addresses).toString(16).padStart(38, '0').padStart(40, 'af'))
}

/** A transaction that pays, in the shortest form. */
function transactionOf(hash: Hex) {
  return {
    hash,
    network: 'eip155:4663',
    relayer: account(0).address,
    nonce: Number.parseInt(hash.slice(-6), 16),
    kind: 'payment',
    product: 'gateway',
    to: account(0).address,
    raw: '0x02',
    gasLimit: 1n,
    maxFeeWei: 1n,
    maxTipWei: 1n,
    state: 'sent',
    createdAt: 1,
    firstSentAt: 1,
    blockNumber: null,
  } as const
}
