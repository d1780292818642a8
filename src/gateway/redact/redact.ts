import { zlib } from '../../net/runtime'
import { UnreadableError } from '../../net/watch'
import * as Bounded from './Bounded'
import * as Encoded from './Encoded'

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

/** A text that is redacted everywhere, or only as a separate word or after its name. */
export type Secret = string | Bounded.Bounded

/** Secrets compiled for the search. */
export type Patterns = {
  literal: readonly Buffer[]
  /** Texts of ASCII by their first byte. */
  encoded: readonly (readonly Uint8Array[] | undefined)[]
  /** Bytes that a match of `encoded` may begin with. */
  starts: Uint8Array
  /** Bytes that may follow a first byte that is not encoded. */
  seconds: Uint8Array
  /** Bytes of which a match of `encoded` contains one. */
  escapes: readonly number[]
  /** Most characters of a text. */
  longest: number
  bounded: readonly Bounded.Pattern[]
}

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
    if (isTooLarge(error)) return redactStream({ headers, body: streamOf(body) }, patterns)
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

function streamOf(bytes: Uint8Array): Stream {
  return new ReadableStream({
    start(controller) {
      controller.enqueue(bytes)
      controller.close()
    },
  })
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
export function compile(all: readonly Secret[]): Patterns | undefined {
  if (all.length === 0) return undefined
  const secrets = all.filter((secret) => typeof secret === 'string')
  const bounded = Bounded.compile(all.filter((secret) => typeof secret !== 'string'))
  // Longest first: matching the shorter of two with a common start would leak the rest.
  const literal = secrets.map((secret) => Buffer.from(secret)).sort((a, b) => b.length - a.length)
  const encoded: Uint8Array[][] = new Array(256)
  for (const secret of secrets) {
    const text = Encoded.from(secret)
    const [first] = text ?? []
    if (text === undefined || first === undefined) continue
    encoded[first] = [...(encoded[first] ?? []), text]
  }
  // A form encodes a blank as a plus sign.
  const hasBlank = secrets.some((secret) => secret.includes(' '))
  const escapes = hasBlank ? [...Encoded.escapes, 0x2b] : Encoded.escapes
  const [starts, seconds] = [new Uint8Array(256), new Uint8Array(256)]
  for (const byte of escapes) starts[byte] = seconds[byte] = 1
  for (const [first = 0, second = 0] of encoded.flat()) starts[first] = seconds[second] = 1
  const longest = literal[0]?.length ?? 0
  return { literal, encoded, starts, seconds, escapes, longest, bounded }
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
    if (patterns.bounded.length > 0)
      before = tailOf(before, all.subarray(0, all.length - rest.length))
    // Copy, so that the kept bytes do not keep a whole chunk in memory.
    held = rest.slice()
    return clean
  }
  return { feed: (bytes: Uint8Array) => run(bytes, false), end: () => run(new Uint8Array(0), true) }
}

/** The last bytes that were sent, without the zeros of wide characters. */
function tailOf(before: Uint8Array, sent: Uint8Array): Uint8Array {
  const most = Bounded.contextBytes * (gapMax + 1)
  const own = sent.subarray(-most).filter((byte) => byte !== 0)
  return own.length >= Bounded.contextBytes
    ? own.slice(-Bounded.contextBytes)
    : new Uint8Array(Buffer.concat([before, own]).subarray(-Bounded.contextBytes))
}

/** `quote`: bytes that the marker needs on both sides. */
type Place = { from: number; to: number; quote?: Uint8Array | undefined }
/** `before`: the bytes that were sent before these. `isLast`: no more bytes will follow. */
type Around = { before: Uint8Array; isLast: boolean }
const whole: Around = { before: new Uint8Array(0), isLast: true }
/** The next place; without one, `until` is the place where an incomplete secret may begin. */
type Result = { found: Place | undefined; until: number }

/** `clean` is the same array when nothing is replaced or kept back. */
function replace(
  bytes: Uint8Array,
  patterns: Patterns,
  around: Around,
): { clean: Uint8Array; rest: Uint8Array } {
  const wide = bytes.includes(0) ? narrow(bytes) : undefined
  const search = createSearch(wide?.bytes ?? bytes, patterns, around)
  const parts: Uint8Array[] = []
  let from = 0
  for (;;) {
    const { found, until } = search(from)
    if (found === undefined) {
      const end = wide ? wide.at(until) : until
      const start = wide ? (parts.length === 0 ? 0 : wide.after(from)) : from
      const rest = bytes.subarray(end)
      if (parts.length === 0)
        return { clean: rest.length === 0 ? bytes : bytes.subarray(0, end), rest }
      parts.push(bytes.subarray(start, end))
      return { clean: new Uint8Array(Buffer.concat(parts)), rest }
    }
    const start = wide ? (parts.length === 0 ? 0 : wide.after(from)) : from
    const place = wide ? { from: wide.at(found.from), to: wide.after(found.to) } : found
    parts.push(bytes.subarray(start, place.from))
    const { quote } = found
    const text = quote === undefined ? marker : Buffer.concat([quote, marker, quote])
    parts.push(wide ? widen(text, widthOf(place, found, wide.at)) : text)
    from = found.to
  }
}

/** Next secret from here on; without one, the place where an incomplete secret may begin. */
function createSearch(bytes: Uint8Array, patterns: Patterns, { before, isLast }: Around) {
  const { literal, bounded } = patterns
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const next = literal.map((pattern) => buffer.indexOf(pattern))
  const findEncoded = createEncodedSearch(buffer, patterns, isLast)
  const findPartialStart = createPartialStartSearch(buffer, literal)
  const findAny = (from: number): Result => {
    let until = isLast ? buffer.length : findPartialStart(from)
    let found: Place | undefined
    for (const [index, pattern] of literal.entries()) {
      let place = next[index] ?? -1
      if (place !== -1 && place < from) place = next[index] = buffer.indexOf(pattern, from)
      if (place !== -1 && place < until) {
        until = place
        found = { from: place, to: place + pattern.length }
      }
    }
    const encoded = findEncoded(from, until)
    if (encoded === undefined) return { found, until }
    const { from: start, to } = encoded
    // At one place the longest match counts. A longer, undecided match waits for more bytes.
    if (to === undefined || (start === until && found === undefined))
      return { found: undefined, until: start }
    const end = start === until ? Math.max(to, found?.to ?? 0) : to
    return { found: { from: start, to: end }, until: start }
  }
  if (bounded.length === 0) return findAny
  const findBounded = Bounded.createSearch(buffer, before, bounded, isLast)
  let any: Result | undefined
  return (from: number): Result => {
    // Ordinary answers have many bounded values. Search for other secrets only after the last
    // result.
    if (any === undefined || any.until < from) any = findAny(from)
    const short = findBounded(from)
    // A secret that is redacted everywhere takes precedence, because it is the longer one.
    if (short === undefined || short.start >= any.until) return any
    if (short.from >= any.until && any.found !== undefined) return any
    // Keep back the name with its undecided value: a name that was sent alone would hide the value
    // from the next search.
    if (short.from >= any.until) return { found: undefined, until: short.start }
    const { from: start, to, quote } = short
    if (to === undefined) return { found: undefined, until: start }
    return { found: { from: start, to, quote }, until: start }
  }
}

/**
 * `partialStart` from places that only increase. Each call compares the whole end with every
 * secret.
 */
function createPartialStartSearch(buffer: Buffer, literal: readonly Buffer[]) {
  let known: number | undefined
  return (from: number): number => {
    if (known === undefined || known < from) known = partialStart(buffer, literal, from)
    return known
  }
}

/** Start of a suffix that may begin a secret; the buffer's length when there is none. */
function partialStart(buffer: Buffer, patterns: readonly Buffer[], from: number): number {
  const longest = patterns[0]?.length ?? 0
  for (let at = Math.max(from, buffer.length - longest + 1); at < buffer.length; at++) {
    const end = buffer.subarray(at)
    const isPartial = (pattern: Buffer) =>
      pattern[0] === end[0] &&
      pattern.length > end.length &&
      pattern.subarray(0, end.length).equals(end)
    if (patterns.some(isPartial)) return at
  }
  return buffer.length
}

/**
 * Searches only around bytes that begin encoded characters: a match contains one of them, after
 * fewer literal characters than the text has. Plain answers have none.
 */
function createEncodedSearch(buffer: Buffer, patterns: Patterns, isLast: boolean) {
  const { escapes, starts, seconds, longest } = patterns
  const next = escapes.map((byte) => buffer.indexOf(byte))
  const nearest = (at: number): number => {
    let sign = -1
    for (let index = 0; index < next.length; index++) {
      let place = next[index] ?? -1
      if (place !== -1 && place < at) place = next[index] = buffer.indexOf(escapes[index] ?? 0, at)
      if (place !== -1 && (sign === -1 || place < sign)) sign = place
    }
    return sign
  }
  /** `to` is undefined for a match that is undecided when the bytes end. */
  return (from: number, until: number): { from: number; to?: number } | undefined => {
    let at = from
    for (;;) {
      const sign = nearest(at)
      if (sign === -1) return undefined
      for (at = Math.max(at, sign - longest + 1); at <= sign; at++) {
        const byte = buffer[at] ?? 0
        if (starts[byte] === 0) continue
        if (seconds[buffer[at + 1] ?? 0x25] === 0 && !Encoded.isEscape(byte)) continue
        if (at > until) return undefined
        const to = matchAt(buffer, at, patterns, isLast)
        if (to === Encoded.partial) return { from: at }
        if (to !== Encoded.none) return { from: at, to }
      }
    }
  }
}

/** The longest match that begins at a place. An undecided match takes precedence. */
function matchAt(buffer: Buffer, at: number, patterns: Patterns, isLast: boolean): number {
  const { encoded } = patterns
  const byte = buffer[at] ?? 0
  const behind = { at: at + 1, index: 1 }
  if (!Encoded.isEscape(byte)) {
    const result = matchFrom(buffer, behind, encoded[byte], isLast)
    // A form encodes a blank as a plus sign.
    return byte === 0x2b ? join(result, matchFrom(buffer, behind, encoded[0x20], isLast)) : result
  }
  const decoded = Encoded.decode(buffer, at, isLast)
  let result = decoded
  if (decoded >= 0) {
    const place = { at: Encoded.endOf(decoded), index: 1 }
    result = matchFrom(buffer, place, encoded[Encoded.byteOf(decoded)], isLast)
  }
  // A character that begins escapes has several readings.
  const own = encoded[byte]
  return own ? join(result, matchFrom(buffer, { at, index: 0 }, own, isLast)) : result
}

function matchFrom(
  buffer: Buffer,
  place: { at: number; index: number },
  texts: readonly Uint8Array[] | undefined,
  isLast: boolean,
): number {
  let result = Encoded.none
  if (texts === undefined) return result
  for (const text of texts) result = join(result, Encoded.match(buffer, place, text, isLast))
  return result
}

function join(one: number, other: number): number {
  if (one === Encoded.partial || other === Encoded.partial) return Encoded.partial
  return Math.max(one, other)
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
