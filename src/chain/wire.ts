import { type Answer, createReader, type Reader } from './Http1'

/**
 * POSTs of JSON over kept-alive HTTP/1.1 connections to one URL. Requests are sent before `post`
 * returns, from this thread. `fetch` sends from another thread, which on a small machine runs only
 * when this thread is idle, and a payment then costs half as much again. Plain `http:` only, as
 * operators' own nodes use it: TLS is left to `fetch`.
 */
export type Wire = {
  /**
   * Rejects with `Malformed`, with `Broken` when the connection ended early, with the system's
   * error when there is no connection, and with the signal's reason. A request is sent once more
   * when its kept-alive connection ends before a byte of the answer: calls to nodes may be
   * repeated.
   */
  post(body: string, signal: AbortSignal): Promise<Pick<Answer, 'status' | 'text'>>
  /** Ends idle connections; the next request opens a new one. */
  reset(): void
  /** `reset`, and ends the other connections once they have answered. */
  close(): void
}

/** The connection ended before its answer did. The message can be shown. */
export class Broken extends Error {
  override name = 'Broken'
}

type Connection = {
  readonly pool: Pool
  socket: Bun.Socket<Connection> | undefined
  reader: Reader
  /** Bytes that the system has not accepted yet. */
  unsent: Buffer | undefined
  /** Resolves the request in progress. */
  resolve: ((answer: Answer) => void) | undefined
  reject: ((error: unknown) => void) | undefined
  /** The connection has delivered an answer before, and no byte of the next one has arrived. */
  isStale: boolean
}

/** The connections to one host. */
type Pool = {
  readonly hostname: string
  readonly port: number
  /** Longest answer, bytes. */
  readonly maxBytes: number
  readonly idle: Connection[]
  isClosed: boolean
}

const idleMax = 64
/** Shorter than the time after which common servers end a connection, s. */
const idleSeconds = 30

/** `maxBytes`: the longest answer. Throws when the URL is not `http:`. */
export function createWire(url: string, maxBytes: number): Wire {
  const parsed = new URL(url)
  if (parsed.protocol !== 'http:') throw new Error('not http:')
  const head = headOf(parsed)
  const pool: Pool = {
    hostname: parsed.hostname.replace(/^\[|\]$/g, ''),
    port: Number(parsed.port) || 80,
    maxBytes,
    idle: [],
    isClosed: false,
  }
  return {
    post(body, signal) {
      const request = Buffer.from(`${head}${Buffer.byteLength(body)}\r\n\r\n${body}`)
      const kept = signal.aborted ? undefined : pool.idle.pop()
      if (kept === undefined) return exchangeOnNew(pool, request, signal)
      return exchange(kept, request, signal).catch((error: unknown) => {
        if (kept.isStale && error instanceof Broken) return exchangeOnNew(pool, request, signal)
        throw error
      })
    },
    reset: () => endIdle(pool),
    close() {
      pool.isClosed = true
      endIdle(pool)
    },
  }
}

/** The head of every request to the URL, up to the length of its body. */
function headOf({ pathname, search, host, username, password }: URL): string {
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return [
    `POST ${pathname}${search} HTTP/1.1`,
    `host: ${host}`,
    ...(username === '' ? [] : [`authorization: Basic ${btoa(credentials)}`]),
    'content-type: application/json',
    'accept: application/json',
    'accept-encoding: identity',
    'content-length: ',
  ].join('\r\n')
}

/** One object for all connections: each connection is the `data` of its socket. */
const handlers: Bun.SocketHandler<Connection, 'buffer'> = {
  binaryType: 'buffer',
  data: receive,
  drain: ({ data: connection }) => flush(connection),
  close: ({ data: connection }) => ended(connection),
  end: ({ data: connection }) => ended(connection),
  error: ({ data: connection }) => fail(connection, new Broken('the connection broke')),
  // Only an idle connection has a time limit.
  timeout: ({ data: connection }) => fail(connection, new Broken('the connection broke')),
}

async function open(pool: Pool): Promise<Connection> {
  const connection: Connection = {
    pool,
    socket: undefined,
    reader: createReader(pool.maxBytes),
    unsent: undefined,
    resolve: undefined,
    reject: undefined,
    isStale: false,
  }
  connection.socket = await Bun.connect<Connection>({
    hostname: pool.hostname,
    port: pool.port,
    data: connection,
    socket: handlers,
  })
  // A caller that waits for an answer has a timer: a kept-alive connection must not keep the
  // process running.
  connection.socket.unref()
  return connection
}

function exchange(connection: Connection, request: Buffer, signal: AbortSignal): Promise<Answer> {
  return new Promise<Answer>((resolve, reject) => {
    const onAbort = () => fail(connection, signal.reason)
    connection.resolve = (answer) => {
      signal.removeEventListener('abort', onAbort)
      resolve(answer)
    }
    connection.reject = (error) => {
      signal.removeEventListener('abort', onAbort)
      reject(error)
    }
    signal.addEventListener('abort', onAbort)
    connection.socket?.timeout(0)
    connection.unsent = request
    flush(connection)
  })
}

/** A connection attempt cannot be cancelled: when it succeeds too late, the connection is ended. */
function exchangeOnNew(pool: Pool, request: Buffer, signal: AbortSignal): Promise<Answer> {
  return new Promise<Answer>((resolve, reject) => {
    const onAbort = () => reject(signal.reason)
    if (signal.aborted) return onAbort()
    signal.addEventListener('abort', onAbort)
    open(pool).then((connection) => {
      signal.removeEventListener('abort', onAbort)
      if (signal.aborted) connection.socket?.terminate()
      else resolve(exchange(connection, request, signal))
    }, reject)
  })
}

function flush(connection: Connection): void {
  if (connection.unsent === undefined) return
  const { socket, unsent } = connection
  const written = socket?.write(unsent) ?? -1
  if (written < 0) fail(connection, new Broken('the connection broke'))
  else connection.unsent = written < unsent.length ? unsent.subarray(written) : undefined
}

function receive({ data: connection }: Bun.Socket<Connection>, bytes: Buffer): void {
  // Without a request in progress these bytes would be read as the answer to the next one.
  if (connection.resolve === undefined) {
    fail(connection, undefined)
    return
  }
  connection.isStale = false
  try {
    const answer = connection.reader.push(bytes)
    if (answer) finish(connection, answer)
  } catch (error) {
    fail(connection, error)
  }
}

function ended(connection: Connection): void {
  const answer = connection.reader.end()
  if (answer) finish(connection, answer)
  else fail(connection, new Broken('the connection ended'))
}

function finish(connection: Connection, answer: Answer): void {
  const { pool, resolve, unsent } = connection
  clearRequest(connection)
  // Bytes that were not sent would be missing before the next request.
  const isFree = answer.isKept && unsent === undefined
  if (isFree && resolve && !pool.isClosed && pool.idle.length < idleMax) {
    connection.isStale = true
    connection.socket?.timeout(idleSeconds)
    pool.idle.push(connection)
  } else {
    connection.socket?.terminate()
  }
  resolve?.(answer)
}

function fail(connection: Connection, error: unknown): void {
  const { idle } = connection.pool
  const { reject } = connection
  clearRequest(connection)
  const index = idle.indexOf(connection)
  if (index >= 0) idle.splice(index, 1)
  connection.socket?.terminate()
  reject?.(error)
}

function clearRequest(connection: Connection): void {
  connection.resolve = undefined
  connection.reject = undefined
  connection.unsent = undefined
}

function endIdle(pool: Pool): void {
  for (const connection of pool.idle.splice(0)) connection.socket?.terminate()
}
