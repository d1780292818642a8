/**
 * Finds a text in bytes that may encode each of its characters: JSON and JavaScript escapes,
 * percent-encoding, HTML character references, each also twice (`%252b`, `&amp;#43;`). An upstream
 * that repeats a key in an error chooses the encoding, and a buyer may influence that choice.
 */

/** Results other than a place: no match, and too few bytes to decide. */
export const none = -1
export const partial = -2

const percent = 0x25
const ampersand = 0x26
const backslash = 0x5c
const plus = 0x2b
const blank = 0x20
/** First bytes of encoded characters. */
export const escapes: readonly number[] = [percent, ampersand, backslash]

/** https://html.spec.whatwg.org/multipage/named-characters.html, of visible ASCII. */
const names: Readonly<Record<string, readonly string[]>> = {
  '!': ['excl'],
  '"': ['quot', 'QUOT'],
  '#': ['num'],
  $: ['dollar'],
  '%': ['percnt'],
  '&': ['amp', 'AMP'],
  "'": ['apos'],
  '(': ['lpar'],
  ')': ['rpar'],
  '*': ['ast', 'midast'],
  '+': ['plus'],
  ',': ['comma'],
  '.': ['period'],
  '/': ['sol'],
  ':': ['colon'],
  ';': ['semi'],
  '<': ['lt', 'LT'],
  '=': ['equals'],
  '>': ['gt', 'GT'],
  '?': ['quest'],
  '@': ['commat'],
  '[': ['lsqb', 'lbrack'],
  '\\': ['bsol'],
  ']': ['rsqb', 'rbrack'],
  '^': ['Hat'],
  _: ['lowbar', 'UnderBar'],
  '`': ['grave', 'DiacriticalGrave'],
  '{': ['lcub', 'lbrace'],
  '|': ['verbar', 'vert', 'VerticalLine'],
  '}': ['rcub', 'rbrace'],
}

/** Longest chain of repeated escapes that is decoded. Real encoders write shorter ones. */
const runMax = 8
/** Most readings that are followed for a text with many backslashes. */
const readingsMax = 8

/**
 * End of a text when it is found at a place of the bytes, in any encoding; else `none` or
 * `partial`. `isLast`: no more bytes will follow.
 */
export function match(bytes: Uint8Array, from: number, text: Uint8Array, isLast: boolean): number {
  let at = from
  const open = isLast ? none : partial
  for (let index = 0; index < text.length; index++) {
    const wanted = text[index] ?? 0
    if (isEscape(wanted)) return matchAll(bytes, at, text.subarray(index), isLast)
    const byte = bytes[at]
    if (byte === undefined) return open
    if (byte === wanted || (byte === plus && wanted === blank)) {
      at++
      continue
    }
    if (!isEscape(byte)) return none
    const decoded = decode(bytes, at, isLast)
    if (decoded < 0) return decoded
    if (byteOf(decoded) !== wanted) return none
    at = endOf(decoded)
  }
  return at
}

/**
 * The same for a text with characters that escapes begin with. All its readings are followed at
 * once.
 */
function matchAll(bytes: Uint8Array, at: number, text: Uint8Array, isLast: boolean): number {
  let ends = [at]
  let isOpen = false
  for (const wanted of text) {
    const next = new Set<number>()
    for (const end of ends) if (read(bytes, end, wanted, next)) isOpen = true
    if (next.size === 0) return isOpen && !isLast ? partial : none
    ends = [...next].slice(0, readingsMax)
  }
  return isOpen && !isLast ? partial : Math.max(...ends)
}

/** Adds the places where the character may end. True when the bytes end before that is decided. */
function read(bytes: Uint8Array, at: number, wanted: number, ends: Set<number>): boolean {
  const byte = bytes[at]
  if (byte === undefined) return true
  if (byte === wanted || (byte === plus && wanted === blank)) ends.add(at + 1)
  if (!isEscape(byte)) return false
  if (byte === wanted) for (const end of repeats(bytes, at)) ends.add(end)
  const decoded = decode(bytes, at, true)
  if (decoded >= 0 && byteOf(decoded) === wanted) ends.add(endOf(decoded))
  return decode(bytes, at, false) === partial
}

/**
 * Places where a character that begins escapes may end when it is escaped, once or more: `%25`,
 * `&amp;`, `\\\\`.
 */
function repeats(bytes: Uint8Array, at: number): number[] {
  const unit = units[bytes[at] ?? 0] ?? units[backslash]
  const ends: number[] = []
  for (let end = at + 1; ends.length < runMax && unit !== undefined; ) {
    if (!isAt(bytes, end, unit)) break
    end += unit.length
    ends.push(end)
  }
  return ends
}

const units: Readonly<Record<number, Uint8Array>> = {
  [percent]: Buffer.from('25'),
  [ampersand]: Buffer.from('amp;'),
  [backslash]: Buffer.from('\\'),
}

/**
 * The encoded character at a place, through repeated escapes: `byteOf` and `endOf` unpack it.
 * `none`, or `partial` when the bytes end before that is decided.
 */
export function decode(bytes: Uint8Array, at: number, isLast: boolean): number {
  const byte = bytes[at]
  const found =
    byte === percent
      ? decodePercent(bytes, at)
      : byte === backslash
        ? decodeEscape(bytes, at)
        : decodeReference(bytes, at, isLast)
  return found === partial && isLast ? none : found
}

export function byteOf(decoded: number): number {
  return decoded % 256
}

export function endOf(decoded: number): number {
  return Math.floor(decoded / 256)
}

export function isEscape(byte: number): boolean {
  return byte === percent || byte === ampersand || byte === backslash
}

/** `%2b`, `%2B`, `%252b`. */
function decodePercent(bytes: Uint8Array, at: number): number {
  let from = at + 1
  for (let run = 0; ; run++) {
    const value = hex(bytes, from, 2)
    if (value < 0) return value
    from += 2
    if (value !== percent || run >= runMax) return pack(value, from)
    // A percent sign is literal unless an escape follows.
    const next = hex(bytes, from, 2)
    if (next === partial) return partial
    if (next === none) return pack(value, from)
  }
}

/** A backslash and `u002b`, `u{2b}`, `x2b` or a character. The backslash may be escaped, too. */
function decodeEscape(bytes: Uint8Array, at: number): number {
  let from = at + 1
  while (from - at < runMax && bytes[from] === backslash) from++
  const kind = bytes[from]
  if (kind === undefined) return partial
  if (kind === 0x75 && bytes[from + 1] === 0x7b) {
    const { value, end } = number(bytes, from + 2, 16)
    if (end >= bytes.length) return partial
    return bytes[end] === 0x7d ? pack(value, end + 1) : none
  }
  if (kind === 0x75 || kind === 0x78) {
    const digits = kind === 0x75 ? 4 : 2
    const value = hex(bytes, from + 1, digits)
    return value < 0 ? value : pack(value, from + 1 + digits)
  }
  const isWord = (kind | 0x20) >= 0x61 && (kind | 0x20) <= 0x7a
  return isWord || kind < 0x21 || kind > 0x7e ? none : pack(kind, from + 1)
}

/**
 * `&#43;`, `&#x2B;`, `&plus;`, `&amp;#43;`. A number, and the oldest names, may lack the semicolon.
 */
function decodeReference(bytes: Uint8Array, at: number, isLast: boolean): number {
  let from = at + 1
  for (let run = 0; run < runMax && isAt(bytes, from, amp); run++) from += amp.length
  const byte = bytes[from]
  if (byte === undefined) return isLast && from > at + 1 ? pack(ampersand, from) : partial
  if (byte === 0x23) {
    const base = ((bytes[from + 1] ?? 0) | 0x20) === 0x78 ? 16 : 10
    const start = from + (base === 16 ? 2 : 1)
    const { value, end } = number(bytes, start, base)
    if (end >= bytes.length && !isLast) return partial
    if (end === start) return none
    return pack(value, bytes[end] === 0x3b ? end + 1 : end)
  }
  let end = from
  while (end - from < nameMax && isLetter(bytes[end])) end++
  if (end >= bytes.length && !isLast && end - from < nameMax) return partial
  const name = end === from ? '' : String.fromCharCode(...bytes.subarray(from, end))
  const value = bytes[end] === 0x3b ? values.get(name) : undefined
  if (value !== undefined) return pack(value, end + 1)
  const old = /^(?:lt|gt|LT|GT|amp|AMP|quot|QUOT)/.exec(name)?.[0]
  if (old !== undefined) return pack(values.get(old) ?? 0, from + old.length)
  return from > at + 1 ? pack(ampersand, from) : none
}

const amp = Buffer.from('amp;')
const values = new Map(
  Object.entries(names).flatMap(([sign, own]) =>
    own.map((name): [string, number] => [name, sign.charCodeAt(0)]),
  ),
)
const nameMax = 16

function isLetter(byte = 0): boolean {
  const lower = byte | 0x20
  return lower >= 0x61 && lower <= 0x7a
}

function isAt(bytes: Uint8Array, at: number, wanted: Uint8Array): boolean {
  for (let index = 0; index < wanted.length; index++) {
    if (bytes[at + index] !== wanted[index]) return false
  }
  return true
}

/** A number with leading zeros, and its end. */
function number(bytes: Uint8Array, at: number, base: 10 | 16): { value: number; end: number } {
  let value = 0
  let end = at
  while (end - at < runMax * 2) {
    const digit = digitOf(bytes[end])
    if (digit < 0 || digit >= base) break
    value = value * base + digit
    end++
  }
  return { value, end }
}

function hex(bytes: Uint8Array, at: number, count: number): number {
  let value = 0
  for (let index = at; index < at + count; index++) {
    if (index >= bytes.length) return partial
    const digit = digitOf(bytes[index])
    if (digit < 0) return none
    value = value * 16 + digit
  }
  return value
}

/** Value of a hexadecimal digit; -1 for any other byte. */
function digitOf(byte = 0): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30
  const lower = byte | 0x20
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1
}

/** Ignores code points beyond ASCII: the texts to find contain none. */
function pack(value: number, end: number): number {
  return value > 0x7f ? none : end * 256 + value
}
