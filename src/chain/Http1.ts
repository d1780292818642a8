/** Reads HTTP/1.1 answers from the bytes of a connection. RFC 9112, for one answer after the other. */

export type Answer = {
  status: number
  text: string
  /** Whether the connection can carry another request. */
  isKept: boolean
}

export type Reader = {
  /**
   * The answer once it is complete. Throws `Malformed`; then the connection must not be used again.
   */
  push(bytes: Buffer): Answer | undefined
  /** The connection ended: an answer without a length ends with it. */
  end(): Answer | undefined
}

/** The bytes are not a valid answer. The message can be shown. */
export class Malformed extends Error {
  override name = 'Malformed'
}

const headMaxBytes = 65_536
const lineMaxBytes = 1_024

type Head = { status: number; isKept: boolean; length: number | 'chunked' | 'close' }

/** How far the bytes of a connection have been read. */
type Progress = {
  readonly maxBytes: number
  /** Bytes that arrived and have not been read. */
  rest: Buffer
  /** Head of the answer whose body is being read. */
  head: Head | undefined
  /** Parts of that body. */
  parts: Buffer[]
  size: number
  /** Bytes of the body, or of its current chunk, that are missing. */
  left: number
  chunk: 'size' | 'data' | 'trailer'
}

/** A body above `maxBytes` is `Malformed`. */
export function createReader(maxBytes: number): Reader {
  const progress: Progress = {
    maxBytes,
    rest: nothing,
    head: undefined,
    parts: [],
    size: 0,
    left: 0,
    chunk: 'size',
  }
  return {
    push(bytes) {
      progress.rest = progress.rest.length === 0 ? bytes : Buffer.concat([progress.rest, bytes])
      const head = progress.head ?? readHead(progress)
      return head && readBody(progress, head) ? complete(progress, head) : undefined
    },
    end: () => (progress.head?.length === 'close' ? complete(progress, progress.head) : undefined),
  }
}

/** The head of the next answer; undefined until it has arrived. */
function readHead(progress: Progress): Head | undefined {
  for (;;) {
    const { rest } = progress
    const end = rest.indexOf('\r\n\r\n')
    if (end > headMaxBytes || (end < 0 && rest.length > headMaxBytes)) {
      throw new Malformed('not HTTP')
    }
    if (end < 0) return undefined
    const head = parseHead(rest.toString('latin1', 0, end))
    progress.rest = rest.subarray(end + 4)
    // Interim answers (1xx) precede the final one.
    if (head.status < 200) continue
    progress.head = head
    progress.left = typeof head.length === 'number' ? head.length : 0
    progress.chunk = 'size'
    return head
  }
}

/** Whether the body is complete. A body without a length is complete when the connection ends. */
function readBody(progress: Progress, { length }: Head): boolean {
  if (length === 'chunked') return readChunks(progress)
  if (length === 'close') progress.left = progress.rest.length
  keep(progress, take(progress, progress.left))
  return progress.left === 0 && length !== 'close'
}

/** Whether the last chunk has been read. */
function readChunks(progress: Progress): boolean {
  for (;;) {
    if (progress.chunk === 'data') {
      keep(progress, take(progress, progress.left))
      if (progress.left > 0 || progress.rest.length < 2) return false
      if (take(progress, 2).toString('latin1') !== '\r\n') throw new Malformed('not HTTP')
      progress.chunk = 'size'
    }
    const text = readLine(progress)
    if (text === undefined) return false
    if (progress.chunk === 'trailer') {
      if (text === '') return true
      continue
    }
    const digits = /^([0-9a-fA-F]{1,8})\s*(?:;.*)?$/.exec(text)?.[1]
    if (digits === undefined) throw new Malformed('not HTTP')
    progress.left = Number.parseInt(digits, 16)
    progress.chunk = progress.left === 0 ? 'trailer' : 'data'
  }
}

/** The next line without its end; undefined until it has arrived. */
function readLine(progress: Progress): string | undefined {
  const { rest } = progress
  const end = rest.indexOf('\r\n')
  if (end > lineMaxBytes || (end < 0 && rest.length > lineMaxBytes)) {
    throw new Malformed('not HTTP')
  }
  return end < 0 ? undefined : take(progress, end + 2).toString('latin1', 0, end)
}

const nothing = Buffer.alloc(0)

/** Removes up to `count` bytes from the bytes that arrived. */
function take(progress: Progress, count: number): Buffer {
  const { rest } = progress
  // Usually all of them. A view of a part costs more than the rest of this file.
  const isPart = count < rest.length
  progress.rest = isPart ? rest.subarray(count) : nothing
  return isPart ? rest.subarray(0, count) : rest
}

function keep(progress: Progress, part: Buffer): void {
  progress.size += part.length
  if (progress.size > progress.maxBytes) throw new Malformed('answer too long')
  progress.parts.push(part)
  progress.left -= part.length
}

/** The complete answer. The next bytes belong to the next answer. */
function complete(progress: Progress, { status, isKept, length }: Head): Answer {
  const { parts, rest } = progress
  const [only] = parts
  const text = (parts.length === 1 && only ? only : Buffer.concat(parts)).toString()
  progress.head = undefined
  progress.parts = []
  progress.size = 0
  // Bytes that were not requested would be read as the next answer.
  return { status, text, isKept: isKept && length !== 'close' && rest.length === 0 }
}

function parseHead(text: string): Head {
  const [first = '', ...lines] = text.split('\r\n')
  const [, minor, digits] = /^HTTP\/1\.([01]) (\d{3})(?: |$)/.exec(first) ?? []
  if (digits === undefined) throw new Malformed('not HTTP')
  const status = Number(digits)
  let isKept = minor === '1'
  let length: Head['length'] = 'close'
  for (const each of lines) {
    const colon = each.indexOf(':')
    const name = each.slice(0, colon).toLowerCase()
    const value = each.slice(colon + 1).trim()
    if (name === 'content-length') {
      if (!/^\d{1,15}$/.test(value)) throw new Malformed('not HTTP')
      if (typeof length === 'number') throw new Malformed('not HTTP')
      if (length === 'close') length = Number(value)
    } else if (name === 'transfer-encoding') {
      if (value.toLowerCase() !== 'chunked') throw new Malformed('an unknown transfer coding')
      length = 'chunked'
    } else if (name === 'content-encoding') {
      if (value.toLowerCase() !== 'identity') throw new Malformed('a content coding')
    } else if (name === 'connection') {
      isKept = /\bkeep-alive\b/i.test(value) || (isKept && !/\bclose\b/i.test(value))
    }
  }
  if (status < 200 || status === 204 || status === 304) length = 0
  return { status, isKept, length }
}
