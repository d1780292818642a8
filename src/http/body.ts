import * as Problem from '../protocol/Problem'

/** Bytes of request bodies that may be held at once, over all requests. */
export type Budget = {
  /** False when the bytes do not fit; then nothing is taken. */
  acquire(bytes: number): boolean
  release(bytes: number): void
  usedBytes(): number
}

/** A budget of `maxBytes`. */
export function createBudget(maxBytes: number): Budget {
  let used = 0
  return {
    acquire: (bytes) => {
      if (used + bytes > maxBytes) return false
      used += bytes
      return true
    },
    release: (bytes) => {
      used = Math.max(0, used - bytes)
    },
    usedBytes: () => used,
  }
}

/** A body held in memory. `release` gives its bytes back to the budget, once. */
export type Body = { bytes: Uint8Array; release(): void }

/** Slower than this in any `paceMs` is no upload but somebody who holds the budget of all. */
const bytesPerSecondMin = 16 * 1024

/**
 * Reads a body whole. The budget holds its bytes until `release`; on failure nothing is held.
 * Throws ProblemError:
 * `body-too-large` 413 as soon as the announced or the received size is over `maxBytes`, `not-ready`
 * 503 when the budget is used up, `body-too-slow` 408 when it drips, `bad-request` 400 when the
 * client stops before the end.
 */
export async function readBody(
  request: Request,
  maxBytes: number,
  budget: Budget,
  paceMs = 10_000,
): Promise<Body> {
  if (request.body === null) return held(new Uint8Array(0), budget)
  const announced = Number(request.headers.get('content-length') ?? 0)
  if (announced > maxBytes) throw tooLarge(maxBytes)
  const shortMax = Math.floor((bytesPerSecondMin * paceMs) / 1000)
  if (announced > 0 && announced < shortMax) {
    return readShort(request, announced, budget, paceMs)
  }
  const reader = request.body.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  let sizeBefore = 0
  const slow = Promise.withResolvers<never>()
  const watch = setInterval(() => {
    if ((size - sizeBefore) * 1000 < bytesPerSecondMin * paceMs) slow.reject(tooSlow())
    sizeBefore = size
  }, paceMs)
  try {
    for (;;) {
      const { done, value } = await Promise.race([reader.read(), slow.promise])
      if (done) return held(join(chunks, size), budget)
      if (size + value.byteLength > maxBytes) throw tooLarge(maxBytes)
      if (!budget.acquire(value.byteLength)) throw busy()
      size += value.byteLength
      chunks.push(value)
    }
  } catch (error) {
    budget.release(size)
    // Without waiting: a client that is still sending would hold the answer back.
    reader.cancel().catch(() => {})
    if (error instanceof Problem.ProblemError) throw error
    throw Problem.of('bad-request', 'The request body ended early.', { cause: error })
  } finally {
    clearInterval(watch)
  }
}

/** One that at the least pace is complete within one look: without a stream it costs a third. */
async function readShort(
  request: Request,
  announced: number,
  budget: Budget,
  paceMs: number,
): Promise<Body> {
  if (!budget.acquire(announced)) throw busy()
  const slow = Promise.withResolvers<never>()
  const timer = setTimeout(() => slow.reject(tooSlow()), paceMs)
  try {
    const bytes = await Promise.race([request.bytes(), slow.promise])
    // The server hands out no more than was announced.
    budget.release(announced - bytes.byteLength)
    return held(bytes, budget)
  } catch (error) {
    budget.release(announced)
    if (error instanceof Problem.ProblemError) throw error
    throw Problem.of('bad-request', 'The request body ended early.', { cause: error })
  } finally {
    clearTimeout(timer)
  }
}

function held(bytes: Uint8Array, budget: Budget): Body {
  let size = bytes.byteLength
  return {
    bytes,
    release: () => {
      budget.release(size)
      size = 0
    },
  }
}

function join(chunks: readonly Uint8Array[], size: number): Uint8Array {
  const [only] = chunks
  if (chunks.length === 1 && only !== undefined) return only
  const bytes = new Uint8Array(size)
  let offset = 0
  for (const chunk of chunks) {
    bytes.set(chunk, offset)
    offset += chunk.byteLength
  }
  return bytes
}

function tooLarge(maxBytes: number): Problem.ProblemError {
  return Problem.of('body-too-large', `The request body is larger than ${maxBytes} bytes.`)
}

function tooSlow(): Problem.ProblemError {
  return Problem.of('body-too-slow', 'The request body comes too slowly.')
}

function busy(): Problem.ProblemError {
  return Problem.of('not-ready', 'Too many request bodies are held at the moment.', {
    headers: { 'retry-after': '1' },
  })
}
