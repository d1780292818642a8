import type { RemainderReader } from './remainder'

/** Longest answer that waits for its settlement; a longer one passes as a stream. */
const answerMaxBytes = 16 * 1024 * 1024

/** A body that was read, or that is to be passed on. */
export type Buffered =
  /** `isComplete`: not cut at the limit of its message. */
  | { kind: 'whole'; bytes: Uint8Array; isComplete: boolean; release: () => void }
  | { kind: 'stream'; body: ReadableStream<Uint8Array> }
  /** The source failed, took too long, or there is no memory for a message. */
  | { kind: 'broken' | 'late' | 'full' }

export type Buffering = ReturnType<typeof createBuffer>

type BufferOptions = { isPassedOn: boolean; maxBytes: number | undefined; limitMs: number }

/** `totalMaxBytes` bounds all answers that are held at once. */
export function createBuffer(totalMaxBytes: number) {
  let total = 0
  return {
    /**
     * Reads an answer to its end, unless it `isPassedOn` as it comes. `maxBytes`: the answer is sent inside a
     * message of this length, so it is never passed on. `limitMs`: an answer that takes longer is
     * given up. Call `release` when the bytes are no longer needed.
     */
    async read(
      body: Uint8Array | ReadableStream<Uint8Array>,
      { isPassedOn, maxBytes, limitMs }: BufferOptions,
    ): Promise<Buffered> {
      if (body instanceof Uint8Array)
        return { kind: 'whole', bytes: body, isComplete: true, release: () => {} }
      if (isPassedOn && maxBytes === undefined) return { kind: 'stream', body }
      const reader = body.getReader()
      const chunks: Uint8Array[] = []
      let size = 0
      const release = () => {
        total -= size
        size = 0
      }
      const most = maxBytes ?? answerMaxBytes
      let isLate = false
      // A cancelled source ends like a complete one.
      const timer = setTimeout(() => {
        isLate = true
        reader.cancel().catch(() => {})
      }, limitMs)
      try {
        for (;;) {
          const { done, value } = await reader.read()
          if (isLate) {
            release()
            return { kind: 'late' }
          }
          if (done)
            return { kind: 'whole', bytes: Buffer.concat(chunks), isComplete: true, release }
          chunks.push(value)
          size += value.byteLength
          total += value.byteLength
          if (size <= most && total <= totalMaxBytes) continue
          if (maxBytes === undefined) {
            release()
            return { kind: 'stream', body: continued(chunks, reader) }
          }
          reader.cancel().catch(() => {})
          if (size <= maxBytes) {
            release()
            return { kind: 'full' }
          }
          // One byte more than the message takes, which shows that it is cut.
          const bytes = Buffer.concat(chunks).subarray(0, maxBytes + 1)
          return { kind: 'whole', bytes, isComplete: false, release }
        }
      } catch {
        release()
        return { kind: isLate ? 'late' : 'broken' }
      } finally {
        clearTimeout(timer)
      }
    },
  }
}

/** What was read, then what follows. */
function continued(chunks: Uint8Array[], reader: RemainderReader): ReadableStream<Uint8Array> {
  return new ReadableStream(
    {
      async pull(controller) {
        const first = chunks.shift()
        if (first !== undefined) return controller.enqueue(first)
        const { done, value } = await reader.read()
        if (done || value === undefined) controller.close()
        else controller.enqueue(value)
      },
      cancel: () => reader.cancel(),
    },
    { highWaterMark: 0 },
  )
}
