import * as Encoded from './Encoded'

/**
 * A text that is found everywhere, or a value that is too short, or too ordinary, for that. A value
 * without a name is found where it is a separate word. A value with a name is found only after its
 * name, in the forms in which an answer repeats the request: `name=value`, `"name": ["value"]`,
 * `<name>value</name>`, `name="..." value="..."`. All are found in every spelling that `Encoded` reads.
 */
export type Secret = string | { name?: string; value: string }

type Pattern = { name?: Uint8Array | undefined; value: Uint8Array; isBounded: boolean }

/** Secrets compiled for the search. */
export type Group = {
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
export type Found = { start: number; from: number; to?: number; quote?: Uint8Array | undefined }

/** Number of bytes before a place that tell whether an encoded character ends there. */
export const contextBytes = 16
/** Most characters between a name and its value. */
const separatorsMax = 64
const plus = 0x2b
/** Begins escapes. Stands for the byte after the last one, which may be anything. */
const percent = 0x25
const blank = 0x20
/** Words between a name and its value: `name="x" value="y"`, `<x><![CDATA[y]]></x>`. */
const between = /^(?:value|content|CDATA)/i

/** Compiles secrets, in any order; undefined without any. */
export function compile(secrets: readonly Secret[]): Group | undefined {
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
 * Returns a search for the next secret from a place on, in order of the places. The requested places
 * only increase. `before`: the bytes that were sent before these. `isLast`: no more bytes will follow.
 */
export function create(
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
