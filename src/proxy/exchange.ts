import { UnreadableError } from './redact'

type Kind = 'connect' | 'timeout' | 'cut' | 'refused-address'

/**
 * Why there is no answer. Holds no URL, which would show the origin and the merchant's query, and no
 * cause, whose message names it.
 */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError'
  readonly kind: Kind
  /** Code of the system or of Bun, if there is one. */
  readonly code: string | undefined

  constructor(kind: Kind, code?: string) {
    super(`upstream ${kind}${code === undefined ? '' : ` (${code})`}`)
    this.kind = kind
    this.code = code
  }
}

/** An answer that is no event stream is held up to here, so that a cut before is still a failure. */
const bufferMaxBytes = 1024 * 1024

/** Ends an exchange that takes too long, and remembers why it ended. */
export type Watch = {
  signal: AbortSignal
  /** Starts the time again. */
  arm(timeoutMs: number): void
  stop(): void
  /** Ends the exchange, for good. */
  abort(): void
  explain(error: unknown): UpstreamError
  /** The promise, or the end of the exchange if that is earlier. */
  race<T>(promise: Promise<T>): Promise<T>
}

export function startWatch(outer: AbortSignal | undefined): Watch {
  const controller = new AbortController()
  const { signal } = controller
  let timer: ReturnType<typeof setTimeout> | undefined
  let reason: UpstreamError | undefined
  const end = (error: UpstreamError) => {
    reason ??= error
    controller.abort(error)
  }
  const leave = () => end(new UpstreamError('cut', 'aborted'))
  outer?.addEventListener('abort', leave, { once: true })
  if (outer?.aborted === true) leave()
  const stop = () => {
    clearTimeout(timer)
    outer?.removeEventListener('abort', leave)
  }
  return {
    signal,
    stop,
    arm: (timeoutMs) => {
      clearTimeout(timer)
      timer = setTimeout(() => end(new UpstreamError('timeout')), timeoutMs)
    },
    abort: () => {
      stop()
      controller.abort()
    },
    explain: (error) => reason ?? (error instanceof UpstreamError ? error : classify(error)),
    race: (promise) =>
      new Promise((resolve, reject) => {
        if (signal.aborted) reject(reason)
        signal.addEventListener('abort', () => reject(reason), { once: true })
        promise.then(resolve, reject)
      }),
  }
}

// Codes of connections that were never made; a broken one may have carried the request.
const connectCodes =
  /^(?:ECONNREFUSED|ENOTFOUND|EAI_.*|EHOSTUNREACH|ENETUNREACH|ENETDOWN|EADDRNOTAVAIL|EPROTO|ConnectionRefused|FailedToOpenSocket|.*(?:TLS|SSL|CERT|SIGNATURE|ISSUER|CRL).*)$/

function classify(error: unknown): UpstreamError {
  if (error instanceof UnreadableError) return new UpstreamError('cut', 'unreadable')
  const code = codeOf(error)
  return new UpstreamError(code !== undefined && connectCodes.test(code) ? 'connect' : 'cut', code)
}

export function codeOf(error: unknown): string | undefined {
  const isCoded = typeof error === 'object' && error !== null && 'code' in error
  return isCoded && typeof error.code === 'string' ? error.code : undefined
}

type Start = { bytes: Uint8Array } | { stream: ReadableStream<Uint8Array> }

/** Reads the whole body, or 1 MiB of it, or the first chunk of an event stream. */
export async function readStart(response: Response, idleMs: number, watch: Watch): Promise<Start> {
  if (response.body === null) {
    watch.stop()
    return { bytes: new Uint8Array(0) }
  }
  const type = response.headers.get('content-type') ?? ''
  const limit = /^\s*text\/event-stream\s*(?:;|$)/i.test(type) ? 1 : bufferMaxBytes
  const reader = response.body.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  while (size < limit) {
    watch.arm(idleMs)
    const { done, value } = await reader.read()
    if (done) {
      watch.stop()
      return { bytes: Buffer.concat(chunks, size) }
    }
    size += value.byteLength
    chunks.push(value)
  }
  watch.stop()
  return { stream: streamOn(chunks, reader, idleMs, watch) }
}

/** What was read, then the rest as the buyer takes it. */
function streamOn(
  chunks: Uint8Array[],
  reader: Pick<ReadableStreamDefaultReader<Uint8Array>, 'read' | 'cancel'>,
  idleMs: number,
  watch: Watch,
): ReadableStream<Uint8Array> {
  return new ReadableStream(
    {
      async pull(controller) {
        const kept = chunks.shift()
        if (kept !== undefined) {
          controller.enqueue(kept)
          return
        }
        try {
          // Armed per read: a buyer that reads slowly is no upstream that sends slowly.
          watch.arm(idleMs)
          const { done, value } = await reader.read()
          watch.stop()
          if (done) controller.close()
          else controller.enqueue(value)
        } catch (error) {
          watch.stop()
          controller.error(watch.explain(error))
        }
      },
      async cancel() {
        for (const chunk of chunks.splice(0)) free(chunk)
        watch.abort()
        await reader.cancel().catch(() => {})
      },
    },
    { highWaterMark: 0 },
  )
}

/**
 * Gives the memory of a chunk back that nothing has seen. The collector would leave it for many
 * seconds: buyers that stand still and are cut would each leave more than a megabyte.
 */
function free(chunk: Uint8Array): void {
  const { buffer } = chunk
  const isWhole = chunk.byteLength === buffer.byteLength
  if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0)
}
