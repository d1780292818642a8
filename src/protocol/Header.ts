import { JsonError, type JsonObject, parse } from './Json'

/** Decodes header values from untrusted clients. */

/** Longest header value that is decoded; drafts require at least 4 KB. */
export const maxLength = 16 * 1024

const standardPattern = /^[A-Za-z0-9+/]+={0,2}$/
const urlPattern = /^[A-Za-z0-9_-]+={0,2}$/
const encoder = new TextEncoder()

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
  const isStandard = alphabet === 'either' && standardPattern.test(value)
  const isRight = isStandard || urlPattern.test(value)
  const bytes = isRight ? bytesOf(value, isStandard ? 'base64' : 'base64url') : undefined
  if (bytes === undefined)
    throw new JsonError(`not valid ${alphabet === 'either' ? 'base64' : alphabet}`)
  return parse(bytes)
}

/** The bytes of whole groups, whose padding may be missing; undefined when bits remain. */
function bytesOf(value: string, alphabet: 'base64url' | 'base64'): Uint8Array | undefined {
  const whole = value.endsWith('=') ? value : value.padEnd(Math.ceil(value.length / 4) * 4, '=')
  try {
    return Uint8Array.fromBase64(whole, { alphabet, lastChunkHandling: 'strict' })
  } catch {
    return undefined
  }
}

/** Standard base64 of the JSON text of a value. */
export function encodeJson(value: object): string {
  return encoder.encode(JSON.stringify(value)).toBase64({ alphabet: 'base64' })
}

/** base64url without padding of a text. */
export function base64url(text: string): string {
  return encoder.encode(text).toBase64({ alphabet: 'base64url', omitPadding: true })
}
