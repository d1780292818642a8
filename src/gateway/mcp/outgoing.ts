import type { Budget } from '../../http/body'
import type { Envelope } from '../../paywall/answer/remainder'

/** Most bytes of one answer in a message. */
export const answerMaxBytes = 4 * 1024 * 1024
/** One more byte is read, to detect a longer answer. */
const readMaxBytes = answerMaxBytes + 1
/** Most bytes of all answers to one POST. */
const postMaxBytes = 2 * readMaxBytes
/** Most bytes of all answers that wait for clients. As text and JSON they take six times that. */
export const waitingMaxBytes = 8 * readMaxBytes

/** A message this short fits the socket's buffer and is written in the same turn. */
const shortBytes = 64 * 1024
/** A client that needs longer for a long message loses it. */
const graceMs = 30_000
const bytesPerSecondMin = 64 * 1024

/** The answer to one POST, and whether its client received it. */
export type Outgoing = ReturnType<typeof createOutgoing>

/** The answer to one POST, within the `budget` of all answers. */
export function createOutgoing(budget: Budget) {
  const share = budget.open({ isPaid: true })
  const taken = Promise.withResolvers<boolean>()
  let held = 0
  const end = (isTaken: boolean) => {
    share.release()
    held = 0
    taken.resolve(isTaken)
  }
  return {
    envelope: {
      maxBytes: readMaxBytes,
      taken: taken.promise,
      reserve(bytes) {
        if (held + bytes > postMaxBytes || !share.acquire(bytes)) return false
        held += bytes
        return true
      },
    } satisfies Envelope,
    /** Whether another answer of full length would fit. Check it before a payment. */
    hasRoom: () =>
      held + readMaxBytes <= postMaxBytes && budget.usedBytes() + readMaxBytes <= waitingMaxBytes,
    /** Ends without a message: nothing was delivered. */
    drop: () => end(false),
    /** Returns the message to send. `signal` fires when the client disconnects. */
    async send(message: Response, signal: AbortSignal): Promise<Response> {
      const bytes = held === 0 || signal.aborted ? undefined : await message.bytes()
      if (bytes !== undefined && bytes.byteLength > shortBytes)
        return new Response(trackedStream(bytes, end), message)
      // The message is written in this turn. Until the delivery is recorded, it checks that the
      // client is connected.
      end(!signal.aborted)
      return bytes === undefined ? message : new Response(bytes, message)
    },
  }
}

/** A stream of the bytes, which reports at its end whether all of them were read. */
function trackedStream(
  bytes: Uint8Array,
  end: (isTaken: boolean) => void,
): ReadableStream<Uint8Array> {
  let offset = 0
  let timer: ReturnType<typeof setTimeout>
  const finish = (isTaken: boolean) => {
    clearTimeout(timer)
    end(isTaken)
  }
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        const patienceMs = graceMs + (bytes.byteLength * 1000) / bytesPerSecondMin
        timer = setTimeout(() => {
          end(false)
          controller.error()
        }, patienceMs)
      },
      pull(controller) {
        // The stream pulls again only after the earlier chunks were sent.
        if (offset >= bytes.byteLength) {
          finish(true)
          controller.close()
          return
        }
        controller.enqueue(bytes.subarray(offset, offset + shortBytes))
        offset += shortBytes
      },
      cancel: () => finish(false),
    },
    { highWaterMark: 0 },
  )
}
