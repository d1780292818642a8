import * as Problem from '../protocol/Problem'
import { createReaders, type Readers } from './readers'

/** Bytes of request bodies that are held at once, over all requests. They count when they arrive. */
export type Budget = {
  /** Opens the account of one body, which holds nothing at first. */
  open(owner?: BodyOwner): Share
  usedBytes(): number
  /** Of bodies that are read in pieces. */
  readers: Readers
}

/** Whose body it is. */
export type BodyOwner = {
  /** Key of the client (http/clientip.ts); without one only the limits of all count. */
  client?: string
  /** Whether it comes with a credential that we recognise. Default: it does not. */
  isPaid?: boolean
}

export type Share = {
  /** False when the bytes do not fit; then nothing is taken. */
  acquire(bytes: number): boolean
  /** Gives everything back. */
  release(): void
}

/** Share of the budget for bodies without such a credential, so that they never block paid requests. */
const unpaidShare = 1 / 4
/** Share of one client in the limit of its kind of bodies. */
const clientShare = 1 / 4
/** A budget has a place for a body that is read in pieces for each of these. */
const bytesPerReader = 256 * 1024
const readersMin = 16

/**
 * A budget of `maxBytes`. Shares limit a body only while the client, or its kind, holds another
 * one, because a share may be smaller than the largest body that a route accepts.
 */
export function createBudget(maxBytes: number): Budget {
  let used = 0
  let unpaid = 0
  /** By kind and client; only those that hold something. */
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

/** A body held in memory. `release` gives its bytes back to the budget, once. */
export type Body = { bytes: Uint8Array; release(): void }

export type ReadOptions = BodyOwner & {
  /** Interval between two checks of the pace, ms. */
  paceMs?: number
  /** Time after which a body may be given up for another one, ms. */
  graceMs?: number
}

/** A body slower than this holds the budget of all for too long. */
const bytesPerSecondMin = 16 * 1024
/** A body announced up to this size is read in one go, which costs a third of a stream. */
const shortMaxBytes = 16 * 1024
/** Number of pieces that may have any size; beyond it the average size must suffice. */
const piecesMax = 256
const pieceAverageMinBytes = 64

/**
 * Reads a body whole. The budget holds the bytes that have arrived until `release`; on failure
 * nothing is held.
 * Throws ProblemError:
 * `body-too-large` 413 as soon as the announced or the received size is over `maxBytes`, `not-ready`
 * 503 when the budget is used up, `body-too-slow` 408 when it drips, `bad-request` 400 when the
 * client stops before the end, or sends so small pieces that they cost more than their bytes: each
 * piece of a chunked body is an object and a turn of the event loop, even one of one byte.
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
    const { paceMs = 10_000, graceMs = 1_000 } = options
    const pace = { owner: options, readers: budget.readers, paceMs, graceMs }
    const bytes = await (isShort
      ? readShort(request, share, paceMs)
      : readPieces(request, maxBytes, share, pace))
    return { bytes, release: share.release }
  } catch (error) {
    share.release()
    if (error instanceof Problem.ProblemError) throw error
    throw Problem.of('bad-request', 'The request body ended early.', { cause: error })
  }
}

type Pace = Required<Pick<ReadOptions, 'paceMs' | 'graceMs'>> & {
  owner: BodyOwner
  readers: Readers
}

async function readPieces(
  request: Request,
  maxBytes: number,
  share: Share,
  { owner: { client, isPaid = false }, readers, paceMs, graceMs }: Pace,
): Promise<Uint8Array> {
  const pile = createPile()
  // Timers measure the time: no step of a clock ends a body.
  const stepMs = Math.min(graceMs, paceMs)
  const stepsOfPace = Math.round(paceMs / stepMs)
  let steps = 0
  let sizeBefore = 0
  let fault: Problem.ProblemError | undefined
  // A cancelled stream ends; waiting for two promises would cost five more for each piece.
  const giveUp = () => {
    fault ??= tooSlow()
    reader.cancel().catch(() => {})
  }
  const isBelow = (bytes: number, ms: number) => bytes * 1000 < bytesPerSecondMin * ms
  const isSlow = () => steps * stepMs >= graceMs && isBelow(pile.size(), steps * stepMs)
  const leave = readers.enter({ client, isPaid, isSlow, giveUp })
  // The stream of a body costs more than the rest of its request: it is made only to be read.
  if (leave === undefined) throw busy()
  const reader = bodyOf(request).getReader()
  const watch = setInterval(() => {
    steps++
    if (steps % stepsOfPace !== 0) return
    if (isBelow(pile.size() - sizeBefore, paceMs)) giveUp()
    sizeBefore = pile.size()
  }, stepMs)
  try {
    for (let pieces = 1; ; pieces++) {
      const { done, value } = await reader.read()
      if (fault !== undefined) throw fault
      if (done) return pile.join()
      if (pile.size() + value.byteLength > maxBytes) throw tooLarge(maxBytes)
      if (!share.acquire(value.byteLength)) throw busy()
      pile.add(value)
      if (pieces > piecesMax && pile.size() < pieces * pieceAverageMinBytes) throw tooSmall()
    }
  } catch (error) {
    // Without waiting: a client that is still sending would hold the answer back.
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

/** Largest body that is complete within one check at the slowest pace. */
async function readShort(request: Request, share: Share, paceMs: number): Promise<Uint8Array> {
  const slow = Promise.withResolvers<never>()
  const timer = setTimeout(() => slow.reject(tooSlow()), paceMs)
  try {
    const bytes = await Promise.race([request.bytes(), slow.promise])
    if (!share.acquire(bytes.byteLength)) throw busy()
    return bytes
  } finally {
    clearTimeout(timer)
  }
}

type Pile = { add(piece: Uint8Array): void; size(): number; join(): Uint8Array }

const blockMinBytes = 1024
const blockMaxBytes = 64 * 1024

/**
 * Small pieces are copied into blocks: the object of a kept piece is larger than a small piece. A
 * block is as large as what came before it, so that bodies of which only a byte arrives hold no more
 * than the budget counts, twice.
 */
function createPile(): Pile {
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

/** Ends the connection, because even unread pieces cost CPU. */
const last = { headers: { connection: 'close' } }

function tooLarge(maxBytes: number): Problem.ProblemError {
  return Problem.of('body-too-large', `The request body is larger than ${maxBytes} bytes.`)
}

function tooSlow(): Problem.ProblemError {
  return Problem.of('body-too-slow', 'The request body comes too slowly.', last)
}

function tooSmall(): Problem.ProblemError {
  return Problem.of('bad-request', 'The request body comes in too many small pieces.', last)
}

function busy(): Problem.ProblemError {
  return Problem.of('not-ready', 'Too many request bodies are held at the moment.', {
    headers: { 'retry-after': '1' },
  })
}
