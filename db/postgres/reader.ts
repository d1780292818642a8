import { postgres as dialect } from '../dialect'
import { createPaymentReads, type PaymentReads } from '../payment-reads'
import { toPayment } from '../rows'
import type { Selects } from '../select'
import type { Query } from './Line'
import type { Lines } from './line-pool'
import { type Json, positional } from './rows'

/** Reads outside of commits. Each statement sees what was committed before it began. */
export type Reader = {
  /** `text` is prepared once for each connection, so pass a constant. */
  all<Row>(text: string, values?: readonly unknown[]): Promise<readonly Row[]>
  /** The first row. */
  one<Row>(text: string, values?: readonly unknown[]): Promise<Row | undefined>
  /** Several statements of one state of the database. */
  snapshot<T>(read: (reader: Reader) => Promise<T>): Promise<T>
}

export function createReader(lines: Lines): Reader {
  return readerOf((work) => lines.run('read', work))
}

type Run = <T>(work: (query: Query) => Promise<T>) => Promise<T>

function readerOf(run: Run): Reader {
  const all = <Row>(text: string, values: readonly unknown[] = []) =>
    run((query) => query<Row>(text, values, { name: statementNameOf(text) }))
  return {
    all,
    one: async <Row>(text: string, values?: readonly unknown[]) =>
      (await all<Row>(text, values))[0],
    snapshot: (read) =>
      run(async (query) => {
        await query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
        try {
          return await read(readerOf((work) => work(query)))
        } finally {
          await query('COMMIT')
        }
      }),
  }
}

/** The reads that both databases have. */
export function selectsOf({ all }: Pick<Reader, 'all'>): Selects {
  return {
    dialect,
    select:
      <Row>(text: string) =>
      (values = {}) =>
        all<Row>(...positional(text, values)),
  }
}

const names = new Map<string, string>()

/** The name under which a connection keeps a statement. */
export function statementNameOf(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  const name = `text_${names.size}`
  names.set(text, name)
  return name
}

/** A statement with more items makes the next items wait too long. */
const itemsMax = 64

/**
 * Reads that come while one is running share the next statement, because a round trip costs more than
 * a row. `read` answers in the order of its items. A statement begins after the calls that it serves,
 * so they see what was committed before them. Calls that share a statement share its error.
 */
export function readTogether<Item, Answer>(
  read: (items: readonly Item[]) => Promise<readonly Answer[]>,
): (item: Item) => Promise<Answer> {
  type Entry = { item: Item; resolve: (answer: Answer) => void; reject: (error: unknown) => void }
  let waiting: Entry[] = []
  let isRunning = false
  const run = async () => {
    const entries = waiting.slice(0, itemsMax)
    waiting = waiting.slice(itemsMax)
    try {
      const answers = await read(entries.map(({ item }) => item))
      for (const [index, { resolve }] of entries.entries()) resolve(answers[index] as Answer)
    } catch (error) {
      for (const { reject } of entries) reject(error)
    }
  }
  const drain = async () => {
    while (waiting.length > 0) await run()
    isRunning = false
  }
  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject })
      if (isRunning) return
      isRunning = true
      // Calls of the same turn share the first statement, too.
      queueMicrotask(drain)
    })
}

export type Selected = { row: Json }

// One row for each that is asked for. The limit keeps the planner at the index, whatever it guesses.
const byMoneys = `SELECT found.row
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    WITH ORDINALITY AS asked (network, asset, payer, nonce, place)
  LEFT JOIN LATERAL (
    SELECT to_jsonb(payments) AS row FROM payments
    WHERE payments.network = asked.network AND lower(payments.asset) = lower(asked.asset)
      AND lower(payments.payer) = lower(asked.payer) AND payments.nonce = asked.nonce LIMIT 1
  ) AS found ON true
  ORDER BY asked.place`

export function createSharedPaymentReads(reader: Reader): PaymentReads {
  const reads = createPaymentReads(selectsOf(reader))
  const find = async (moneys: readonly Parameters<PaymentReads['find']>[0][]) => {
    const [first] = moneys
    // A payment by itself waits for it: it costs half of the statement for many.
    if (first !== undefined && moneys.length === 1) return [await reads.find(first)]
    const rows = await reader.all<Selected>(byMoneys, [
      moneys.map(({ network }) => network),
      moneys.map(({ asset }) => asset),
      moneys.map(({ payer }) => payer),
      moneys.map(({ nonce }) => nonce.toLowerCase()),
    ])
    return rows.map(({ row }) => (row === null ? undefined : toPayment(row)))
  }
  return { ...reads, find: readTogether(find) }
}
