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

/** The bytes that were read, then the remaining bytes as fast as the buyer reads. */
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
          // Restarted for each read: a slow buyer must not count as a slow upstream.
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
 * Frees the memory of a chunk that nothing else refers to. The collector would free it only after
 * many seconds. Each buyer that does not read and is cut would occupy more than a megabyte for that
 * time.
 */
function free(chunk: Uint8Array): void {
  const { buffer } = chunk
  const isWhole = chunk.byteLength === buffer.byteLength
  if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0)
}
