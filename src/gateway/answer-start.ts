import { stalledCode } from '../paywall/usage/usage'
import { isEventStream } from '../protocol/Header'
import type { Stalls } from './upstream/stalls'

/**
 * An answer that is not an event stream is buffered up to this size, so that an earlier break is
 * still a failure.
 */
const bufferMaxBytes = 1024 * 1024

/** The timer of the exchange that an answer belongs to. */
type Watch = {
  /** Restarts the time limit, for the next read. */
  arm(timeoutMs: number): void
  stop(): void
  /** Ends the exchange. */
  abort(): void
  /** The error with which the buyer's stream fails. */
  explain(error: unknown): Error
}

type Start = { bytes: Uint8Array } | { stream: ReadableStream<Uint8Array> }

type Exchange = {
  /** Longest silence of the upstream. */
  idleMs: number
  watch: Watch
  stalls: Stalls
  /** Gets each chunk as it comes. */
  tap?: ((chunk: Uint8Array) => void) | undefined
}

type Reader = Pick<ReadableStreamDefaultReader<Uint8Array>, 'read' | 'cancel'>

/** Reads the whole body, or 1 MiB of it, or the first chunk of an event stream. */
export async function readStart(response: Response, exchange: Exchange): Promise<Start> {
  const { idleMs, watch, tap } = exchange
  if (response.body === null) {
    watch.stop()
    return { bytes: new Uint8Array(0) }
  }
  const limit = isEventStream(response.headers) ? 1 : bufferMaxBytes
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
    tap?.(value)
    chunks.push(value)
  }
  watch.stop()
  return { stream: streamOn(chunks, reader, exchange) }
}

/**
 * The bytes that were read, then the remaining bytes as fast as the buyer reads. An answer that is given
 * up for others fails: the buyer gets what was sent before.
 */
function streamOn(
  chunks: Uint8Array[],
  reader: Reader,
  { idleMs, watch, stalls, tap }: Exchange,
): ReadableStream<Uint8Array> {
  let isReading = false
  let fail = () => {}
  /** Ends the exchange, and frees the bytes that were not read. */
  const drop = async () => {
    stall.taken()
    for (const chunk of chunks.splice(0)) free(chunk)
    if (!isReading) await freeNext(reader)
    watch.abort()
    await reader.cancel().catch(() => {})
  }
  const stall = stalls.watch(() => {
    fail()
    void drop()
  })
  return new ReadableStream(
    {
      start(controller) {
        fail = () => {
          const error = Object.assign(new Error('the buyer stands still'), { code: stalledCode })
          controller.error(watch.explain(error))
        }
      },
      async pull(controller) {
        stall.taken()
        try {
          let chunk = chunks.shift()
          if (chunk === undefined) {
            // Restarted for each read: a slow buyer must not count as a slow upstream.
            watch.arm(idleMs)
            isReading = true
            const { done, value } = await reader.read()
            isReading = false
            watch.stop()
            if (done) return controller.close()
            tap?.(value)
            chunk = value
          }
          controller.enqueue(chunk)
          stall.put()
        } catch (error) {
          watch.stop()
          controller.error(watch.explain(error))
        }
      },
      cancel: drop,
    },
    { highWaterMark: 0 },
  )
}

/**
 * Takes the bytes that the runtime has read ahead, and frees them. The runtime would keep them
 * until the reader is collected, although it was cancelled.
 */
async function freeNext(reader: Reader): Promise<void> {
  const next = reader.read().then(
    ({ value }) => value && free(value),
    () => {},
  )
  await Promise.race([next, new Promise((resolve) => setImmediate(resolve))])
}

/**
 * Frees the memory of a chunk that nothing else refers to. The collector would free it only after
 * many seconds. Each buyer that does not read and is cut would occupy more than a megabyte for that
 * time.
 */
function free(chunk: Uint8Array): void {
  const { buffer } = chunk
  const isWhole = chunk.byteLength === buffer.byteLength
  if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0)
}
