import { Client, type ClientConfig, type QueryConfig, types } from 'pg'
import { DatabaseGoneError, PostgresError } from './errors'

/** One statement on a line. Values are those of `pg`; `name` prepares it once for each connection. */
export type Query = <Row>(
  text: string,
  values?: readonly unknown[],
  options?: { name?: string; rowMode?: 'array' },
) => Promise<readonly Row[]>

/**
 * One connection, which runs one piece of work at a time. A connection that does not answer within
 * six seconds is ended and never used again, because its answers could be mistaken for later ones.
 */
export type Line = {
  /** Runs work that has the connection for itself. Its statements must not run side by side. */
  run<T>(work: (query: Query) => Promise<T>): Promise<T>
  /** Id of the server's process, as the connection began. A pooler makes up its own. */
  process: number
  /** Whether the connection is open. */
  isOpen(): boolean
  /** Whether work is running or waits. */
  isBusy(): boolean
  /** Ends the connection. Idempotent. */
  close(): void
}

export type LineOptions = {
  /** Of one host. */
  client: ClientConfig
  /** Statements that prepare a session. */
  session: readonly string[]
  /** Longest time of a statement, and of a connection's start, ms. */
  answerMs?: number | undefined
  /** The connection has ended, for any reason. */
  onEnd(error: Error): void
  /** A notification of a channel that the session listens to. */
  onNotification?: (channel: string, payload: string) => void
}

const defaultAnswerMs = 6_000

/** Connects. Rejects with the driver's error, in which nothing is secret but the URL's own parts. */
export async function connect(options: LineOptions): Promise<Line> {
  const answerMs = options.answerMs ?? defaultAnswerMs
  const client = new Client({
    keepAlive: true,
    connectionTimeoutMillis: answerMs,
    types: { getTypeParser },
    ...options.client,
  })
  const end = endOf(client, options.onEnd)
  client.on('error', (error) => end.now(error))
  client.on('end', () => end.now(new Error('the server ended the connection')))
  // The server acknowledges a commit whose wait for the synchronous standby was cancelled, and only it has
  // the commit. Its end counts as unknown, so that it is asked for, which waits for the standby again. The
  // text of the warning is in the language of the server, the name of the function is not.
  client.on('notice', ({ routine }) => {
    if (routine === 'SyncRepWaitForLSN') end.now(new Error('the standby may lack the commit'))
  })
  const { onNotification } = options
  if (onNotification)
    client.on('notification', ({ channel, payload }) => onNotification(channel, payload ?? ''))
  try {
    await client.connect()
    for (const statement of options.session) await within(answerMs, end, client.query(statement))
  } catch (error) {
    end.now(error instanceof Error ? error : new Error(String(error)))
    throw error
  }
  return lineOf(client, end, answerMs)
}

type End = ReturnType<typeof endOf>

/** Ends a connection once, at its first fault. */
function endOf(client: Client, onEnd: LineOptions['onEnd']) {
  let error: Error | undefined
  const waiting = new Set<(error: Error) => void>()
  return {
    now(cause: Error): void {
      if (error !== undefined) return
      error = cause
      client.connection.stream.destroy()
      for (const fail of waiting) fail(cause)
      onEnd(cause)
    },
    error: () => error,
    /** Calls `fail` at the end, unless the returned function is called before. */
    onEnd(fail: (error: Error) => void): () => void {
      if (error !== undefined) fail(error)
      waiting.add(fail)
      return () => void waiting.delete(fail)
    },
  }
}

function lineOf(client: Client, end: End, answerMs: number): Line {
  let last: Promise<unknown> = Promise.resolve()
  let running = 0
  const query: Query = async <Row>(
    text: string,
    values: readonly unknown[] = [],
    { name, rowMode }: { name?: string; rowMode?: 'array' } = {},
  ) => {
    const gone = end.error()
    if (gone) throw new DatabaseGoneError('the connection has ended', { mayHaveRun: true })
    const config = { text, values: [...values], ...(name && { name }), ...(rowMode && { rowMode }) }
    try {
      const result = await within(answerMs, end, client.query(config as QueryConfig))
      return result.rows as Row[]
    } catch (error) {
      const fault = faultOf(error)
      // A server that ends, or that is a standby now, is of no use to later statements.
      if (fault instanceof DatabaseGoneError && fault.mayHaveRun) end.now(fault)
      throw fault
    }
  }
  return {
    run(work) {
      const begin = () => {
        if (end.error() === undefined) return work(query)
        throw new DatabaseGoneError('the connection has ended', { mayHaveRun: false })
      }
      running++
      const result = last.then(begin)
      last = result.then(
        () => running--,
        () => running--,
      )
      return result
    },
    // The types of the driver lack it.
    process: (client as unknown as { processID: number }).processID,
    isOpen: () => end.error() === undefined,
    isBusy: () => running > 0,
    close() {
      if (end.error() !== undefined) return
      // The server learns of the end before the socket does.
      void client.end().catch(() => undefined)
      end.now(new Error('closed'))
    },
  }
}

/**
 * The answer; ends the connection when there is none in time. No promise of the connection takes part: it
 * would keep the answer of each statement for as long as the connection lasts.
 */
function within<T>(ms: number, end: End, answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(
      () => end.now(new Error(`the database did not answer within ${ms} ms`)),
      ms,
    )
    const forget = end.onEnd(reject)
    const settle = () => {
      clearTimeout(timer)
      forget()
    }
    answer.then(
      (value) => {
        settle()
        resolve(value)
      },
      (error: unknown) => {
        settle()
        reject(error)
      },
    )
  })
}

/** SQLSTATEs with which a server ends or refuses connections, and that of a standby. */
const goneStates = /^(?:08|57P0|25006|53300)/
/** It cannot write: a full disk, no memory, an I/O error. The statement had no effect. */
const fullStates = /^(?:53|58)/

/** The error of a statement: of the server, or of the connection. */
function faultOf(error: unknown): Error {
  if (error instanceof Error && 'severity' in error && 'code' in error) {
    const { code, message } = error
    const mayHaveRun = goneStates.test(String(code))
    if (mayHaveRun || fullStates.test(String(code)))
      return new DatabaseGoneError(message, { mayHaveRun, cause: error })
    const { constraint, detail } = error as { constraint?: string; detail?: string }
    return new PostgresError({ code: String(code), message, constraint, detail })
  }
  return new DatabaseGoneError('the connection to the database was lost', {
    mayHaveRun: true,
    cause: error,
  })
}

/** int8: counts, times and block numbers, all far below 2^53. */
const int8 = 20

/** Other types are decoded as the driver does it. */
function getTypeParser(oid: number, format?: 'text' | 'binary') {
  if (oid === int8) return Number
  return types.getTypeParser(oid, format as 'text')
}
