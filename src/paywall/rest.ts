import { answerMaxBytes } from './store'

/** Reading answers to their end where no buyer takes them as they come. */

/** An answer that is passed on inside a message: the buyer gets all of it or nothing. */
export type Relay = {
  /** More of an answer does not fit into the message: it is cut there. */
  maxBytes: number
  /** Holds memory for so many bytes until the message is gone; false when there is no room. */
  hold(bytes: number): boolean
  /** Resolves when it is known whether the client took the whole message. Never rejects. */
  taken: Promise<boolean>
}

type Reader = {
  read(): Promise<{ done: boolean; value?: Uint8Array | undefined }>
  cancel(): Promise<void>
}

/** Each holds a connection to an upstream and up to 1 MiB. */
const readsMax = 32
/** One payer could else hold all of them, for the price of one answer each. */
const readsPerPayerMax = 4
/** Longest time that one may take; `idle_ms` of the merchant ends it earlier when nothing comes. */
const readMaxMs = 5 * 60_000

/** Rests that may be read at once: the answers of buyers that left and have a key for them. */
export type Rests = {
  /** Undefined when there is no place; else the place is held until the result is called. */
  take(payer: string): (() => void) | undefined
}

/** Places for 32 rests, 4 of one payer. */
export function createRests(): Rests {
  const byPayer = new Map<string, number>()
  let total = 0
  return {
    take(payer) {
      const own = byPayer.get(payer) ?? 0
      if (total >= readsMax || own >= readsPerPayerMax) return undefined
      byPayer.set(payer, own + 1)
      total++
      return () => {
        total--
        const left = (byPayer.get(payer) ?? 1) - 1
        if (left === 0) byPayer.delete(payer)
        else byPayer.set(payer, left)
      }
    },
  }
}

/** What has come of an answer, as long as it is short enough to be stored. */
export type Kept = {
  /** Whether all that came so far is here. */
  isOpen(): boolean
  add(chunk: Uint8Array): void
  /** Stores it as the whole answer. False when it is not stored. */
  store(): boolean
}

/** `keep` stores a whole answer and says whether it did; undefined when nothing is to be stored. */
export function createKept(keep: ((body: Uint8Array) => boolean) | undefined): Kept {
  let chunks: Uint8Array[] = []
  let size = 0
  const isOpen = () => keep !== undefined && size <= answerMaxBytes
  return {
    isOpen,
    add(chunk) {
      size += chunk.byteLength
      if (isOpen()) chunks.push(chunk.slice())
      else if (chunks.length > 0) chunks = []
    },
    store: () => isOpen() && keep?.(Buffer.concat(chunks)) === true,
  }
}

/**
 * Reads on where the buyer has left and stores the answer. False when it is not stored: the upstream
 * broke it off or fell silent, or it is too long or took too long. Then the source is cancelled.
 */
export async function storeRest(reader: Reader, kept: Kept): Promise<boolean> {
  let isLate = false
  const timer = setTimeout(() => {
    isLate = true
    reader.cancel().catch(() => {})
  }, readMaxMs)
  try {
    while (kept.isOpen()) {
      const { done, value } = await reader.read()
      // A cancelled source ends as if it were complete.
      if (isLate) return false
      if (done || value === undefined) return kept.store()
      kept.add(value)
    }
    reader.cancel().catch(() => {})
  } catch {
    // What is not whole is not stored.
  } finally {
    clearTimeout(timer)
  }
  return false
}

export type Whole =
  /** `isStored`: the buyer's key brings it. */
  | { kind: 'whole'; bytes: Uint8Array; truncated: boolean; isStored: boolean }
  /** The upstream broke it off, or there is no memory for it. */
  | { kind: 'cut' }
  /** The buyer left. */
  | { kind: 'left'; isStored: boolean }

export type WholeOptions = {
  relay: Relay
  /** Fires when the buyer leaves. */
  signal: AbortSignal
  kept: Kept
  /** A place to read the rest; undefined when there is none. */
  place: () => (() => void) | undefined
}

/** Reads an answer for a relay. A buyer that leaves ends it, unless the answer is to be stored. */
export async function readWhole(
  source: ReadableStream<Uint8Array>,
  { relay, signal, kept, place }: WholeOptions,
): Promise<Whole> {
  const reader = source.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  let free: (() => void) | undefined
  const leave = () => {
    if (kept.isOpen()) free = place()
    if (free === undefined) reader.cancel().catch(() => {})
  }
  signal.addEventListener('abort', leave)
  if (signal.aborted) leave()
  try {
    while (size <= relay.maxBytes) {
      const { done, value } = await reader.read()
      if (signal.aborted && free === undefined) return { kind: 'left', isStored: false }
      if (done) {
        const isStored = kept.store()
        if (signal.aborted) return { kind: 'left', isStored }
        return { kind: 'whole', bytes: Buffer.concat(chunks), truncated: false, isStored }
      }
      kept.add(value)
      if (signal.aborted) return { kind: 'left', isStored: await storeRest(reader, kept) }
      const room = relay.maxBytes - size
      size += value.byteLength
      const fits = value.byteLength > room ? value.subarray(0, room) : value
      if (!relay.hold(fits.byteLength)) break
      chunks.push(fits)
    }
    reader.cancel().catch(() => {})
    if (size <= relay.maxBytes) return { kind: 'cut' }
    return { kind: 'whole', bytes: Buffer.concat(chunks), truncated: true, isStored: false }
  } catch {
    return signal.aborted ? { kind: 'left', isStored: false } : { kind: 'cut' }
  } finally {
    signal.removeEventListener('abort', leave)
    free?.()
  }
}
