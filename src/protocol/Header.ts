import { isObject, JsonError, type JsonObject, parse } from './Json'

/** Decodes header values from untrusted clients. */

/** Longest header value that is decoded; drafts require at least 4 KB. */
export const maxLength = 16 * 1024

const standardPattern = /^[A-Za-z0-9+/]+={0,2}$/
const urlPattern = /^[A-Za-z0-9_-]+={0,2}$/
const encoder = new TextEncoder()
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Whether an answer comes as server-sent events. */
export function isEventStream(headers: Headers): boolean {
  return /^\s*text\/event-stream\s*(?:;|$)/i.test(headers.get('content-type') ?? '')
}

/**
 * JSON object of a base64url header value, padding tolerated. `either` also accepts the standard
 * alphabet, but not both in one value. Throws a JsonError that names the fault.
 */
export function decodeJson(value: string, alphabet: 'base64url' | 'either'): JsonObject {
  if (value.length > maxLength) throw new JsonError(`longer than ${maxLength} characters`)
  const matches = urlPattern.test(value) || (alphabet === 'either' && standardPattern.test(value))
  if (!matches || !hasWholeBytes(value)) throw new JsonError(`not valid ${named(alphabet)}`)
  return parse(decodeUtf8(Buffer.from(value, 'base64')))
}

/** Text of UTF-8 bytes. Throws a JsonError for anything else. */
export function decodeUtf8(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes)
  } catch {
    throw new JsonError('not valid UTF-8')
  }
}

function named(alphabet: 'base64url' | 'either'): string {
  return alphabet === 'either' ? 'base64' : 'base64url'
}

/** Whether padding, if any, completes the last group and no bits remain. */
function hasWholeBytes(value: string): boolean {
  const padding = value.endsWith('==') ? 2 : value.endsWith('=') ? 1 : 0
  const digits = value.length - padding
  const rest = digits % 4
  if (rest === 1 || (padding > 0 && (digits + padding) % 4 !== 0)) return false
  if (rest === 0) return padding === 0
  const last = digitOf(value.charCodeAt(digits - 1))
  return (last & (rest === 2 ? 0x0f : 0x03)) === 0
}

function digitOf(code: number): number {
  if (code >= 0x61) return code - 0x61 + 26
  if (code >= 0x41 && code <= 0x5a) return code - 0x41
  if (code >= 0x30 && code <= 0x39) return code - 0x30 + 52
  return code === 0x2b || code === 0x2d ? 62 : 63
}

/** Standard base64 of the JSON text of a value. */
export function encodeJson(value: object): string {
  return encoder.encode(JSON.stringify(value)).toBase64()
}

/** base64url without padding of a text. */
export function base64url(text: string): string {
  return Buffer.from(text).toString('base64url')
}

/** `info` of an extension. An extension without an `info` object is ignored. */
export function infoOf(extensions: JsonObject | undefined, name: string): JsonObject | undefined {
  const extension = extensions?.[name]
  const info = isObject(extension) ? extension.info : undefined
  return isObject(info) ? info : undefined
}
