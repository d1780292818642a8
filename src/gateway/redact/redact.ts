import { zlib } from '../../net/runtime'
import { UnreadableError } from '../../net/watch'
import * as Search from './Search'

/** `info`: the engine says how many bytes it has read. */
type Options = { maxOutputLength: number; info: true }
/** What the decoders return with `info`; the types of zlib do not know it. */
type Decoded = { buffer: Uint8Array; engine: { bytesWritten: number } }
/** The formats of compression by the names of content codings. */
export const formats: ReadonlyMap<string, Bun.CompressionFormat> = new Map([
  ['gzip', 'gzip'],
  ['x-gzip', 'gzip'],
  ['deflate', 'deflate'],
  ['br', 'brotli'],
  ['zstd', 'zstd'],
])

function decode(format: Bun.CompressionFormat, body: Uint8Array, options: Options): unknown {
  if (format === 'gzip') return zlib().gunzipSync(body, options)
  if (format === 'brotli') return zlib().brotliDecompressSync(body, options)
  if (format === 'zstd') return zlib().zstdDecompressSync(body, options)
  // Some servers omit the zlib header, and clients accept that.
  return isZlib(body) ? zlib().inflateSync(body, options) : zlib().inflateRawSync(body, options)
}

const decodedMaxBytes = 4 * 1024 * 1024
const stepBytes = 16 * 1024

/** Secrets compiled for the search: those that are redacted everywhere, and the others. */
export type Patterns = { everywhere: Search.Group | undefined; bounded: Search.Group | undefined }

/** An answer, in part or as a whole. Its headers are changed in place. */
type Answer<Body> = { headers: Headers; body: Body }
type Stream = ReadableStream<Uint8Array>

/**
 * A whole answer without secrets. An answer that has none is returned unchanged. An answer that had
 * some loses its entity tag and encoding. An encoded body is decoded whatever its status, because a
 * buyer may choose a path that repeats its request with 200. A body that becomes very long is
 * returned as a stream. Throws UnreadableError.
 */
export function redactAnswer(
  { headers, body }: Answer<Uint8Array>,
  patterns: Patterns | undefined,
): Uint8Array | Stream {
  if (patterns === undefined || body.byteLength === 0) return body
  const format = formatOf(headers)
  if (format === undefined) {
    const { clean } = replace(body, patterns, whole)
    if (clean !== body) headers.delete('etag')
    return clean
  }
  let plain: Uint8Array
  let readBytes: number
  try {
    const options = { maxOutputLength: decodedMaxBytes, info: true } as const
    const decoded = decode(format, body, options) as Decoded
    plain = decoded.buffer
    readBytes = decoded.engine.bytesWritten
  } catch (error) {
    if (isTooLarge(error))
      return redactStream({ headers, body: new Blob([new Uint8Array(body)]).stream() }, patterns)
    throw new UnreadableError(`the ${format} of the answer is broken`)
  }
  // zstd decodes a truncated frame to nothing without an error.
  if (plain.byteLength === 0 && format === 'zstd')
    throw new UnreadableError('the zstd of the answer is broken')
  const { clean } = replace(plain, patterns, whole)
  // Bytes behind the end of the encoding are not decoded, so nothing has looked for secrets in them.
  if (clean === plain && readBytes === body.byteLength) return body
  headers.delete('etag')
  headers.delete('content-encoding')
  return clean
}

/**
 * A stream without secrets, wherever its chunks are cut. It keeps back only an end that may begin a
 * secret. An encoded stream is decoded and sent unencoded, because bytes that were sent can no
 * longer be searched. It fails where its encoding fails. Without secrets the stream keeps its
 * encoding. Throws UnreadableError.
 */
export function redactStream(
  { headers, body }: Answer<Stream>,
  patterns: Patterns | undefined,
): Stream {
  if (patterns === undefined) return body
  const format = formatOf(headers)
  if (format === undefined) return without(patterns, body)
  headers.delete('etag')
  headers.delete('content-encoding')
  return without(patterns, opened(body, format))
}

function without(patterns: Patterns, source: Stream): Stream {
  const reader = source.getReader()
  const redactor = createRedactor(patterns)
  return new ReadableStream(
    {
      async pull(controller) {
        for (;;) {
          const { done, value } = await reader.read()
          const bytes = done ? redactor.end() : redactor.feed(value)
          if (bytes.byteLength > 0) controller.enqueue(bytes)
          if (done) controller.close()
          if (done || bytes.byteLength > 0) return
        }
      },
      cancel: (reason) => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  )
}

/** Decodes in small steps, because the output of a step may be a thousand times longer. */
function opened(source: Stream, format: Bun.CompressionFormat): Stream {
  const decoder = new DecompressionStream(format)
  return source
    .pipeThrough(
      new TransformStream<Uint8Array, Uint8Array<ArrayBuffer>>({
        transform(chunk, controller) {
          for (let at = 0; at < chunk.byteLength; at += stepBytes)
            controller.enqueue(new Uint8Array(chunk.subarray(at, at + stepBytes)))
        },
      }),
    )
    .pipeThrough(decoder)
}

/** Undefined for no encoding. Throws UnreadableError for unknown and nested encodings. */
function formatOf(headers: Headers): Bun.CompressionFormat | undefined {
  const names = (headers.get('content-encoding') ?? '')
    .split(',')
    .map((name) => name.trim().toLowerCase())
    .filter((name) => name !== '' && name !== 'identity')
  const [name] = names
  if (name === undefined) return undefined
  const format = names.length === 1 ? formats.get(name) : undefined
  if (format !== undefined) return format
  throw new UnreadableError('the encoding of the answer is unknown')
}

/** RFC 1950: the method, and a check over both bytes. */
function isZlib([a = 0, b = 0]: Uint8Array): boolean {
  return (a & 0x0f) === 8 && (a * 256 + b) % 31 === 0
}

function isTooLarge(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_BUFFER_TOO_LARGE'
}

/** Removes response headers that show a secret. */
export function redactHeaders(headers: Headers, patterns: Patterns | undefined): void {
  if (patterns === undefined) return
  for (const [name, value] of [...headers]) {
    const bytes = Buffer.from(`${name}: ${value}`)
    if (replace(bytes, patterns, whole).clean !== bytes) headers.delete(name)
  }
}

const marker = new TextEncoder().encode('[redacted]')
/** Numbers of zero bytes between two ASCII letters in UTF-16 and UTF-32. */
const gapMax = 3

/** Compiles secrets, in any order; undefined without any. */
export function compile(secrets: readonly Search.Secret[]): Patterns | undefined {
  const everywhere = Search.compile(secrets.filter((secret) => typeof secret === 'string'))
  const bounded = Search.compile(secrets.filter((secret) => typeof secret !== 'string'))
  return everywhere === undefined && bounded === undefined ? undefined : { everywhere, bounded }
}

/**
 * Replaces secrets wherever the chunks of an answer are cut. `feed` returns the bytes that may be sent
 * now: all except an end that may begin a secret. `end` returns what was kept back, after the last
 * chunk.
 */
export function createRedactor(patterns: Patterns) {
  let held: Uint8Array = new Uint8Array(0)
  let before: Uint8Array = new Uint8Array(0)
  const run = (bytes: Uint8Array, isLast: boolean) => {
    const all = held.byteLength === 0 ? bytes : Buffer.concat([held, bytes])
    const { clean, rest } = replace(all, patterns, { before, isLast })
    if (patterns.bounded !== undefined)
      before = tailOf(before, all.subarray(0, all.length - rest.length))
    // Copy, so that the kept bytes do not keep a whole chunk in memory.
    held = rest.slice()
    return clean
  }
  return { feed: (bytes: Uint8Array) => run(bytes, false), end: () => run(new Uint8Array(0), true) }
}

/** The last bytes that were sent, without the zeros of wide characters. */
function tailOf(before: Uint8Array, sent: Uint8Array): Uint8Array {
  const most = Search.contextBytes * (gapMax + 1)
  const own = sent.subarray(-most).filter((byte) => byte !== 0)
  return own.length >= Search.contextBytes
    ? own.slice(-Search.contextBytes)
    : new Uint8Array(Buffer.concat([before, own]).subarray(-Search.contextBytes))
}

type Place = { from: number; to: number }
/** `before`: the bytes that were sent before these. `isLast`: no more bytes will follow. */
type Around = { before: Uint8Array; isLast: boolean }
const whole: Around = { before: new Uint8Array(0), isLast: true }

/** `clean` is the same array when nothing is replaced or kept back. */
function replace(
  bytes: Uint8Array,
  patterns: Patterns,
  around: Around,
): { clean: Uint8Array; rest: Uint8Array } {
  const wide = bytes.includes(0) ? narrow(bytes) : undefined
  const searched = wide?.bytes ?? bytes
  const search = createSearch(searched, patterns, around)
  const parts: Uint8Array[] = []
  let from = 0
  for (;;) {
    const found = search(from)
    const start = wide ? (parts.length === 0 ? 0 : wide.after(from)) : from
    if (found?.to === undefined) {
      const until = found?.start ?? searched.length
      const end = wide ? wide.at(until) : until
      const rest = bytes.subarray(end)
      if (parts.length === 0)
        return { clean: rest.length === 0 ? bytes : bytes.subarray(0, end), rest }
      parts.push(bytes.subarray(start, end))
      return { clean: new Uint8Array(Buffer.concat(parts)), rest }
    }
    const { to, quote } = found
    const own = { from: found.from, to }
    const place = wide ? { from: wide.at(own.from), to: wide.after(to) } : own
    parts.push(bytes.subarray(start, place.from))
    const text = quote === undefined ? marker : Buffer.concat([quote, marker, quote])
    parts.push(wide ? widen(text, widthOf(place, own, wide.at)) : text)
    from = to
  }
}

/** A search for the next secret from a place on. It may be incomplete. */
function createSearch(bytes: Uint8Array, patterns: Patterns, { before, isLast }: Around) {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const { everywhere, bounded } = patterns
  const findAny = everywhere && Search.create(buffer, before, everywhere, isLast)
  const findBounded = bounded && Search.create(buffer, before, bounded, isLast)
  return (from: number): Search.Found | undefined => {
    const any = findAny?.(from)
    const short = findBounded?.(from)
    // A secret that is redacted everywhere takes precedence, because it is the longer one.
    if (short === undefined || (any !== undefined && short.start >= any.start)) return any
    if (any === undefined || short.from < any.start) return short
    // Keep back the name with its undecided value: a name that was sent alone would hide the value
    // from the next search.
    return any.to === undefined ? { start: short.start, from: short.start } : any
  }
}

/** Text without the zero bytes between its letters, and the original place of each byte. */
function narrow(bytes: Uint8Array) {
  const narrowed = new Uint8Array(bytes.length)
  const places = new Uint32Array(bytes.length + 1)
  let length = 0
  let zeros = 0
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0
    // A longer run of zeros is not text: keep it, so that no match crosses it.
    if (byte === 0 && ++zeros <= gapMax) continue
    if (byte !== 0) zeros = 0
    places[length] = at
    narrowed[length++] = byte
  }
  places[length] = bytes.length
  return {
    bytes: narrowed.subarray(0, length),
    at: (index: number) => places[index] ?? bytes.length,
    /** End of the previous byte in the original. The zeros after it stay outside of the match. */
    after: (index: number) => (index === 0 ? 0 : (places[index - 1] ?? bytes.length) + 1),
  }
}

/** Number of bytes of each character that is replaced. */
function widthOf(place: Place, found: Place, at: (index: number) => number): number {
  const steps = found.to - found.from - 1
  if (steps > 0) return Math.round((place.to - place.from - 1) / steps)
  return Math.min(gapMax + 1, at(found.to) - place.from)
}

/** The marker in the width of what it replaces, so that the text after it stays readable. */
function widen(text: Uint8Array, width: number): Uint8Array {
  if (width <= 1) return text
  const wide = new Uint8Array((text.length - 1) * width + 1)
  for (const [index, byte] of text.entries()) wide[index * width] = byte
  return wide
}
