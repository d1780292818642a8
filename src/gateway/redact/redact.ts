import { zlib } from '../../net/runtime'
import { UnreadableError } from '../../net/watch'
import { compile, createRedactor, type Patterns, type Secret, shows } from './redactor'

/** `info`: the engine says how many bytes it has read. */
type Options = { maxOutputLength: number; info: true }
/** What the decoders return with `info`; the types of zlib do not know it. */
type Decoded = { buffer: Uint8Array; engine: { bytesWritten: number } }
type Decode = (body: Uint8Array, options: Options) => unknown

const formats = {
  gzip: 'gzip',
  'x-gzip': 'gzip',
  deflate: 'deflate',
  br: 'brotli',
  zstd: 'zstd',
} as const satisfies Readonly<Record<string, Bun.CompressionFormat>>
type Encoding = keyof typeof formats
const decoders: Readonly<Record<Encoding, Decode>> = {
  gzip: (body, options) => zlib().gunzipSync(body, options),
  'x-gzip': (body, options) => zlib().gunzipSync(body, options),
  // Some servers omit the zlib header, and clients accept that.
  deflate: (body, options) =>
    isZlib(body) ? zlib().inflateSync(body, options) : zlib().inflateRawSync(body, options),
  br: (body, options) => zlib().brotliDecompressSync(body, options),
  zstd: (body, options) => zlib().zstdDecompressSync(body, options),
}
const decodedMaxBytes = 4 * 1024 * 1024
const stepBytes = 16 * 1024

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
  secrets: readonly Secret[],
): Uint8Array | Stream {
  if (secrets.length === 0 || body.byteLength === 0) return body
  const encoding = encodingOf(headers)
  const redactor = createRedactor(patternsOf(secrets))
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
  let readBytes: number
  try {
    const options = { maxOutputLength: decodedMaxBytes, info: true } as const
    const decoded = decoders[encoding](body, options) as Decoded
    plain = decoded.buffer
    readBytes = decoded.engine.bytesWritten
  } catch (error) {
    if (isTooLarge(error)) return redactStream({ headers, body: streamOf(body) }, secrets)
    throw new UnreadableError(`the ${encoding} of the answer is broken`)
  }
  // zstd decodes a truncated frame to nothing without an error.
  if (plain.byteLength === 0 && encoding === 'zstd')
    throw new UnreadableError('the zstd of the answer is broken')
  const redacted = clean(plain)
  // Bytes behind the end of the encoding are not decoded, so nothing has looked for secrets in them.
  if (isSame(redacted, plain) && readBytes === body.byteLength) return body
  headers.delete('etag')
  headers.delete('content-encoding')
  return redacted
}

/**
 * A stream without secrets, wherever its chunks are cut. It keeps back only an end that may begin a
 * secret. An encoded stream is decoded and sent unencoded, because bytes that were sent can no
 * longer be searched. It fails where its encoding fails. Without secrets the stream keeps its
 * encoding. Throws UnreadableError.
 */
export function redactStream(
  { headers, body }: Answer<Stream>,
  secrets: readonly Secret[],
): Stream {
  if (secrets.length === 0) return body
  const encoding = encodingOf(headers)
  if (encoding === undefined) return without(secrets, body)
  headers.delete('etag')
  headers.delete('content-encoding')
  return without(secrets, opened(body, encoding))
}

const compiled = new WeakMap<readonly Secret[], Patterns>()

/** Redactors, compiled once for each list of secrets. */
function patternsOf(secrets: readonly Secret[]): Patterns {
  const known = compiled.get(secrets)
  if (known !== undefined) return known
  const patterns = compile(secrets)
  compiled.set(secrets, patterns)
  return patterns
}

function without(secrets: readonly Secret[], source: Stream): Stream {
  const reader = source.getReader()
  const redactor = createRedactor(patternsOf(secrets))
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

/** Undefined for no encoding. Throws UnreadableError for unknown and nested encodings. */
function encodingOf(headers: Headers): Encoding | undefined {
  const names = (headers.get('content-encoding') ?? '')
    .split(',')
    .map((name) => name.trim().toLowerCase())
    .filter((name) => name !== '' && name !== 'identity')
  const [name] = names
  if (name === undefined) return undefined
  if (names.length === 1 && Object.hasOwn(decoders, name)) return name as Encoding
  throw new UnreadableError('the encoding of the answer is unknown')
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
export function redactHeaders(headers: Headers, secrets: readonly Secret[]): void {
  if (secrets.length === 0) return
  for (const [name, value] of [...headers]) {
    if (shows(`${name}: ${value}`, patternsOf(secrets))) headers.delete(name)
  }
}
