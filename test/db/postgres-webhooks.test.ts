import { describe, expect, test } from 'bun:test'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, openInMemory } from '../../db/sqlite/open'
import type { Message, WebhookEvent, WebhookLedger } from '../../db/webhooks'
import { hasPostgres } from '../harness/postgres'
import { type Books, openBooks } from '../harness/postgres-books'
import { createRandom, type Random } from '../soak/random'

/** The outbox in PostgreSQL, compared with that in SQLite over the same random calls. */

const seeds = Number(process.env.SEEDS ?? 2)
const steps = 150
const start = Date.parse('2026-11-20T10:00:00Z')
const day = 86_400_000
const endpoints = ['a', 'b', 'c'].map((letter) => letter.repeat(16))
const types = ['payment.confirmed', 'delivery.failed', 'order.held', 'network.paused'] as const
const subjects = ['pay_1', 'pay_2', 'ord_1', 'eip155:8453']

type Both = {
  db: Db
  sqlite: WebhookLedger
  books: Books
  random: Random
  now: number
  /** Ids of all messages, also of deleted ones. */
  ids: Set<string>
  /** Ids of those that are kept. */
  kept: readonly string[]
  notified: { sqlite: number; postgres: number }
}

async function openBoth(seed: string): Promise<Both> {
  const db = openInMemory({ now: () => start })
  const ledger = createLedger(db)
  const books = await openBooks(ledger)
  const notified = { sqlite: 0, postgres: 0 }
  ledger.webhooks.onMessage(() => void notified.sqlite++)
  books.webhooks.onMessage(() => void notified.postgres++)
  const random = createRandom(seed)
  const sqlite = ledger.webhooks
  return { db, sqlite, books, random, now: start, ids: new Set(), kept: [], notified }
}

/** A message without the number that each database gives it. */
function facts({ seq: _, ...message }: Message) {
  return message
}

async function same<T>(
  both: Both,
  what: string,
  ask: (ledger: WebhookLedger) => Promise<T>,
): Promise<T> {
  const expected = await ask(both.sqlite)
  expect([what, await ask(both.books.webhooks)]).toEqual([what, expected])
  return expected
}

function subscribe({ sqlite, books, random }: Both): void {
  const chosen = endpoints.filter(() => random.chance(0.8))
  const subscriptions = {
    endpoints: chosen.map((endpoint) => ({
      endpoint,
      origin: `https://${endpoint}.test`,
      types: types.filter(() => random.chance(0.8)),
    })),
    gasPerDay: [],
  }
  for (const ledger of [sqlite, books.webhooks]) ledger.subscribe(subscriptions)
}

function eventOf({ random, now }: Both): WebhookEvent {
  const text = random.pick(['plain', 'nul \0', '\ud800 half', 'caf\u00e9'])
  return {
    type: random.pick(types),
    subject: random.pick(subjects),
    // Some are the same event again.
    occurrence: String(random.between(0, 25)),
    // Their ends are not at the same time.
    at: now - random.between(0, 9) * 1_000,
    data: { text, now },
  }
}

/** The lists, which have every message of these few. */
async function compareAll(both: Both): Promise<void> {
  const limit = both.random.chance(0.1) ? 2 : 999
  const list = await same(both, 'list', async (ledger) => (await ledger.list(limit)).map(facts))
  await same(both, 'counts', async (ledger) => [...(await ledger.countWaiting())])
  const endpoint = both.random.pick(endpoints)
  const query = { endpoint, at: both.now, limit: both.random.between(1, 4) }
  await same(both, 'due', async (ledger) => (await ledger.due(query)).map(facts))
  expect(both.notified.postgres).toBe(both.notified.sqlite)
  both.kept = list.map(({ id }) => id)
  for (const id of both.kept) both.ids.add(id)
}

/** One attempt ends, or two at once. */
async function attempt(both: Both): Promise<void> {
  const { random, now } = both
  if (both.kept.length === 0) return
  const id = random.pick(random.chance(0.9) ? both.kept : [...both.ids])
  const status = random.chance(0.5) ? random.pick([200, 410, 503]) : undefined
  const error = status === undefined ? random.pick(['timeout', 'caf\u00e9']) : undefined
  const call = random.pick(['delivered', 'failed', 'retry', 'retry'] as const)
  const dueAt = now + random.between(0, 3) * 1_000
  await same(both, call, async (ledger) => {
    const message = await ledger.find(id)
    // Deleted: SQLite may give its number to another message.
    if (message === undefined) return 'none'
    const ended = { seq: message.seq, status, error, at: now }
    if (call === 'retry') return ledger.retry(ended, dueAt)
    return ledger[call](ended)
  })
}

async function step(both: Both): Promise<void> {
  const { random } = both
  both.now += random.between(0, 2) * 1_000
  const { now } = both
  const kind = random.between(0, 18)
  const chosen = endpoints.filter(() => random.chance(0.7))
  const endpoint = random.pick(endpoints)
  if (kind < 7) {
    const events = Array.from({ length: random.between(1, 4) }, () => eventOf(both))
    await same(both, 'add', async (ledger) => {
      for (const event of events) await ledger.add(event)
    })
  } else if (kind < 13) await attempt(both)
  else if (kind === 13) subscribe(both)
  else if (kind === 14) {
    await same(both, 'give up', (ledger) => ledger.giveUp(endpoint, 'gone', now))
  } else if (kind === 15) {
    const until = now + day - random.between(-9, 9) * 1_000
    await same(both, 'prolong', (ledger) => ledger.prolong(chosen, until))
  } else if (kind === 16 && both.ids.size > 0) {
    const id = random.chance(0.2) ? 'evt_none\0' : random.pick([...both.kept, ...both.ids])
    const times = { at: now, expiresAt: now + random.between(1, 3) * 1_000 }
    await same(both, 'resend', async (ledger) => {
      const message = await ledger.resend(id, times)
      return message && facts(message)
    })
  } else if (kind >= 17) {
    // Some messages have expired, and some have not.
    if (random.chance(0.2)) both.now += day - 9_000
    const bounds = {
      waitingMax: random.between(3, 12),
      endedMax: random.between(3, 20),
      endedMs: random.between(0, 60) * 1_000 + (random.chance(0.8) ? day : 0),
    }
    await same(both, 'sweep', (ledger) => ledger.sweep(both.now, chosen, bounds))
  }
}

describe.skipIf(!hasPostgres)('the outbox in PostgreSQL', () => {
  for (let seed = 1; seed <= seeds; seed++)
    test(`messages and their order are those of SQLite, seed ${seed}`, async () => {
      const both = await openBoth(`outbox ${seed}`)
      subscribe(both)
      for (let each = 0; each < steps; each++) {
        await step(both)
        if (each % 2 === 0) await compareAll(both)
      }
      expect(both.ids.size).toBeGreaterThan(20)
      both.books.close()
      both.db.close()
    })
})
