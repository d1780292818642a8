import { createCounts } from '../../http/counts'
import { answerMaxBytes } from './store'

/** Reads answers to their end when the buyer has left or gets them inside a message. */

/** An answer that is sent inside a message: the buyer gets all of it or nothing. */
export type Envelope = {
  /** Most bytes of an answer in the message; the rest is cut. */
  maxBytes: number
  /** Reserves memory for this many bytes until the message was sent; false without memory. */
  reserve(bytes: number): boolean
  /** Resolves with whether the client took the whole message. Never rejects. */
  taken: Promise<boolean>
}

export type RemainderReader = {
  read(): Promise<{ done: boolean; value?: Uint8Array | undefined }>
  cancel(): Promise<void>
}

/** Each read uses a connection to an upstream and up to 1 MiB. */
const readsMax = 32
/** Otherwise one payer could occupy all places for the price of one answer each. */
const readsPerPayerMax = 4
/** Longest time (ms) of one; `idle_ms` of the merchant ends it earlier when no bytes arrive. */
const readMaxMs = 5 * 60_000

/** `store` for one payer: reads on when the buyer has left. */
export type StoreRemainder = (reader: RemainderReader, kept: Kept) => Promise<boolean> | undefined

/** Reads the remainder of answers whose buyers have left and have a key for them: 32 at once, 4 of one payer. */
export function createRemainders() {
  const byPayer = createCounts()
  const running = new Map<() => void, Promise<boolean>>()
  return {
    /**
     * Reads on to the end and stores the answer. A read that the caller has started ends first.
     * Undefined when nothing is to be stored or no place is free. False when it is not stored: the
     * upstream aborted or stalled, the answer is too long or takes too long, or `stop` was called.
     * Then the source is cancelled. Never rejects.
     */
    store(payer: string, reader: RemainderReader, kept: Kept): Promise<boolean> | undefined {
      const isFull = running.size >= readsMax || byPayer.of(payer) >= readsPerPayerMax
      if (isFull || !kept.isOpen()) return undefined
      let isOver = false
      const end = () => {
        isOver = true
        reader.cancel().catch(() => {})
      }
      const timer = setTimeout(end, readMaxMs)
      byPayer.add(payer, 1)
      // A cancelled source ends like a complete one, so mark it as failed.
      const remainder = readRemainder(reader, kept, () => isOver).finally(() => {
        clearTimeout(timer)
        running.delete(end)
        byPayer.add(payer, -1)
      })
      running.set(end, remainder)
      return remainder
    },
    /** Cancels the running reads; resolves when they have ended. */
    async stop(): Promise<void> {
      const all = [...running.values()]
      for (const end of running.keys()) end()
      await Promise.all(all)
    },
  }
}

async function readRemainder(
  reader: RemainderReader,
  kept: Kept,
  isOver: () => boolean,
): Promise<boolean> {
  try {
    while (kept.isOpen()) {
      const { done, value } = await reader.read()
      if (isOver()) return false
      if (done || value === undefined) return await kept.store()
      kept.add(value)
    }
    reader.cancel().catch(() => {})
  } catch {
    // Store only complete answers.
  }
  return false
}

export type Kept = ReturnType<typeof createKept>

/**
 * The received part of an answer, as long as it is short enough to be stored. `keep` stores a whole
 * answer and returns whether it did; undefined when nothing is to be stored.
 */
export function createKept(keep: ((body: Uint8Array) => Promise<boolean>) | undefined) {
  let chunks: Uint8Array[] = []
  let size = 0
  let stored: Promise<boolean> | undefined
  let isDropped = keep === undefined
  const storeOnce = async () => isOpen() && (await keep?.(Buffer.concat(chunks))) === true
  /** Whether it contains everything that was received. */
  const isOpen = () => !isDropped && size <= answerMaxBytes
  return {
    isOpen,
    add(chunk: Uint8Array): void {
      size += chunk.byteLength
      if (isOpen()) chunks.push(chunk.slice())
      else if (chunks.length > 0) chunks = []
    },
    /** Stores nothing, and keeps no more. */
    drop(): void {
      isDropped = true
      chunks = []
    },
    /** Stores it as the whole answer, once. False when it is not stored. */
    store(): Promise<boolean> {
      stored ??= storeOnce()
      return stored
    },
  }
}

export type Whole =
  /** `isStored`: a replay with the buyer's key returns it. */
  | { kind: 'whole'; bytes: Uint8Array; truncated: boolean; isStored: boolean }
  /** The upstream aborted, or there is no memory for it. */
  | { kind: 'cut' }
  /** The buyer left. */
  | { kind: 'left'; isStored: boolean }

export type WholeOptions = {
  envelope: Envelope
  /** Aborts when the buyer disconnects. */
  signal: AbortSignal
  kept: Kept
  storeRemainder: StoreRemainder
}

/**
 * Reads an answer that is sent in an envelope. Ends when the buyer leaves, unless the answer is to
 * be stored.
 */
export async function readWhole(
  source: Uint8Array | ReadableStream<Uint8Array>,
  { envelope, signal, kept, storeRemainder }: WholeOptions,
): Promise<Whole> {
  const reader = streamOf(source).getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  let remainder: Promise<boolean> | undefined
  const leave = () => {
    remainder = storeRemainder(reader, kept)
    if (remainder === undefined) reader.cancel().catch(() => {})
  }
  const left = async (): Promise<Whole> => ({ kind: 'left', isStored: (await remainder) === true })
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  try {
    while (size <= envelope.maxBytes) {
      const { done, value } = await reader.read()
      if (value !== undefined) kept.add(value)
      if (signal.aborted) return await left()
      if (done || value === undefined) {
        // The answer is complete: a buyer that leaves meanwhile has no effect on it.
        signal.removeEventListener('abort', leave)
        const isStored = await kept.store()
        return { kind: 'whole', bytes: Buffer.concat(chunks), truncated: false, isStored }
      }
      const room = envelope.maxBytes - size
      size += value.byteLength
      const fits = value.byteLength > room ? value.subarray(0, room) : value
      if (!envelope.reserve(fits.byteLength)) break
      chunks.push(fits)
    }
    reader.cancel().catch(() => {})
    if (size <= envelope.maxBytes) return { kind: 'cut' }
    return { kind: 'whole', bytes: Buffer.concat(chunks), truncated: true, isStored: false }
  } catch {
    return signal.aborted ? left() : { kind: 'cut' }
  } finally {
    signal.removeEventListener('abort', leave)
  }
}

/** Streams an answer that is already complete. A Blob would copy it, in 0.6 ms for a megabyte. */
function streamOf(body: Uint8Array | ReadableStream<Uint8Array>): ReadableStream<Uint8Array> {
  if (!(body instanceof Uint8Array)) return body
  return new ReadableStream({
    start(controller) {
      if (body.byteLength > 0) controller.enqueue(body)
      controller.close()
    },
  })
}
