import type { Database } from 'bun:sqlite'
import { MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads'

type Value = string | number | bigint | boolean | null | Uint8Array

/**
 * Statements of tests over either database, written for SQLite. They run at once, as SQLite's own do,
 * so that a test reads the rows of the moment at which it asks. `Database` of bun:sqlite is one.
 */
export type Sql = {
  query<Row, Values extends Value[] = Value[]>(
    text: string,
  ): {
    all(...values: Values): Row[]
    get(...values: Values): Row | null
    values(...values: Values): unknown[][]
  }
  run(text: string, values?: Value[]): unknown
}

/** SQLite's own connection, with values of `run` in a list as PostgreSQL takes them. */
export function sqliteSql(sqlite: Database): Sql {
  return {
    query: <Row, Values extends Value[]>(text: string) => sqlite.query<Row, Values>(text),
    run: (text, values = []) => sqlite.run(text, values),
  }
}

/** What the thread beside this one answers. */
export type Answer = { names: string[]; rows: unknown[][] } | { error: string; code: string }
export type Question = { url: string; text: string; values: readonly Value[] } | { ended: string }

/** Longest time of a statement, ms. */
const limitMs = 30_000

type Thread = { ask(request: Question): Answer }
let thread: Thread | undefined

/**
 * A connection to a PostgreSQL database. Another thread has it, for which this one waits: a promise
 * would let the service run on before the rows are read.
 */
export function postgresSql(url: string): Sql & { close(): void } {
  const ask = (text: string, values: readonly Value[]) => {
    thread ??= startThread()
    const answer = thread.ask({ url, text: translate(text), values })
    if (!('error' in answer)) return answer
    throw Object.assign(new Error(`${answer.error}: ${text}`), { code: answer.code })
  }
  const objects = <Row>({ names, rows }: { names: string[]; rows: unknown[][] }) =>
    rows.map((row) => Object.fromEntries(names.map((name, at) => [name, asStored(row[at])])) as Row)
  return {
    query: (text) => ({
      all: (...values) => objects(ask(text, values)),
      get: (...values) => objects<never>(ask(text, values))[0] ?? null,
      values: (...values) => ask(text, values).rows,
    }),
    run: (text, values = []) => ask(text, values),
    close: () => void thread?.ask({ ended: url }),
  }
}

/** SQLite has numbers for yes and no. */
function asStored(value: unknown): unknown {
  return typeof value === 'boolean' ? Number(value) : value
}

function startThread(): Thread {
  const shared = new SharedArrayBuffer(4)
  const flag = new Int32Array(shared)
  const { port1: own, port2: port } = new MessageChannel()
  const worker = new Worker(new URL('./sql-thread.ts', import.meta.url), {
    workerData: { shared, port },
    transferList: [port],
  })
  worker.unref()
  return {
    ask(request) {
      Atomics.store(flag, 0, 0)
      own.postMessage(request)
      // A late notice of the answer before ends a wait, too.
      while (Atomics.load(flag, 0) === 0)
        if (Atomics.wait(flag, 0, 0, limitMs) === 'timed-out') throw new Error('no rows in time')
      return receiveMessageOnPort(own)?.message as Answer
    },
  }
}

/**
 * The statement as PostgreSQL takes it: numbered parameters, names with capitals in quotes, and where
 * SQLite counts rows by itself `seq`, or what the database of a test notes. Texts in quotes stay.
 */
export function translate(text: string): string {
  let count = 0
  const [, noted] = text.match(/\bFROM (payments|authorizations)\b/i) ?? []
  const rowid = noted
    ? `(SELECT seq FROM tests.arrivals WHERE origin = '${noted}' AND arrivals.id = ${noted}.id)`
    : 'seq'
  return text
    .split(/('[^']*'|"[^"]*")/)
    .map((part, at) =>
      at % 2 === 1
        ? part
        : part
            .replace(/\?(\d*)/g, (_, number: string) => `$${number || ++count}`)
            .replace(/\browid\b/gi, rowid)
            .replace(/\b[a-z]+[A-Z]\w*\b/g, '"$&"'),
    )
    .join('')
}
