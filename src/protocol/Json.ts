import type { Hex } from 'viem'
import { parse as parseAddress } from './Address'
import { max as uintMax } from './Amount'
import type { Fault } from './Problem'

/** Strict JSON for untrusted input, readers for its members, and RFC 8785 serialisation. */

export type Json = null | boolean | number | string | readonly Json[] | JsonObject
export type JsonObject = { readonly [member: string]: Json }

const signatureBytesMax = 4096
const hexPattern = /^0x(?:[0-9a-fA-F]{2})+$/
const uintPattern = /^(0|[1-9]\d{0,77})$/
const wordPattern = /^0x[0-9a-fA-F]{64}$/

/** Why a text or one of its members was refused. The message is safe to send. */
export class JsonError extends Error {
  override readonly name = 'JsonError'
}

/** What is read; undefined where reading throws a JsonError. */
export function readable<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch (error) {
    if (error instanceof JsonError) return undefined
    throw error
  }
}

/** What is read, or a fault of that code where reading throws a JsonError. `what` begins its text. */
export function wellFormed<T>(code: string, what: string, read: () => T): T | Fault {
  try {
    return read()
  } catch (error) {
    if (!(error instanceof JsonError)) throw error
    return { code, detail: `${what} is malformed: ${error.message}.` }
  }
}

/**
 * Parses the text of a JSON object, or its UTF-8 bytes, as `parseAny` does. Throws a JsonError for
 * anything else.
 */
export function parse(source: string | Uint8Array): JsonObject {
  const value = parseLimited(typeof source === 'string' ? source : decodeUtf8(source), unlimited)
  if (!isObject(value)) throw new JsonError('not a JSON object')
  return value
}

/**
 * Parses JSON text. Throws a JsonError for more than `levels` of nesting, for too many objects and
 * arrays, for more than `parts` members and entries in total, for a repeated member (parsers
 * disagree about which one counts) and for `__proto__`.
 */
export function parseAny(text: string, levels: number, parts: number): Json {
  return parseLimited(text, { ...unlimited, levels, parts })
}

function parseLimited(text: string, limits: typeof bodyLimits): Json {
  const members = countMembers(text, limits)
  let value: Json
  try {
    value = JSON.parse(text)
  } catch {
    throw new JsonError('not valid JSON')
  }
  if (countKeys(value) !== members) throw new JsonError('a member appears twice')
  return value
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function decodeUtf8(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes)
  } catch {
    throw new JsonError('not valid UTF-8')
  }
}

/** Of messages, whose length is limited. */
const unlimited = {
  levels: 16,
  /** In memory an empty container takes thirty times its text. Real messages have fewer. */
  containers: 16_384,
  parts: Number.POSITIVE_INFINITY,
  members: Number.POSITIVE_INFINITY,
  strings: Number.POSITIVE_INFINITY,
  outside: Number.POSITIVE_INFINITY,
}

/**
 * Counts colons outside of strings, one for each member, so that repeated members show as a
 * difference from the parsed keys. Throws when the text nests too deeply or has too many parts,
 * before a parser reads it. The text need not be JSON; a long string counts as one part.
 */
function countMembers(text: string, limits: typeof bodyLimits): number {
  const { levels, parts } = limits
  let { outside } = limits
  let members = 0
  let strings = 0
  let depth = 0
  let containers = 0
  let separators = 0
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index)
    if (--outside < 0) throw new JsonError('too much outside of strings')
    if (code === 0x22) {
      index = endOfString(text, index) - 1
      if (++strings > limits.strings) throw new JsonError('too many strings')
    } else if (code === 0x3a) {
      if (++members > limits.members) throw new JsonError('too many members')
    } else if (code === 0x7b || code === 0x5b) {
      if (++depth > levels) throw new JsonError(`more than ${levels} levels`)
      if (++containers > limits.containers) throw new JsonError('too many objects and arrays')
    } else if (code === 0x2c) {
      separators++
    } else if (code === 0x7d || code === 0x5d) {
      depth--
    }
    // Each object or array has at most one entry more than commas.
    if (separators + containers > parts) throw new JsonError(`more than ${parts} members`)
  }
  return members
}

/** The text of a body in UTF-8 and its value, or why it is not read; `reason` completes "name ...". */
export type Body = { text: string; value: Json } | { fault: { name: string; reason: string } }

/**
 * What is parsed of a body before it is paid for, in about 20 ms. Members and strings cost more than
 * numbers: each of them may have another name.
 */
const bodyLimits = {
  levels: 128,
  containers: 65_536,
  /** Members and entries in total. */
  parts: 131_072,
  members: 20_480,
  strings: 49_152,
  /** Characters outside of strings. */
  outside: 2 * 1024 ** 2,
}

export const notJson = 'is not JSON'

let lastBody: { bytes: Uint8Array; body: Body } | undefined

/**
 * Reads a body. Refuses one with too many parts, because the sender has not paid yet, and one with a
 * repeated member, because the upstream's parser may take another one than ours. The schema, the
 * meter and the rewriting of a route ask for the same body one after the other, so it is kept until
 * they are done.
 */
export function readBody(bytes: Uint8Array): Body {
  if (lastBody?.bytes === bytes) return lastBody.body
  const body = parseBody(bytes)
  lastBody = { bytes, body }
  queueMicrotask(() => {
    lastBody = undefined
  })
  return body
}

function parseBody(bytes: Uint8Array): Body {
  const refused = (reason: string, name = '') => ({ fault: { name, reason } })
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    return refused(notJson)
  }
  let members: number
  try {
    members = countMembers(text, bodyLimits)
  } catch {
    return refused('has too many parts')
  }
  if (hasManyEscapes(text)) return refused('has too many escaped characters')
  try {
    const value: Json = JSON.parse(text)
    if (countKeys(value) === members) return { text, value }
  } catch (error) {
    return error instanceof JsonError ? refused('is not allowed', '__proto__') : refused(notJson)
  }
  return refused('is there twice', repeatedMember(text))
}

/** A parser takes ten times as long for an escaped character. */
const escapesMax = 1024 ** 2

function hasManyEscapes(text: string): boolean {
  let escapes = 0
  for (let at = text.indexOf('\\'); at >= 0; at = text.indexOf('\\', at + 2))
    if (++escapes > escapesMax) return true
  return false
}

/** The first repeated member of a JSON text, as a JSON pointer without its first slash. */
function repeatedMember(text: string): string {
  /** The open objects and arrays; an array has no names. */
  const open: { names: Set<string> | undefined; part: string | number; isName: boolean }[] = []
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index)
    const inner = open.at(-1)
    if (code === 0x7b) open.push({ names: new Set(), part: '', isName: true })
    else if (code === 0x5b) open.push({ names: undefined, part: 0, isName: false })
    else if (code === 0x7d || code === 0x5d) open.pop()
    else if (code === 0x2c && inner !== undefined) {
      inner.isName = inner.names !== undefined
      if (typeof inner.part === 'number') inner.part++
    } else if (code === 0x22) {
      const end = endOfString(text, index)
      if (inner?.names !== undefined && inner.isName) {
        inner.part = String(JSON.parse(text.slice(index, end)))
        inner.isName = false
        if (inner.names.has(inner.part)) return pointerTo(open.map(({ part }) => part))
        inner.names.add(inner.part)
      }
      index = end - 1
    }
  }
  return ''
}

/** A JSON pointer without its first slash: `messages/0/role`. */
export function pointerTo(path: readonly (string | number)[]): string {
  return path.map((part) => String(part).replaceAll('~', '~0').replaceAll('/', '~1')).join('/')
}

/**
 * A name for parsers that ignore case, as Go's does. To upper case first: some of them read a long
 * s and the Kelvin sign as letters.
 */
export function fold(name: string): string {
  return name.toUpperCase().toLowerCase()
}

/** Index after the string that begins at an index, or the end of the text. */
export function endOfString(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at >= 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0
    while (text.charCodeAt(at - 1 - slashes) === 0x5c) slashes++
    if (slashes % 2 === 0) return at + 1
  }
  return text.length
}

/** By values: the names of a large object with numbers as names take three times as long. */
function countKeys(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  if (!Array.isArray(value) && Object.hasOwn(value, '__proto__'))
    throw new JsonError('a member is named __proto__')
  const entries = Array.isArray(value) ? value : Object.values(value)
  let count = Array.isArray(value) ? 0 : entries.length
  for (const entry of entries) count += countKeys(entry)
  return count
}

/** Whether a value is a JSON object, not an array. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Own member of an object. Null counts as absent, because several clients write it. */
export function member(object: JsonObject, name: string): Json | undefined {
  return Object.hasOwn(object, name) ? (object[name] ?? undefined) : undefined
}

/** Member that is an object; an empty one in place of any other. */
export function child(parent: JsonObject | undefined, name: string): JsonObject {
  const value = parent && member(parent, name)
  return isObject(value) ? value : {}
}

/** Member that is a string; undefined in place of any other. */
export function text(parent: JsonObject, name: string): string | undefined {
  const value = member(parent, name)
  return typeof value === 'string' ? value : undefined
}

/**
 * What a member can be read as: the words of a refusal, and the value; undefined for another one.
 */
const kinds = {
  text: ['a string', (value: unknown) => (typeof value === 'string' ? value : undefined)],
  object: ['an object', (value: unknown) => (isObject(value) ? value : undefined)],
  /** The only entry of an array. */
  single: [
    'an array of one object',
    (value: unknown) =>
      Array.isArray(value) && value.length === 1 && isObject(value[0]) ? value[0] : undefined,
  ],
  /** Checksummed. */
  address: ['an address', parseAddress],
  uint: ['an unsigned integer', uintOf],
  uint128: ['an unsigned integer of 128 bits', uint128Of],
  /** Lower case. */
  word: ['32 bytes of hex', wordOf],
  /** 32 bytes as hex, or as the integer that they are; answers the hex, lower case. */
  wordOrUint: ['an unsigned integer', (value: unknown) => wordOf(value) ?? wordOfUint(value)],
  /** Whole bytes of hex, as many as a contract wallet may need. */
  signature: ['a signature', signatureOf],
} as const satisfies Record<string, readonly [words: string, of: (value: unknown) => unknown]>

type Kind = keyof typeof kinds
type Read<K extends Kind> = NonNullable<ReturnType<(typeof kinds)[K][1]>>

/** Member of a kind. Throws a JsonError. */
export function read<K extends Kind>(parent: JsonObject, name: string, kind: K): Read<K> {
  const [words, of] = kinds[kind]
  const value = of(member(parent, name))
  if (value === undefined) throw new JsonError(`${name} is not ${words}`)
  return value as Read<K>
}

/** Member of a kind, or undefined when it is absent. Throws a JsonError. */
export function optional<K extends Kind>(
  parent: JsonObject,
  name: string,
  kind: K,
): Read<K> | undefined {
  return member(parent, name) === undefined ? undefined : read(parent, name, kind)
}

/**
 * Decimal digits without sign, leading zeros, exponent or `0x`, at
 * most 2^256 - 1, or a safe integer number. Undefined for anything else.
 */
function uintOf(value: unknown): bigint | undefined {
  if (typeof value === 'string') {
    if (!uintPattern.test(value)) return undefined
    const integer = BigInt(value)
    return integer > uintMax ? undefined : integer
  }
  if (
    typeof value === 'number' &&
    Number.isSafeInteger(value) &&
    value >= 0 &&
    !Object.is(value, -0)
  ) {
    return BigInt(value)
  }
  return undefined
}

function uint128Of(value: unknown): bigint | undefined {
  const integer = uintOf(value)
  return integer === undefined || integer >= 2n ** 128n ? undefined : integer
}

function wordOf(value: unknown): Hex | undefined {
  const isWord = typeof value === 'string' && wordPattern.test(value)
  return isWord ? (value.toLowerCase() as Hex) : undefined
}

function wordOfUint(value: unknown): Hex | undefined {
  const integer = uintOf(value)
  return integer === undefined ? undefined : `0x${integer.toString(16).padStart(64, '0')}`
}

function signatureOf(value: unknown): Hex | undefined {
  const isHex =
    typeof value === 'string' && value.length <= 2 + 2 * signatureBytesMax && hexPattern.test(value)
  return isHex ? (value as Hex) : undefined
}

/** RFC 8785 (JCS) text of a JSON value: members sorted by UTF-16 code units, no white space. */
export function canonicalize(value: Json): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonicalize).join(',')}]`
  const object = value as JsonObject
  // Text that grows costs half of a list that is joined.
  let members = ''
  for (const name of Object.keys(object).sort()) {
    const comma = members === '' ? '' : ','
    members += `${comma}${JSON.stringify(name)}:${canonicalize(object[name] ?? null)}`
  }
  return `{${members}}`
}
