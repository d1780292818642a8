import { describe, expect, test } from 'bun:test'
import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import type { WebhookEvent } from '../../db/webhooks'
import { dayMs } from '../../src/protocol/Time'
import { begin, hourMs } from '../harness/book-rows'
import { hasPostgres } from '../harness/postgres'
import { type Books, openBooks } from '../harness/postgres-books'

/** Messages in the transactions of their events, and books that several gateways write. */

const endpoint = 'e'.repeat(16)
const reads = createLedger(openInMemory({ now: () => begin }))

function eventOf(occurrence: string): WebhookEvent {
  const data = { occurrence }
  return { type: 'order.held', subject: 'ord_1', occurrence, at: begin, data }
}

/** A change of a value, with an event. */
function change({ commits }: Books, value: string) {
  return commits.add({
    call: 'set_pause',
    input: { key: 'value', pause: { kind: 'merchant', name: value, at: begin }, is_pause: true },
    key: 'meta',
    read: () => value,
    events: { types: ['order.held'], of: () => [eventOf(value)] },
  })
}

async function stateOf({ reader, webhooks }: Books) {
  const [row] = await reader.all<{ value: string }>(
    "SELECT value::jsonb->-1->>'name' AS value FROM meta WHERE key = 'value'",
  )
  const due = await webhooks.due({ endpoint, at: begin, limit: 10 })
  return { value: row?.value, due: due.map(({ body }) => JSON.parse(body).data.occurrence) }
}

function subscribe({ webhooks }: Books): void {
  const origin = 'https://hooks.test'
  webhooks.subscribe({ endpoints: [{ endpoint, origin, types: ['order.held'] }], gasPerDay: [] })
}

describe.skipIf(!hasPostgres)('the messages of commits', () => {
  test('a message is due when listeners learn of it, and nothing is written unasked', async () => {
    const books = await openBooks(reads)
    await change(books, 'one')
    expect(await stateOf(books)).toEqual({ value: 'one', due: [] })
    subscribe(books)
    const { promise, resolve } = Promise.withResolvers<unknown>()
    books.webhooks.onMessage(() => resolve(stateOf(books)))
    expect(await change(books, 'two')).toBe('two')
    expect(await promise).toEqual({ value: 'two', due: ['two'] })
    books.close()
  })

  test('error: a change whose message cannot be written is not written, nor is it the other way', async () => {
    const books = await openBooks(reads)
    subscribe(books)
    let told = 0
    books.webhooks.onMessage(() => void told++)
    await books.lines.run('commit', (query) =>
      query('ALTER TABLE webhooks ADD CONSTRAINT full_table CHECK (false) NOT VALID'),
    )
    expect(await change(books, 'one').catch(({ code }) => code)).toBe('23514')
    expect(await stateOf(books)).toEqual({ value: undefined, due: [] })
    await books.lines.run('commit', (query) =>
      query('ALTER TABLE webhooks DROP CONSTRAINT full_table'),
    )
    const refused = books.commits.add({
      call: 'refuse_all',
      input: {},
      key: 'meta',
      read: () => undefined,
      events: { types: ['order.held'], of: () => [eventOf('refused')] },
    })
    expect(await refused.catch(({ code }) => code)).toBe('42883')
    expect([await stateOf(books), told]).toEqual([{ value: undefined, due: [] }, 0])
    expect(await change(books, 'two')).toBe('two')
    expect([await stateOf(books), told]).toEqual([{ value: 'two', due: ['two'] }, 1])
    books.close()
  })
})

describe.skipIf(!hasPostgres)('several gateways', () => {
  test('counts are added up, whatever their order, and an event is written once', async () => {
    const first = await openBooks(reads)
    const second = await openBooks(reads, { url: first.url })
    const day = begin - (begin % dayMs)
    const routes = Array.from({ length: 20 }, (_, index) => `/${index}`)
    const counts = routes.map((route) => ({
      ...({ merchant: 'shop', route, client: 'curl', step: 'asked', detail: '' } as const),
      times: 2,
    }))
    for (const books of [first, second]) subscribe(books)
    const rounds = Array.from({ length: 20 }, () => [
      first.sales.addRequests(day, counts, day),
      second.sales.addRequests(day, counts.toReversed(), day),
      ...[first, second].map(({ webhooks }) => webhooks.add(eventOf('same'))),
    ])
    await Promise.all(rounds.flat())
    const sums = counts.map((count) => ({ ...count, times: 80 }))
    expect(await second.sales.requestsOf(day)).toEqual(
      sums.toSorted((one, other) => (one.route < other.route ? -1 : 1)),
    )
    expect(await first.webhooks.list(10)).toHaveLength(1)
    // Only one of them sends.
    const { due } = (await openBooks(reads, { url: first.url, isSender: () => false })).webhooks
    expect(await due({ endpoint, at: begin, limit: 10 })).toEqual([])
    expect((await stateOf(second)).due).toEqual(['same'])
    for (const books of [first, second]) books.close()
  })

  test('an alert that all of them write at once is written once, and so is its end', async () => {
    const first = await openBooks(reads)
    const second = await openBooks(reads, { url: first.url })
    const alert = { endpoint, origin: 'https://slack.test', subject: 'network base', body: '{}' }
    const all = (
      type: 'network.paused' | 'network.resumed',
      phase: 'begins' | 'ends',
      at: number,
    ) =>
      Promise.all(
        [first, second, first, second].map(({ webhooks }) =>
          webhooks.alert({ ...alert, type, phase, at }),
        ),
      )
    const written = [
      await all('network.resumed', 'ends', begin),
      await all('network.paused', 'begins', begin),
      await all('network.resumed', 'ends', begin + 1),
      await all('network.paused', 'begins', begin + hourMs - 1),
      await all('network.paused', 'begins', begin + hourMs),
      await all('network.paused', 'begins', begin + 2 * hourMs),
    ]
    expect(written.map((each) => each.filter(Boolean).length)).toEqual([0, 1, 1, 0, 1, 0])
    for (const books of [first, second]) books.close()
  })
})
