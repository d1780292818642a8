import { isObject, JsonError, type JsonObject, parse } from './Json'

/** Decoding of header values that strangers send. */

/** Longest header value that is decoded at all; drafts ask for at least 4 KB. */
export const maxLength = 16 * 1024

const standardPattern = /^[A-Za-z0-9+/]+={0,2}$/
const urlPattern = /^[A-Za-z0-9_-]+={0,2}$/
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/**
 * JSON object of a base64url header value, padding tolerated; `either` accepts the standard
 * alphabet too, but not both in one value. Throws a JsonError that says what is wrong.
 */
export function decodeJson(value: string, alphabet: 'base64url' | 'either'): JsonObject {
  if (value.length > maxLength) throw new JsonError(`longer than ${maxLength} characters`)
  const matches = urlPattern.test(value) || (alphabet === 'either' && standardPattern.test(value))
  if (!matches || !hasWholeBytes(value)) throw new JsonError(`not valid ${named(alphabet)}`)
  let text: string
  try {
    text = utf8.decode(Buffer.from(value, 'base64'))
  } catch {
    throw new JsonError('not valid UTF-8')
  }
  return parse(text)
}

function named(alphabet: 'base64url' | 'either'): string {
  return alphabet === 'either' ? 'base64' : 'base64url'
}

/** Whether padding, if any, completes the last group and no bits are left over. */
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
  return Buffer.from(JSON.stringify(value)).toString('base64')
}

/** base64url without padding of a text. */
export function base64url(text: string): string {
  return Buffer.from(text).toString('base64url')
}

/** What `Accept-Payment` ranks, e.g. `{ method: 'evm', intent: 'charge' }`. */
export type Offered = { method: string; intent: string }

type Range = { method: string; intent: string; q: number }

const rangePattern =
  /^(\*|[a-z]+)\/(\*|[A-Za-z0-9-]+)(?:[ \t]*;[ \t]*[qQ]=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?))?$/

/**
 * Offers that a client's `Accept-Payment` header admits, best first, in our order among equals. All
 * of them when the header is absent, malformed or matches none: the draft lets a server ignore it
 * then, and a challenge is worth more to the client than nothing.
 */
export function acceptPayment<T extends Offered>(
  value: string | null | undefined,
  offers: readonly T[],
): readonly T[] {
  const ranges = value ? parseRanges(value) : undefined
  if (ranges === undefined) return offers
  const ranked: { offer: T; q: number }[] = []
  for (const offer of offers) {
    const q = quality(offer, ranges)
    if (q > 0) ranked.push({ offer, q })
  }
  if (ranked.length === 0) return offers
  return ranked.sort((a, b) => b.q - a.q).map(({ offer }) => offer)
}

function parseRanges(value: string): Range[] | undefined {
  if (value.length > maxLength) return undefined
  const ranges: Range[] = []
  for (const part of value.split(',')) {
    const text = part.trim()
    if (text === '') continue
    const match = rangePattern.exec(text)
    if (!match) return undefined
    const [, method = '*', intent = '*', q = '1'] = match
    ranges.push({ method, intent, q: Number(q) })
  }
  return ranges.length > 0 ? ranges : undefined
}

/** Weight of the most specific range that matches; zero when none does. */
function quality(offer: Offered, ranges: readonly Range[]): number {
  let best = -1
  let q = 0
  for (const range of ranges) {
    if (range.method !== '*' && range.method !== offer.method) continue
    if (range.intent !== '*' && range.intent !== offer.intent) continue
    const specificity = (range.method === '*' ? 0 : 2) + (range.intent === '*' ? 0 : 1)
    if (specificity > best || (specificity === best && range.q > q)) {
      best = specificity
      q = range.q
    }
  }
  return q
}

/** Extension values are objects with `info`; other shapes are dropped by readers. */
export function infoOf(extensions: JsonObject | undefined, name: string): JsonObject | undefined {
  const extension = extensions?.[name]
  const info = isObject(extension) ? extension.info : undefined
  return isObject(info) ? info : undefined
}
