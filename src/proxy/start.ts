/** An answer that is no event stream is held up to here, so that a cut before is still a failure. */
const bufferMaxBytes = 1024 * 1024

/** Of the exchange that an answer belongs to. */
type Watch = {
  /** Starts the time of the next read. */
  arm(timeoutMs: number): void
  stop(): void
  /** Ends the exchange, for good. */
  abort(): void
  /** What the buyer's stream fails with. */
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
