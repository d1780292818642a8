import { brotliDecompressSync, gunzipSync, inflateSync, zstdDecompressSync } from 'node:zlib'
import type { Merchant, Route } from '../config/Config'

const lengthMin = 8
const marker = new TextEncoder().encode('[redacted]')

/** Headers that merchants set to be understood, not to be let in. Every other one is a secret. */
const publicHeaders =
  /^(?:accept|accept-.*|user-agent|content-.*|cache-control|from|host|origin|referer|http-referer|x-(?:openrouter-)?title|x-requested-with|.*version)$/i
const secretQuery = /key|token|secret|auth|pass|sign|credential/i
const scheme = /^(?:basic|bearer|token|apikey)\s+/i

/** What an upstream must not show to a buyer: the values that let us in, of 8 characters and more. */
export function secretsOf(merchant: Merchant, route: Route): readonly string[] {
  const values = Object.entries(merchant.headers)
    .filter(([name]) => !publicHeaders.test(name))
    .map(([, value]) => value.replace(scheme, '').trim())
  for (const [name, value] of Object.entries({ ...route.query, ...route.fixedQuery })) {
    if (secretQuery.test(name)) values.push(value, encodeURIComponent(value))
  }
  return [...new Set(values)].filter((value) => value.length >= lengthMin)
}

/** The bytes with every secret replaced; the same array when none is there. */
function redactBytes(bytes: Uint8Array, secrets: readonly string[]): Uint8Array {
  let result = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  let isChanged = false
  for (const secret of secrets) {
    const parts: Uint8Array[] = []
    let from = 0
    for (let at = result.indexOf(secret); at !== -1; at = result.indexOf(secret, from)) {
      parts.push(result.subarray(from, at), marker)
      from = at + Buffer.byteLength(secret)
    }
    if (from === 0) continue
    result = Buffer.concat([...parts, result.subarray(from)])
    isChanged = true
  }
  return isChanged ? new Uint8Array(result) : bytes
}

const decoders = {
  gzip: gunzipSync,
  'x-gzip': gunzipSync,
  deflate: inflateSync,
  br: brotliDecompressSync,
  zstd: zstdDecompressSync,
} as const
const decodedMaxBytes = 4 * 1024 * 1024

/**
 * Redacts an answer in place of its headers: changed bytes have no entity tag and no encoding any
 * more. An encoded body is opened whatever its status: the buyer chooses the encoding, and maybe a
 * path that repeats its request with 200, and with both must not get to see a secret.
 */
export function redactAnswer(
  answer: { headers: Headers; bytes: Uint8Array },
  secrets: readonly string[],
): Uint8Array {
  const { headers, bytes } = answer
  if (secrets.length === 0 || bytes.byteLength === 0) return bytes
  const encoding = headers.get('content-encoding')?.trim().toLowerCase()
  const plain = decode(bytes, encoding)
  const redacted = redactBytes(plain, secrets)
  if (redacted === plain) return bytes
  headers.delete('etag')
  headers.delete('content-encoding')
  return redacted
}

/** The bytes as they are when they are of no known encoding, broken or too large. */
function decode(bytes: Uint8Array, encoding: string | undefined): Uint8Array {
  if (encoding === undefined || !Object.hasOwn(decoders, encoding)) return bytes
  try {
    return decoders[encoding as keyof typeof decoders](bytes, { maxOutputLength: decodedMaxBytes })
  } catch {
    return bytes
  }
}

/** Removes response headers that show a secret. */
export function redactHeaders(headers: Headers, secrets: readonly string[]): void {
  for (const [name, value] of [...headers]) {
    if (secrets.some((secret) => value.includes(secret))) headers.delete(name)
  }
}
