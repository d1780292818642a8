import type { Budget } from '../../http/body'
import type { Envelope } from '../../paywall/rest'

/** More of one answer is not put into a message. */
export const answerMaxBytes = 4 * 1024 * 1024
/** One more is read, which shows that an answer was longer. */
const readMaxBytes = answerMaxBytes + 1
/** Of all answers of one POST. */
const postMaxBytes = 2 * readMaxBytes
/** Of all answers that wait for their clients. As text and as JSON they take six times that. */
export const waitingMaxBytes = 8 * readMaxBytes

/** Short enough for the socket's own buffer: it leaves in the turn in which it is handed over. */
const shortBytes = 64 * 1024
/** A client that takes a long message more slowly than this gives it up. */
const graceMs = 30_000
const bytesPerSecondMin = 64 * 1024

/** What one POST is answered with, and whether its client took it. */
export type Outgoing = {
  envelope: Envelope
  /** Whether another answer of full length would fit; asked before anything is paid. */
  hasRoom(): boolean
  /** The message as it is sent. `signal` fires when the client leaves. */
  send(message: Response, signal: AbortSignal): Promise<Response>
  /** There is no message: nothing was taken. */
  drop(): void
}

/** One POST's part of the `budget` of all. */
export function createOutgoing(budget: Budget): Outgoing {
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
      hold(bytes) {
        if (held + bytes > postMaxBytes || !share.acquire(bytes)) return false
        held += bytes
        return true
      },
    },
    hasRoom: () =>
      held + readMaxBytes <= postMaxBytes && budget.usedBytes() + readMaxBytes <= waitingMaxBytes,
    drop: () => end(false),
    async send(message, signal) {
      const bytes = held === 0 || signal.aborted ? undefined : await message.bytes()
      if (bytes !== undefined && bytes.byteLength > shortBytes)
        return new Response(watched(bytes, end), message)
      // It is written in this turn; until that is recorded the courier looks whether the client is there.
      end(!signal.aborted)
      return bytes === undefined ? message : new Response(bytes, message)
    },
  }
}

/** Gives bytes out as they are taken, and says at the end whether all were. */
function watched(bytes: Uint8Array, end: (isTaken: boolean) => void): ReadableStream<Uint8Array> {
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
        // The next is asked for when those before have left.
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
