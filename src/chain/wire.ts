import { type Answer, createReader, type Reader } from './Http1'

/**
 * POSTs of JSON over kept HTTP/1.1 connections to one URL. Requests leave before `post` returns, from
 * this thread: those of `fetch` leave from another one, which on a small machine runs only when this
 * one has nothing left to do, and a payment costs half as much again. Plain `http:` only, as nodes of
 * one's own have it: certificates are the business of `fetch`.
 */
export type Wire = {
  /**
   * Rejects with `Malformed`, with `Broken` when the connection ended early, with the system's error
   * when there is none, and with the signal's reason. A request whose kept connection ends before a
   * byte of its answer is sent once more: what nodes are asked may be repeated.
   */
  post(body: string, signal: AbortSignal): Promise<Pick<Answer, 'status' | 'text'>>
  /** Ends connections that are not used; the next request opens a new one. */
  reset(): void
  /** `reset`, also of those that are used now, once they have answered. */
  close(): void
}

/** The connection ended before its answer did. The message can be shown. */
export class Broken extends Error {
  override name = 'Broken'
}

type Line = {
  socket: Bun.Socket<Line> | undefined
  reader: Reader
  /** Bytes that the system has not taken yet. */
  unsent: Buffer | undefined
  /** Of the request under way. */
  resolve: ((answer: Answer) => void) | undefined
  reject: ((error: unknown) => void) | undefined
  /** It carried an answer before, and nothing of the next one has come. */
  isStale: boolean
}

const idleMax = 64
/** Shorter than the time after which common servers end a connection. */
const idleSeconds = 30

/** `maxBytes`: of an answer. Throws when the URL is not of `http:`. */
export function createWire(url: string, maxBytes: number): Wire {
  const { protocol, hostname, port, pathname, search, host, username, password } = new URL(url)
  if (protocol !== 'http:') throw new Error('not http:')
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  const head = [
    `POST ${pathname}${search} HTTP/1.1`,
    `host: ${host}`,
    ...(username === '' ? [] : [`authorization: Basic ${btoa(credentials)}`]),
    'content-type: application/json',
    'accept: application/json',
    'accept-encoding: identity',
    'content-length: ',
  ].join('\r\n')
  const idle: Line[] = []
  let isClosed = false

  const handlers: Bun.SocketHandler<Line, 'buffer'> = {
    binaryType: 'buffer',
    data({ data: line }, bytes) {
      // Nobody asked: it would be read as the next answer.
      if (line.resolve === undefined) return fail(line, undefined)
      line.isStale = false
      try {
        const answer = line.reader.push(bytes)
        if (answer) finish(line, answer)
      } catch (error) {
        fail(line, error)
      }
    },
    drain: ({ data: line }) => flush(line),
    close: ({ data: line }) => ended(line),
    end: ({ data: line }) => ended(line),
    error: ({ data: line }) => fail(line, new Broken('the connection broke')),
    // Only an idle connection has a time limit.
    timeout: ({ data: line }) => fail(line, new Broken('the connection broke')),
  }

  function finish(line: Line, answer: Answer): void {
    const { resolve, unsent } = line
    settle(line)
    // What was not sent would be missing before the next request.
    const isFree = answer.isKept && unsent === undefined
    if (isFree && resolve && !isClosed && idle.length < idleMax) {
      line.isStale = true
      line.socket?.timeout(idleSeconds)
      idle.push(line)
    } else {
      line.socket?.terminate()
    }
    resolve?.(answer)
  }

  function fail(line: Line, error: unknown): void {
    const { reject } = line
    settle(line)
    forget(line)
    line.socket?.terminate()
    reject?.(error)
  }

  function ended(line: Line): void {
    const answer = line.reader.end()
    if (answer) finish(line, answer)
    else fail(line, new Broken('the connection ended'))
  }

  function settle(line: Line): void {
    line.resolve = undefined
    line.reject = undefined
    line.unsent = undefined
  }

  function reset(): void {
    for (const line of idle.splice(0)) line.socket?.terminate()
  }

  function forget(line: Line): void {
    const index = idle.indexOf(line)
    if (index >= 0) idle.splice(index, 1)
  }

  function flush(line: Line): void {
    if (line.unsent === undefined) return
    const written = line.socket?.write(line.unsent) ?? -1
    if (written < 0) fail(line, new Broken('the connection broke'))
    else line.unsent = written < line.unsent.length ? line.unsent.subarray(written) : undefined
  }

  async function open(): Promise<Line> {
    const line: Line = {
      socket: undefined,
      reader: createReader(maxBytes),
      unsent: undefined,
      resolve: undefined,
      reject: undefined,
      isStale: false,
    }
    line.socket = await Bun.connect<Line>({
      hostname: hostname.replace(/^\[|\]$/g, ''),
      port: Number(port) || 80,
      data: line,
      socket: handlers,
    })
    // Who waits for an answer has a timer: a kept connection alone keeps no process alive.
    line.socket.unref()
    return line
  }

  function exchange(line: Line, request: Buffer, signal: AbortSignal): Promise<Answer> {
    return new Promise<Answer>((resolve, reject) => {
      const onAbort = () => fail(line, signal.reason)
      line.resolve = (answer) => {
        signal.removeEventListener('abort', onAbort)
        resolve(answer)
      }
      line.reject = (error) => {
        signal.removeEventListener('abort', onAbort)
        reject(error)
      }
      signal.addEventListener('abort', onAbort)
      line.socket?.timeout(0)
      line.unsent = request
      flush(line)
    })
  }

  /** A connection attempt cannot be taken back: when it succeeds too late, it is ended. */
  function postFresh(request: Buffer, signal: AbortSignal): Promise<Answer> {
    return new Promise<Answer>((resolve, reject) => {
      const onAbort = () => reject(signal.reason)
      if (signal.aborted) return onAbort()
      signal.addEventListener('abort', onAbort)
      open().then((line) => {
        signal.removeEventListener('abort', onAbort)
        if (signal.aborted) line.socket?.terminate()
        else resolve(exchange(line, request, signal))
      }, reject)
    })
  }

  return {
    post(body, signal) {
      const request = Buffer.from(`${head}${Buffer.byteLength(body)}\r\n\r\n${body}`)
      const line = signal.aborted ? undefined : idle.pop()
      if (line === undefined) return postFresh(request, signal)
      return exchange(line, request, signal).catch((error: unknown) => {
        if (line.isStale && error instanceof Broken) return postFresh(request, signal)
        throw error
      })
    },
    reset,
    close() {
      isClosed = true
      reset()
    },
  }
}
