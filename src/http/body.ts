import * as Problem from '../protocol/Problem'
import { createCounts } from './counts'

/** Bytes of request bodies in memory, over all requests. Bytes count when they arrive. */
export type Budget = ReturnType<typeof createBudget>

/** The client that a body came from. */
type BodyOwner = {
  /** Key of the client (http/client.ts). Without it only the limits of all clients apply. */
  client?: string
  /** Whether the body comes with a credential that we recognise. Default: false. */
  isPaid?: boolean
}

type Share = ReturnType<Budget['open']>

/** Share of the budget for bodies without a credential, so that they never block paid requests. */
const unpaidShare = 1 / 4
/** Share of one client in the limit of its kind of bodies. */
const clientShare = 1 / 4
/** A budget has a place for a body that is read in pieces for each of these. */
const bytesPerReader = 256 * 1024
const readersMin = 16

/**
 * A budget of `maxBytes`. Shares limit a body only while another body of the client, or of the same
 * kind, is in memory. A share may be smaller than the largest body that a route accepts.
 */
export function createBudget(maxBytes: number) {
  /** By kind of body. */
  const used = createCounts()
  /** By kind and client. */
  const clients = createCounts()

  return {
    usedBytes: used.total,
    /** Places for bodies that are read in pieces. */
    readers: createReaders(Math.max(readersMin, Math.floor(maxBytes / bytesPerReader))),
    /** Opens the account of one body, which has no bytes yet. */
    open({ client, isPaid = false }: BodyOwner = {}) {
      const kind = isPaid ? 'paid' : 'unpaid'
      const kindMax = isPaid ? maxBytes : maxBytes * unpaidShare
      const key = client === undefined ? undefined : `${kind} ${client}`
      let held = 0
      /** Whether the bytes exceed a limit that is shared with other bodies. */
      const isOver = (sum: number, bytes: number, limit: number) =>
        sum + bytes > limit && sum > held
      const add = (bytes: number) => {
        held += bytes
        used.add(kind, bytes)
        if (key !== undefined) clients.add(key, bytes)
      }
      return {
        /** False when the bytes do not fit; then nothing is taken. */
        acquire(bytes: number): boolean {
          if (used.total() + bytes > maxBytes) return false
          if (!isPaid && isOver(used.of(kind), bytes, kindMax)) return false
          const own = key === undefined ? 0 : clients.of(key)
          if (isOver(own, bytes, kindMax * clientShare)) return false
          add(bytes)
          return true
        },
        /** Returns all bytes to the budget. */
        release: () => add(-held),
      }
    },
  }
}

/** A body in memory. `release` returns its bytes to the budget, once. */
export type Body = { bytes: Uint8Array; release(): void }

type ReadOptions = BodyOwner & {
  /** Interval between two checks of the transfer rate, ms. */
  rateCheckMs?: number
  /** Time after which a body may be given up for another one, ms. */
  graceMs?: number
}

/** Minimum transfer rate. A slower body would occupy the budget of all for too long. */
const bytesPerSecondMin = 16 * 1024
/** A body announced up to this size is read in one call, which costs a third of a stream. */
const shortMaxBytes = 16 * 1024
/**
 * Number of pieces that may have any size. With more pieces, the average size must reach the
 * minimum.
 */
const piecesMax = 256
const pieceAverageMinBytes = 64

/**
 * Reads a whole body. The budget counts the bytes that have arrived until `release`; after a
 * failure it counts none.
 *
 * Throws ProblemError:
 * - `body-too-large` 413 as soon as the announced or the received size is above `maxBytes`.
 * - `not-ready` 503 when the budget is used up.
 * - `body-too-slow` 408 below the minimum transfer rate.
 * - `bad-request` 400 when the client stops before the end, or when its pieces are too small. Each
 *   piece of a chunked body costs an object and a turn of the event loop, even a piece of one byte.
 */
export async function readBody(
  request: Request,
  maxBytes: number,
  budget: Budget,
  options: ReadOptions = {},
): Promise<Body> {
  const share = budget.open(options)
  const announced = Number(request.headers.get('content-length') ?? 0)
  if (announced > maxBytes) throw tooLarge(maxBytes)
  if (announced === 0 && request.body === null)
    return { bytes: new Uint8Array(0), release: share.release }
  try {
    const isShort = announced > 0 && announced <= shortMaxBytes
    const rate = { rateCheckMs: 10_000, graceMs: 1_000, ...options }
    const bytes = await (isShort
      ? readShort(request, share, rate.rateCheckMs)
      : readPieces(request, maxBytes, { share, readers: budget.readers, ...rate }))
    return { bytes, release: share.release }
  } catch (error) {
    share.release()
    if (error instanceof Problem.ProblemError) throw error
    const detail = 'The request body ended early: send it again.'
    throw Problem.of('bad-request', detail, { cause: error })
  }
}

async function readPieces(
  request: Request,
  maxBytes: number,
  options: BodyOwner & { share: Share; readers: Readers; rateCheckMs: number; graceMs: number },
): Promise<Uint8Array> {
  const { client, isPaid = false, share, readers, rateCheckMs, graceMs } = options
  const buffer = createByteBuffer()
  // Timers measure the time: no step of a clock ends a body.
  const stepMs = Math.min(graceMs, rateCheckMs)
  const stepsOfCheck = Math.round(rateCheckMs / stepMs)
  let steps = 0
  let sizeBefore = 0
  let fault: Problem.ProblemError | undefined
  // A cancelled stream ends; waiting for two promises would cost five more for each piece.
  const giveUp = () => {
    fault ??= tooSlow()
    reader.cancel().catch(() => {})
  }
  const isBelow = (bytes: number, ms: number) => bytes * 1000 < bytesPerSecondMin * ms
  const isSlow = () => steps * stepMs >= graceMs && isBelow(buffer.size(), steps * stepMs)
  const leave = readers.enter({ client, isPaid, isSlow, giveUp })
  // The stream of a body costs more than the rest of its request: it is made only to be read.
  if (leave === undefined) throw busy()
  const reader = bodyOf(request).getReader()
  const watch = setInterval(() => {
    steps++
    if (steps % stepsOfCheck !== 0) return
    if (isBelow(buffer.size() - sizeBefore, rateCheckMs)) giveUp()
    sizeBefore = buffer.size()
  }, stepMs)
  try {
    for (let pieces = 1; ; pieces++) {
      const { done, value } = await reader.read()
      if (fault !== undefined) throw fault
      if (done) return buffer.join()
      if (buffer.size() + value.byteLength > maxBytes) throw tooLarge(maxBytes)
      if (!share.acquire(value.byteLength)) throw busy()
      buffer.add(value)
      if (pieces > piecesMax && buffer.size() < pieces * pieceAverageMinBytes) throw tooSmall()
    }
  } catch (error) {
    // Do not wait: a client that is still sending would delay the answer.
    reader.cancel().catch(() => {})
    throw fault ?? error
  } finally {
    clearInterval(watch)
    leave()
  }
}

function bodyOf({ body }: Request): ReadableStream<Uint8Array> {
  if (body === null) throw new Error('a body was announced and there is none')
  return body
}

/** Reads a body that is complete within one interval at the minimum transfer rate. */
async function readShort(request: Request, share: Share, rateCheckMs: number): Promise<Uint8Array> {
  const slow = Promise.withResolvers<never>()
  const timer = setTimeout(() => slow.reject(tooSlow()), rateCheckMs)
  try {
    const bytes = await Promise.race([request.bytes(), slow.promise])
    if (!share.acquire(bytes.byteLength)) throw busy()
    return bytes
  } finally {
    clearTimeout(timer)
  }
}

const blockMinBytes = 1024
const blockMaxBytes = 64 * 1024

/**
 * Copies small pieces into blocks, because the object of a piece is larger than a small piece. A
 * block is as large as all data before it. So a body of which only a byte arrives takes at most
 * twice the bytes that the budget counts.
 */
function createByteBuffer() {
  const full: Uint8Array[] = []
  let block = new Uint8Array(0)
  let blockUsed = 0
  let size = 0
  const close = () => {
    if (blockUsed > 0) full.push(block.subarray(0, blockUsed))
    block = new Uint8Array(0)
    blockUsed = 0
  }
  return {
    size: () => size,
    add(piece: Uint8Array): void {
      size += piece.byteLength
      if (piece.byteLength >= blockMaxBytes) {
        close()
        full.push(piece)
        return
      }
      if (blockUsed + piece.byteLength > block.byteLength) {
        close()
        const wanted = Math.max(blockMinBytes, size)
        block = new Uint8Array(Math.min(blockMaxBytes, wanted))
      }
      block.set(piece, blockUsed)
      blockUsed += piece.byteLength
    },
    join(): Uint8Array {
      close()
      const [only] = full
      return full.length === 1 && only !== undefined ? only : Buffer.concat(full, size)
    },
  }
}

/** End the connection, because unread pieces cost CPU, too. */
const last = { headers: { connection: 'close' } }

function tooLarge(maxBytes: number): Problem.ProblemError {
  return Problem.of('body-too-large', `The request body is larger than ${maxBytes} bytes.`)
}

function tooSlow(): Problem.ProblemError {
  const detail = 'The request body arrives too slowly: send it again at once.'
  return Problem.of('body-too-slow', detail, last)
}

function tooSmall(): Problem.ProblemError {
  const detail = 'The request body arrives in too many small pieces: send larger ones.'
  return Problem.of('bad-request', detail, last)
}

function busy(): Problem.ProblemError {
  const detail = 'Too many request bodies are in memory at the moment: wait for Retry-After.'
  return Problem.of('not-ready', detail, { headers: { 'retry-after': '1' } })
}

/**
 * Bodies that are read in pieces at the same moment. The runtime reserves 64 KiB for each pending
 * read, even when nothing arrives, and the garbage collector allows more garbage the more is
 * reserved: 2,000 idle uploads took 130 MB and doubled what the rest of the process took.
 */
type Readers = ReturnType<typeof createReaders>

type Reader = {
  /** Key of the client (http/client.ts). */
  client: string | undefined
  /** Whether it comes with a credential that we recognise. */
  isPaid: boolean
  /** Whether it has lasted long enough to be judged, and came too slowly. */
  isSlow(): boolean
  giveUp(): void
}

/** Share of the places for bodies without a credential, so that they never block paid ones. */
const unpaidReaders = 1 / 2
/**
 * Shares of one client in those places. Few clients send many long bodies without paying for them.
 */
const clientReaders = { paid: 1 / 4, unpaid: 1 / 32 }
const clientReadersMin = 16

/** Places for `max` bodies. */
export function createReaders(max: number) {
  const paid = createKind(max, clientReaders.paid)
  const unpaid = createKind(max * unpaidReaders, clientReaders.unpaid)
  const isFull = () => paid.open.size + unpaid.open.size >= max
  return {
    /**
     * Adds a body; the result takes it out again. When all places are taken, the oldest body that
     * came too slowly is given up. Undefined when there is no place.
     */
    enter(reader: Reader): (() => void) | undefined {
      const kind = reader.isPaid ? paid : unpaid
      if (!kind.admits(reader.client)) return undefined
      if (isFull() || kind.isFull()) giveUpOne(unpaid.open)
      if (isFull() || kind.isFull()) giveUpOne(kind.open)
      return isFull() || kind.isFull() ? undefined : kind.add(reader)
    },
  }
}

function createKind(max: number, share: number) {
  /** In the order in which they began. */
  const open = new Set<Reader>()
  const clients = createCounts()
  const ofClientMax = Math.max(clientReadersMin, max * share)
  return {
    open,
    isFull: () => open.size >= max,
    admits: (client: string | undefined) =>
      client === undefined || clients.of(client) < ofClientMax,
    add(reader: Reader) {
      const { client } = reader
      open.add(reader)
      if (client !== undefined) clients.add(client, 1)
      return () => {
        open.delete(reader)
        if (client !== undefined) clients.add(client, -1)
      }
    },
  }
}

/**
 * Gives up the oldest slow body. Its place is free at once, and it leaves the count when its read
 * has ended.
 */
function giveUpOne(readers: Set<Reader>): void {
  for (const reader of readers) {
    if (!reader.isSlow()) continue
    readers.delete(reader)
    reader.giveUp()
    return
  }
}
