import type { Merchant, Route } from '../config/Config'
import { zlib } from '../http/runtime'

const lengthMin = 8
const marker = new TextEncoder().encode('[redacted]')

/** Headers that merchants set to be understood, not to be let in. Every other one is a secret. */
const publicHeaders =
  /^(?:accept|accept-.*|user-agent|content-.*|cache-control|from|host|origin|referer|http-referer|x-(?:openrouter-)?title|x-requested-with|.*version)$/i
const secretQuery = /key|token|secret|auth|pass|sign|credential/i
const scheme = /^(?:basic|bearer|token|apikey)\s+/i

/**
 * What an upstream must not show to a buyer: the values that let us in, of 8 characters and more, in
 * every form that they are commonly repeated in, and what Basic credentials say when they are decoded.
 * A key in the path counts too: frameworks answer an unknown tail with the path that they saw.
 */
export function secretsOf(merchant: Merchant, route: Route): readonly string[] {
  const values = Object.entries(merchant.headers)
    .filter(([name]) => !publicHeaders.test(name))
    .flatMap(([name, value]) => [
      value.replace(scheme, '').trim(),
      ...basicOf(value),
      ...partsOf(name, value),
    ])
  for (const [name, value] of Object.entries({ ...route.query, ...route.fixedQuery })) {
    if (secretQuery.test(name)) values.push(value)
  }
  values.push(...route.pathSecrets)
  const all = values.flatMap(formsOf)
  return [...new Set(all)].filter((value) => value.length >= lengthMin)
}

/** What stands behind a scheme, of which there are many, and each cookie. */
function partsOf(name: string, value: string): string[] {
  if (/^cookie$/i.test(name))
    return value.split(';').map((pair) => pair.slice(pair.indexOf('=') + 1).trim())
  const [, behind = ''] = (/authorization$/i.test(name) && /^\S+\s+(\S+)\s*$/.exec(value)) || []
  return [behind]
}

const entities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#039;',
}

/** As a header, a query, a form, JSON (some writers escape the slash) and a page would show it. */
function formsOf(value: string): string[] {
  const json = JSON.stringify(value).slice(1, -1)
  return [
    value,
    encodeURIComponent(value),
    new URLSearchParams({ '': value }).toString().slice(1),
    json,
    json.replaceAll('/', '\\/'),
    value.replace(/[&<>"']/g, (character) => entities[character] ?? ''),
  ]
}

/** `user:password` and the password of a Basic credential. */
function basicOf(value: string): string[] {
  const [, encoded] = /^basic\s+(\S+)\s*$/i.exec(value) ?? []
  if (encoded === undefined) return []
  const pair = Buffer.from(encoded, 'base64').toString()
  return [pair, pair.slice(pair.indexOf(':') + 1)]
}

type Redactor = {
  /** What may go out of what came so far: all of it, but for an end that a secret may begin with. */
  feed(bytes: Uint8Array): Uint8Array
  /** What was held back. */
  end(): Uint8Array
}

/** Replaces secrets wherever the chunks of an answer are cut. */
function createRedactor(secrets: readonly string[]): Redactor {
  // The longest first: where two begin together, the shorter one must not leave an end behind.
  const patterns = secrets.map((secret) => Buffer.from(secret)).sort((a, b) => b.length - a.length)
  let held: Uint8Array = new Uint8Array(0)
  const run = (bytes: Uint8Array, isLast: boolean) => {
    const all = held.byteLength === 0 ? bytes : Buffer.concat([held, bytes])
    const { clean, rest } = replace(all, patterns, isLast)
    // A copy: what is held must not keep a whole chunk alive.
    held = rest.slice()
    return clean
  }
  return { feed: (bytes) => run(bytes, false), end: () => run(new Uint8Array(0), true) }
}

/** `clean` is the same array when nothing is replaced and nothing left over. */
function replace(
  bytes: Uint8Array,
  patterns: readonly Buffer[],
  isLast: boolean,
): { clean: Uint8Array; rest: Uint8Array } {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const parts: Uint8Array[] = []
  const next = patterns.map((pattern) => buffer.indexOf(pattern))
  let from = 0
  for (;;) {
    const until = isLast ? buffer.length : beginning(buffer, patterns, from)
    let at = until
    let found: Buffer | undefined
    for (const [index, pattern] of patterns.entries()) {
      let place = next[index] ?? -1
      if (place !== -1 && place < from) place = next[index] = buffer.indexOf(pattern, from)
      if (place !== -1 && place < at) {
        at = place
        found = pattern
      }
    }
    if (found === undefined) {
      const rest = bytes.subarray(until)
      if (parts.length === 0)
        return { clean: rest.length === 0 ? bytes : bytes.subarray(0, until), rest }
      return {
        clean: new Uint8Array(Buffer.concat([...parts, buffer.subarray(from, until)])),
        rest,
      }
    }
    parts.push(buffer.subarray(from, at), marker)
    from = at + found.length
  }
}

/** Where the end of a buffer begins that a secret may go on from; its length when there is none. */
function beginning(buffer: Buffer, patterns: readonly Buffer[], from: number): number {
  const longest = patterns[0]?.length ?? 0
  for (let at = Math.max(from, buffer.length - longest + 1); at < buffer.length; at++) {
    const end = buffer.subarray(at)
    const isBegun = (pattern: Buffer) =>
      pattern[0] === end[0] &&
      pattern.length > end.length &&
      pattern.subarray(0, end.length).equals(end)
    if (patterns.some(isBegun)) return at
  }
  return buffer.length
}

type Decode = (body: Uint8Array, options: { maxOutputLength: number }) => Uint8Array

const decoders = {
  gzip: (body, options) => zlib().gunzipSync(body, options),
  'x-gzip': (body, options) => zlib().gunzipSync(body, options),
  // Some servers leave the zlib header out, and clients read that too.
  deflate: (body, options) =>
    isZlib(body) ? zlib().inflateSync(body, options) : zlib().inflateRawSync(body, options),
  br: (body, options) => zlib().brotliDecompressSync(body, options),
  zstd: (body, options) => zlib().zstdDecompressSync(body, options),
} as const satisfies Readonly<Record<string, Decode>>
type Encoding = keyof typeof decoders
const formats = {
  gzip: 'gzip',
  'x-gzip': 'gzip',
  deflate: 'deflate',
  br: 'brotli',
  zstd: 'zstd',
} as const satisfies Record<Encoding, Bun.CompressionFormat>
/** Whether a body begins as one of its encoding does; what has no mark of its own never does. */
const beginnings: Readonly<Record<Encoding, (body: Uint8Array) => boolean>> = {
  gzip: isGzip,
  'x-gzip': isGzip,
  deflate: isZlib,
  br: () => false,
  zstd: ([a, b, c, d]) => a === 0x28 && b === 0xb5 && c === 0x2f && d === 0xfd,
}
const decodedMaxBytes = 4 * 1024 * 1024
const stepBytes = 16 * 1024

/** An answer, in part or as a whole. Its headers are changed in place. */
type Answer<Body> = { headers: Headers; body: Body }
type Stream = ReadableStream<Uint8Array>

/**
 * A whole answer without secrets; one that has none is returned as it is, one that had some has no
 * entity tag and no encoding any more. An encoded body is opened whatever its status: the buyer chooses
 * the encoding, and maybe a path that repeats its request with 200, and with both must not get to see a
 * secret. One that opens into a lot is returned as a stream.
 */
export function redactAnswer(
  { headers, body }: Answer<Uint8Array>,
  secrets: readonly string[],
): Uint8Array | Stream {
  if (secrets.length === 0 || body.byteLength === 0) return body
  const encoding = encodingOf(headers)
  const redactor = createRedactor(secrets)
  const clean = (plain: Uint8Array) => {
    const start = redactor.feed(plain)
    const end = redactor.end()
    return end.byteLength === 0 ? start : new Uint8Array(Buffer.concat([start, end]))
  }
  if (encoding === undefined) {
    const redacted = clean(body)
    if (isSame(redacted, body)) return body
    headers.delete('etag')
    return redacted
  }
  let plain: Uint8Array
  try {
    plain = decoders[encoding](body, { maxOutputLength: decodedMaxBytes })
    // What zstd makes of a frame that breaks off; there may be text in it.
    if (plain.byteLength === 0) return redactStream({ headers, body: streamOf(body) }, secrets)
  } catch (error) {
    // Of one that breaks off in the middle clients show what came before.
    if (isTooLarge(error) || beginnings[encoding](body))
      return redactStream({ headers, body: streamOf(body) }, secrets)
    // It is not what its header says: text, or what nobody can open.
    const redacted = clean(body)
    return isSame(redacted, body) ? body : redacted
  }
  const redacted = clean(plain)
  if (isSame(redacted, plain)) return body
  headers.delete('etag')
  headers.delete('content-encoding')
  return redacted
}

/**
 * A stream without secrets, wherever its chunks are cut. Nothing is held back but an end that a
 * secret begins with. An encoded stream is opened and goes out plain: what has left cannot be looked at
 * any more. A merchant without secrets keeps its encoding.
 */
export function redactStream(
  { headers, body }: Answer<Stream>,
  secrets: readonly string[],
): Stream {
  if (secrets.length === 0) return body
  const encoding = encodingOf(headers)
  if (encoding === undefined) return without(secrets, body)
  headers.delete('etag')
  headers.delete('content-encoding')
  return without(secrets, opened(body, encoding))
}

function without(secrets: readonly string[], source: Stream): Stream {
  const reader = source.getReader()
  const redactor = createRedactor(secrets)
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

/** Opened in small steps: a step may become a thousand times as long. */
function opened(source: Stream, encoding: Encoding): Stream {
  const decoder = new DecompressionStream(formats[encoding])
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

/** Undefined for none, and for one that we cannot open. */
function encodingOf(headers: Headers): Encoding | undefined {
  const name = headers.get('content-encoding')?.trim().toLowerCase() ?? ''
  return Object.hasOwn(decoders, name) ? (name as Encoding) : undefined
}

function isGzip([a, b]: Uint8Array): boolean {
  return a === 0x1f && b === 0x8b
}

/** RFC 1950: the method, and a check over both bytes. */
function isZlib([a = 0, b = 0]: Uint8Array): boolean {
  return (a & 0x0f) === 8 && (a * 256 + b) % 31 === 0
}

function isSame(a: Uint8Array, b: Uint8Array): boolean {
  return a === b || (a.byteLength === b.byteLength && Buffer.compare(a, b) === 0)
}

function isTooLarge(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_BUFFER_TOO_LARGE'
}

/** Removes response headers that show a secret. */
export function redactHeaders(headers: Headers, secrets: readonly string[]): void {
  for (const [name, value] of [...headers]) {
    if (secrets.some((secret) => value.includes(secret))) headers.delete(name)
  }
}
