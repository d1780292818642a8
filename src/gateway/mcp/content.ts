import type { Envelope } from '../../paywall/answer/remainder'
import { answerMaxBytes } from './outgoing'

/** A part of a tool result. */
export type Content =
  | { type: 'text'; text: string }
  | { type: 'image' | 'audio'; data: string; mimeType: string }
  | { type: 'resource'; resource: { uri: string; mimeType: string; blob: string } }

const textual =
  /^(?:text\/|application\/(?:[\w.+-]*(?:json|xml|javascript|yaml|x-ndjson)|x-www-form-urlencoded)\b|image\/svg)/i
const playable = /^(image|audio)\/[\w.+-]+/i

const decoders: Readonly<Record<string, Bun.CompressionFormat>> = {
  gzip: 'gzip',
  'x-gzip': 'gzip',
  deflate: 'deflate',
  br: 'brotli',
  zstd: 'zstd',
}

/**
 * A response's body as the content of a tool result. Binary data is base64. `reserve` reserves memory
 * for what is decompressed. Without memory the body stays compressed.
 */
export async function readContent(
  response: Response,
  url: string,
  reserve: Envelope['reserve'],
): Promise<{ content: Content[]; truncated: boolean }> {
  const type = response.headers.get('content-type') ?? 'application/octet-stream'
  const encoding = response.headers.get('content-encoding')
  const raw = await read(response.body)
  const plain = encoding === null ? raw : await decode(raw, encoding, reserve)
  const { bytes, truncated } = plain ?? raw
  if (bytes.byteLength === 0) return { content: [], truncated }
  const text = plain === undefined ? undefined : textOf(type, bytes, truncated)
  if (text !== undefined) return { content: [{ type: 'text', text }], truncated }
  const data = Buffer.from(bytes).toString('base64')
  const [mimeType = '', kind] = playable.exec(type) ?? []
  if (plain !== undefined && (kind === 'image' || kind === 'audio'))
    return { content: [{ type: kind, data, mimeType }], truncated }
  const resource = { uri: url, mimeType: type.split(';', 1)[0] ?? type, blob: data }
  return { content: [{ type: 'resource', resource }], truncated }
}

type Read = { bytes: Uint8Array; truncated: boolean }

/** The first bytes of a body. A body that breaks off counts as complete: it was paid for. */
async function read(body: ReadableStream<Uint8Array> | null): Promise<Read> {
  const chunks: Uint8Array[] = []
  let size = 0
  let truncated = false
  const reader = body?.getReader()
  try {
    for (;;) {
      const { done = true, value } = (await reader?.read()) ?? {}
      if (done || value === undefined) break
      chunks.push(value)
      size += value.byteLength
      if (size <= answerMaxBytes) continue
      truncated = true
      reader?.cancel().catch(() => {})
      break
    }
  } catch {
    truncated = true
  }
  return { bytes: Buffer.concat(chunks).subarray(0, answerMaxBytes), truncated }
}

/** Undefined when the encoding is unknown or wrong, or when no memory is free. */
async function decode(
  raw: Read,
  encoding: string,
  reserve: Envelope['reserve'],
): Promise<Read | undefined> {
  const format = decoders[encoding.trim().toLowerCase()]
  if (format === undefined) return encoding === 'identity' ? raw : undefined
  const stream = new Blob([new Uint8Array(raw.bytes)])
    .stream()
    .pipeThrough(new DecompressionStream(format))
  const plain = await read(stream)
  // Without any output, the data had another encoding.
  if (plain.truncated && plain.bytes.byteLength === 0) return undefined
  if (!reserve(plain.bytes.byteLength)) return undefined
  return { bytes: plain.bytes, truncated: raw.truncated || plain.truncated }
}

function textOf(type: string, bytes: Uint8Array, truncated: boolean): string | undefined {
  if (!textual.test(type)) return undefined
  const charset = /charset="?([\w-]+)/i.exec(type)?.[1] ?? 'utf-8'
  try {
    const decoder = new TextDecoder(charset as Bun.Encoding, { fatal: true })
    return decoder.decode(bytes, { stream: truncated })
  } catch {
    return undefined
  }
}
