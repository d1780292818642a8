import { zlib } from '../../net/runtime'
import { UnreadableError } from '../../net/watch'
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

/** Secrets compiled for the search: those that are redacted everywhere, and the others. */
export type Patterns = { everywhere: Group | undefined; bounded: Group | undefined }

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
export function compile(secrets: readonly Secret[]): Patterns | undefined {
  const everywhere = compileGroup(secrets.filter((secret) => typeof secret === 'string'))
  const bounded = compileGroup(secrets.filter((secret) => typeof secret !== 'string'))
  return everywhere === undefined && bounded === undefined ? undefined : { everywhere, bounded }
}

/**
 * Replaces secrets wherever the chunks of an answer are cut. `feed` returns the bytes that may be
 * sent now: all except an end that may begin a secret. `end` returns what was kept back, after the
 * last chunk.
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
  const most = contextBytes * (gapMax + 1)
  const own = sent.subarray(-most).filter((byte) => byte !== 0)
  return own.length >= contextBytes
    ? own.slice(-contextBytes)
    : new Uint8Array(Buffer.concat([before, own]).subarray(-contextBytes))
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
  const findAny = everywhere && createGroupSearch(buffer, before, everywhere, isLast)
  const findBounded = bounded && createGroupSearch(buffer, before, bounded, isLast)
  return (from: number): Found | undefined => {
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

/**
 * A text that is found everywhere, or a value that is too short, or too ordinary, for that. A value
 * without a name is found where it is a separate word. A value with a name is found only after its
 * name, in the forms in which an answer repeats the request: `name=value`, `"name": ["value"]`,
 * `<name>value</name>`, `name="..." value="..."`. All are found in every spelling that `Encoded`
 * reads.
 */
export type Secret = string | { name?: string; value: string }

type Pattern = { name?: Uint8Array | undefined; value: Uint8Array; isBounded: boolean }

/** Secrets compiled for the search. */
type Group = {
  /** By the first byte of the name or the value. */
  heads: readonly (readonly Pattern[] | undefined)[]
  texts: readonly Uint8Array[]
  /** Bytes of which a match that is not literal contains one. */
  escapes: readonly number[]
  /** Bytes that a match may begin with, and that may follow a first byte that is not encoded. */
  starts: Uint8Array
  seconds: Uint8Array
  /** Most bytes of a text. */
  longest: number
}

/** The value is at `from` to `to`; its name begins at `start`. Without `to` it is undecided. */
type Found = { start: number; from: number; to?: number; quote?: Uint8Array | undefined }

/** Number of bytes before a place that tell whether an encoded character ends there. */
const contextBytes = 16
/** Most characters between a name and its value. */
const separatorsMax = 64
const plus = 0x2b
/** Begins escapes. Stands for the byte after the last one, which may be anything. */
const percent = 0x25
const blank = 0x20
/** Words between a name and its value: `name="x" value="y"`, `<x><![CDATA[y]]></x>`. */
const between = /^(?:value|content|CDATA)/i

/** Compiles secrets, in any order; undefined without any. */
function compileGroup(secrets: readonly Secret[]): Group | undefined {
  const bytes = (text: string) => new TextEncoder().encode(text)
  const patterns = secrets.flatMap((secret): Pattern[] => {
    if (typeof secret === 'string') return [{ value: bytes(secret), isBounded: false }]
    const { name, value } = secret
    if (value === '') return []
    return [{ name: name ? bytes(name) : undefined, value: bytes(value), isBounded: true }]
  })
  if (patterns.length === 0) return undefined
  const texts = patterns.map(({ name, value }) => name ?? value)
  // A form encodes a blank as a plus sign.
  const hasBlank = texts.some((text) => text.includes(blank))
  const escapes = hasBlank ? [...Encoded.escapes, plus] : Encoded.escapes
  const [starts, seconds] = [new Uint8Array(256), new Uint8Array(256)]
  for (const byte of escapes) starts[byte] = seconds[byte] = 1
  const heads: Pattern[][] = new Array(256)
  for (const [index, [first = 0, second]] of texts.entries()) {
    heads[first] = [...(heads[first] ?? []), ...patterns.slice(index, index + 1)]
    starts[first] = 1
    if (second === undefined) seconds.fill(1)
    else seconds[second] = 1
  }
  const longest = Math.max(...texts.map(({ length }) => length))
  return { heads, texts, escapes, starts, seconds, longest }
}

/**
 * Returns a search for the next secret from a place on, in order of the places. The requested
 * places only increase. `before`: the bytes that were sent before these. `isLast`: no more bytes
 * will follow.
 */
function createGroupSearch(
  bytes: Buffer,
  before: Uint8Array,
  group: Group,
  isLast: boolean,
): (from: number) => Found | undefined {
  const { texts, escapes, longest } = group
  const text: Text = { bytes, before, isLast, group }
  const nextPlain = nextOf(bytes, texts)
  const nextEscape = nextOf(bytes, escapes)
  // From here on the bytes may end within a text.
  const tail = isLast ? bytes.length : Math.max(0, bytes.length - longest + 1)
  let known: Found | undefined
  let isKnown = false
  return (from) => {
    if (isKnown && (known === undefined || known.start >= from)) return known
    isKnown = true
    known = undefined
    let at = from
    while (known === undefined && at < bytes.length) {
      // A match with an encoded character has one after fewer characters than its length. Plain
      // answers have none.
      const sign = nextEscape(at)
      const around = Math.min(tail, sign === bytes.length ? sign : sign - longest + 1)
      const start = around <= at ? at : Math.min(around, nextPlain(at))
      const end = start >= tail ? bytes.length : start >= around ? sign + 1 : start + 1
      known = findBetween(text, start, end)
      at = end
    }
    return known
  }
}

type Text = { bytes: Buffer; before: Uint8Array; isLast: boolean; group: Group }

/** The first match that begins between two places. */
function findBetween(text: Text, start: number, end: number): Found | undefined {
  const { bytes, group } = text
  const { starts, seconds } = group
  for (let at = start; at < end; at++) {
    const byte = bytes[at] ?? 0
    if (starts[byte] === 0) continue
    if (seconds[bytes[at + 1] ?? percent] === 0 && !Encoded.isEscape(byte)) continue
    const found = findAt(text, at)
    if (found !== undefined) return found
  }
  return undefined
}

/** Next place of one of the texts; the length when there is none. */
function nextOf(bytes: Buffer, texts: readonly (number | Uint8Array)[]): (at: number) => number {
  const find = (index: number, at: number) => {
    const place = bytes.indexOf(texts[index] ?? 0, at)
    return place === -1 ? bytes.length : place
  }
  const places = texts.map((_, index) => find(index, 0))
  return (at) => {
    let nearest = bytes.length
    for (let index = 0; index < places.length; index++) {
      let place = places[index] ?? 0
      if (place < at) place = places[index] = find(index, at)
      if (place < nearest) nearest = place
    }
    return nearest
  }
}

/** The longest match that begins at a place. An undecided match waits for more bytes. */
function findAt(text: Text, at: number): Found | undefined {
  const { heads } = text.group
  const byte = text.bytes[at] ?? 0
  const plain = longestOf(text, at, heads[byte])
  // A form encodes a blank as a plus sign.
  if (byte === plus) return longestOf(text, at, heads[blank], plain)
  if (!Encoded.isEscape(byte)) return plain
  const decoded = Encoded.decode(text.bytes, at, text.isLast)
  if (decoded === Encoded.partial) return { start: at, from: at }
  const own = decoded < 0 ? byte : Encoded.byteOf(decoded)
  return own === byte ? plain : longestOf(text, at, heads[own], plain)
}

function longestOf(
  text: Text,
  at: number,
  patterns: readonly Pattern[] | undefined,
  known?: Found,
): Found | undefined {
  let best = known
  if (patterns === undefined || (best !== undefined && best.to === undefined)) return best
  for (const pattern of patterns) {
    const found = matchAt(text, at, pattern)
    if (found === undefined) continue
    if (found.to === undefined) return found
    if (best?.to === undefined || found.to > best.to) best = found
  }
  return best
}

function matchAt(text: Text, at: number, { name, value, isBounded }: Pattern): Found | undefined {
  const { bytes, isLast } = text
  const end = Encoded.match(bytes, at, name ?? value, isLast)
  if (end === Encoded.none) return undefined
  if (isBounded && isWithin(text, at, name !== undefined)) return undefined
  if (end === Encoded.partial) return { start: at, from: at }
  if (name !== undefined) return behind(text, at, end, value)
  const isEnd = isBounded ? ends(text, end, value) : true
  if (isEnd === undefined) return { start: at, from: at }
  return isEnd ? { start: at, from: at, to: end } : undefined
}

/** The value after a name that ends at a place, with only separators between them. */
function behind(text: Text, start: number, end: number, value: Uint8Array): Found | undefined {
  const { bytes, isLast } = text
  const open: Found = { start, from: start }
  let isSeparated = false
  let isTag = false
  let last = 0
  let quote: Uint8Array | undefined
  for (let at = end, count = 0; count < separatorsMax; count++) {
    // `-10` and `0.10` are other numbers.
    const isOther = isDigit(value[0]) && (last === 0x2d || last === 0x2e)
    if (isSeparated && !isOther && !isWord(last)) {
      const to = Encoded.match(bytes, at, value, isLast)
      if (to === Encoded.partial) return open
      const isEnd = to === Encoded.none ? false : ends(text, to, value)
      if (isEnd === undefined) return open
      // Without quotes of its own a JSON value needs those of its name.
      const isBare = quote !== undefined && !isQuote(last)
      if (isEnd) return { start, from: at, to, quote: isBare ? quote : undefined }
    }
    const sign = signAt(text, at)
    if (sign === undefined) return isLast ? undefined : open
    const { byte } = sign
    // The next parameter, or the end of the object.
    if (byte === 0x26 || byte === 0x7d) return undefined
    if (isWord(byte) && !isTag && !isIndex(byte, last)) {
      const word = bytes.toString('latin1', at, at + 'content'.length)
      const known = isWord(last) ? undefined : between.exec(word)?.[0]
      if (known === undefined)
        return !isLast && at + word.length >= bytes.length && !isWord(last) ? open : undefined
      at += known.length
      last = 0
      continue
    }
    if (count === 0 && byte === 0x22) quote = bytes.subarray(at, sign.end)
    if (byte === 0x3c) isTag = true
    if (byte === 0x3e) isTag = false
    isSeparated ||= byte === 0x3d || byte === 0x3a || byte === 0x3e || isQuote(byte)
    if (byte > 0x20) last = byte
    else if (isWord(last)) last = 0
    at = sign.end
  }
  return undefined
}

/** The character at a place, in any encoding. Undefined when the bytes end before it is decided. */
function signAt({ bytes, isLast }: Text, at: number): { byte: number; end: number } | undefined {
  const byte = bytes[at]
  if (byte === undefined) return undefined
  if (!Encoded.isEscape(byte)) return { byte, end: at + 1 }
  const decoded = Encoded.decode(bytes, at, isLast)
  if (decoded === Encoded.partial) return undefined
  if (decoded >= 0) return { byte: Encoded.byteOf(decoded), end: Encoded.endOf(decoded) }
  const isBlank = byte === 0x5c && /[nrtbf]/.test(String.fromCharCode(bytes[at + 1] ?? 0))
  return isBlank ? { byte: 0x20, end: at + 2 } : { byte, end: at + 1 }
}

/** The end of an encoded character that is written with letters or digits. */
const encodedEnd = /(?:%[\da-f]{2}|\\u[\da-f]{4}|\\x[\da-f]{2}|\\[nrtbf]|&#x?[\da-f]+)$/i

/** Whether a place is in the middle of a word. Names may contain `_` and, between letters, `-`. */
function isWithin({ bytes, before }: Text, at: number, isName: boolean): boolean {
  const byteAt = (place: number) => bytes[place] ?? before[before.length + place] ?? 0
  const byte = byteAt(at - 1)
  if (byte === 0x5f || byte === 0x2d) return isName && (byte === 0x5f || isWord(byteAt(at - 2)))
  if (!isWord(byte)) return false
  const near = Array.from({ length: 8 }, (_, index) => byteAt(at - 8 + index))
  return !encodedEnd.test(String.fromCharCode(...near))
}

/** Whether the value ends here; undefined when undecided. */
function ends({ bytes, isLast }: Text, at: number, value: Uint8Array): boolean | undefined {
  const byte = bytes[at]
  if (byte === undefined) return isLast ? true : undefined
  if (isWord(byte)) return false
  if (byte !== 0x2e || !isDigit(value.at(-1))) return true
  const next = bytes[at + 1]
  return next === undefined && !isLast ? undefined : !isDigit(next)
}

/** A digit of `name[0]`. */
function isIndex(byte: number, last: number): boolean {
  return isDigit(byte) && (last === 0x5b || isDigit(last))
}

function isDigit(byte = 0): boolean {
  return byte >= 0x30 && byte <= 0x39
}

function isWord(byte: number): boolean {
  const lower = byte | 0x20
  return isDigit(byte) || (lower >= 0x61 && lower <= 0x7a)
}

function isQuote(byte: number): boolean {
  return byte === 0x22 || byte === 0x27
}
