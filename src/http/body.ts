import * as Problem from '../protocol/Problem'
import { createReaders, type Readers } from './readers'

/** Bytes of request bodies in memory, over all requests. Bytes count when they arrive. */
export type Budget = {
  /** Opens the account of one body, which has no bytes yet. */
  open(owner?: BodyOwner): Share
  usedBytes(): number
  /** Places for bodies that are read in pieces. */
  readers: Readers
}

/** The client that a body came from. */
export type BodyOwner = {
  /** Key of the client (http/client-ip.ts). Without it only the limits of all clients apply. */
  client?: string
  /** Whether the body comes with a credential that we recognise. Default: false. */
  isPaid?: boolean
}

export type Share = {
  /** False when the bytes do not fit; then nothing is taken. */
  acquire(bytes: number): boolean
  /** Returns all bytes to the budget. */
  release(): void
}

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
export function createBudget(maxBytes: number): Budget {
  let used = 0
  let unpaid = 0
  /** By kind and client; only clients with bytes in memory. */
  const clients = new Map<string, number>()

  return {
    usedBytes: () => used,
    readers: createReaders(Math.max(readersMin, Math.floor(maxBytes / bytesPerReader))),
    open({ client, isPaid = false } = {}) {
      const kindMax = isPaid ? maxBytes : maxBytes * unpaidShare
      const key = client === undefined ? undefined : `${isPaid ? 'paid' : 'unpaid'} ${client}`
      let held = 0
      /** Whether the bytes exceed a limit that is shared with other bodies. */
      const isOver = (sum: number, bytes: number, limit: number) =>
        sum + bytes > limit && sum > held
      const add = (bytes: number) => {
        held += bytes
        used += bytes
        if (!isPaid) unpaid += bytes
        if (key === undefined) return
        const sum = (clients.get(key) ?? 0) + bytes
        if (sum > 0) clients.set(key, sum)
        else clients.delete(key)
      }
      return {
        acquire(bytes) {
          if (used + bytes > maxBytes) return false
          if (!isPaid && isOver(unpaid, bytes, kindMax)) return false
          const own = key === undefined ? 0 : (clients.get(key) ?? 0)
          if (isOver(own, bytes, kindMax * clientShare)) return false
          add(bytes)
          return true
        },
        release: () => add(-held),
      }
    },
  }
}

/** A body in memory. `release` returns its bytes to the budget, once. */
export type Body = { bytes: Uint8Array; release(): void }

export type ReadOptions = BodyOwner & {
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
    const { rateCheckMs = 10_000, graceMs = 1_000 } = options
    const check = { owner: options, readers: budget.readers, rateCheckMs, graceMs }
    const bytes = await (isShort
      ? readShort(request, share, rateCheckMs)
      : readPieces(request, maxBytes, share, check))
    return { bytes, release: share.release }
  } catch (error) {
    share.release()
    if (error instanceof Problem.ProblemError) throw error
    throw Problem.of('bad-request', 'The request body ended early: send it again.', {
      cause: error,
    })
  }
}

type RateCheck = Required<Pick<ReadOptions, 'rateCheckMs' | 'graceMs'>> & {
  owner: BodyOwner
  readers: Readers
}

async function readPieces(
  request: Request,
  maxBytes: number,
  share: Share,
  { owner: { client, isPaid = false }, readers, rateCheckMs, graceMs }: RateCheck,
): Promise<Uint8Array> {
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

type ByteBuffer = { add(piece: Uint8Array): void; size(): number; join(): Uint8Array }

const blockMinBytes = 1024
const blockMaxBytes = 64 * 1024

/**
 * Copies small pieces into blocks, because the object of a piece is larger than a small piece. A
 * block is as large as all data before it. So a body of which only a byte arrives takes at most
 * twice the bytes that the budget counts.
 */
function createByteBuffer(): ByteBuffer {
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
    add(piece) {
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
    join() {
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
  return Problem.of(
    'body-too-slow',
    'The request body arrives too slowly: send it again at once.',
    last,
  )
}

function tooSmall(): Problem.ProblemError {
  return Problem.of(
    'bad-request',
    'The request body arrives in too many small pieces: send larger ones.',
    last,
  )
}

function busy(): Problem.ProblemError {
  return Problem.of(
    'not-ready',
    'Too many request bodies are in memory at the moment: wait for Retry-After.',
    {
      headers: { 'retry-after': '1' },
    },
  )
}
