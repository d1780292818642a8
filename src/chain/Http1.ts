/** Reads HTTP/1.1 answers from the bytes of a connection. RFC 9112, for one answer after the other. */

export type Answer = {
  status: number
  text: string
  /** The connection can carry another request. */
  isKept: boolean
}

export type Reader = {
  /** The answer once it is complete. Throws `Malformed`; then the connection is of no use any more. */
  push(bytes: Uint8Array): Answer | undefined
  /** The connection ended: an answer without a length ends with it. */
  end(): Answer | undefined
}

/** Nothing that we understand. The message can be shown. */
export class Malformed extends Error {
  override name = 'Malformed'
}

const headMaxBytes = 65_536
const lineMaxBytes = 1_024

type Head = { status: number; isKept: boolean; length: number | 'chunked' | 'close' }

/** A body above `maxBytes` is `Malformed`. */
export function createReader(maxBytes: number): Reader {
  let rest: Buffer = Buffer.alloc(0)
  let head: Head | undefined
  let parts: Buffer[] = []
  let size = 0
  /** Bytes of the body, or of its current chunk, that are still to come. */
  let left = 0
  let chunk: 'size' | 'data' | 'trailer' = 'size'

  const take = (count: number) => {
    const part = rest.subarray(0, count)
    rest = rest.subarray(part.length)
    return part
  }
  const keep = (part: Buffer) => {
    size += part.length
    if (size > maxBytes) throw new Malformed('answer too long')
    parts.push(part)
    left -= part.length
  }
  const complete = ({ status, isKept, length }: Head): Answer => {
    const [only] = parts
    const text = (parts.length === 1 && only ? only : Buffer.concat(parts)).toString()
    // Bytes that nobody asked for would be read as the next answer.
    const answer = { status, text, isKept: isKept && length !== 'close' && rest.length === 0 }
    head = undefined
    parts = []
    size = 0
    return answer
  }

  /** The next line without its end; undefined until it is there. */
  const line = () => {
    const end = rest.indexOf('\r\n')
    if (end > lineMaxBytes || (end < 0 && rest.length > lineMaxBytes)) {
      throw new Malformed('not HTTP')
    }
    return end < 0 ? undefined : take(end + 2).toString('latin1', 0, end)
  }
  /** Whether the last chunk has been read. */
  const readChunks = (): boolean => {
    for (;;) {
      if (chunk === 'data') {
        keep(take(left))
        if (left > 0 || rest.length < 2) return false
        if (take(2).toString('latin1') !== '\r\n') throw new Malformed('not HTTP')
        chunk = 'size'
      }
      const text = line()
      if (text === undefined) return false
      if (chunk === 'trailer') {
        if (text === '') return true
        continue
      }
      const digits = /^([0-9a-fA-F]{1,8})\s*(?:;.*)?$/.exec(text)?.[1]
      if (digits === undefined) throw new Malformed('not HTTP')
      left = Number.parseInt(digits, 16)
      chunk = left === 0 ? 'trailer' : 'data'
    }
  }

  return {
    push(bytes) {
      const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
      rest = rest.length === 0 ? buffer : Buffer.concat([rest, buffer])
      while (head === undefined) {
        const end = rest.indexOf('\r\n\r\n')
        if (end > headMaxBytes || (end < 0 && rest.length > headMaxBytes)) {
          throw new Malformed('not HTTP')
        }
        if (end < 0) return undefined
        const parsed = parseHead(take(end + 4).toString('latin1', 0, end))
        // Interim answers announce the one that counts.
        if (parsed.status < 200) continue
        head = parsed
        left = typeof parsed.length === 'number' ? parsed.length : 0
        chunk = 'size'
      }
      if (head.length === 'chunked') return readChunks() ? complete(head) : undefined
      if (head.length === 'close') left = rest.length
      keep(take(left))
      return left === 0 && head.length !== 'close' ? complete(head) : undefined
    },
    end: () => (head?.length === 'close' ? complete(head) : undefined),
  }
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
