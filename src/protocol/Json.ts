import type { Address, Hex } from 'viem'
import { parse as parseAddress } from './Address'
import { parseAtomic } from './Amount'

/** Strict JSON for untrusted input, readers for its members, and RFC 8785 serialisation. */

export type Json = null | boolean | number | string | readonly Json[] | JsonObject
export type JsonObject = { readonly [member: string]: Json }

const depthMax = 16
/** In memory an empty container takes thirty times its text. Real messages have fewer. */
const containersMax = 16_384
const signatureBytesMax = 4096
const hexPattern = /^0x(?:[0-9a-fA-F]{2})+$/
const wordPattern = /^0x[0-9a-fA-F]{64}$/

/** Why a text or one of its members was refused. The message is safe to send. */
export class JsonError extends Error {
  override readonly name = 'JsonError'
}

/** Parses the text of a JSON object, as `parseAny` does. Throws a JsonError for anything else. */
export function parse(text: string): JsonObject {
  const value = parseAny(text)
  if (!isObject(value)) throw new JsonError('not a JSON object')
  return value
}

/**
 * Parses JSON text. Throws a JsonError for more than `levels` of nesting, for too many objects and
 * arrays, for more than `parts` members and entries in total, for a repeated member (parsers
 * disagree about which one counts) and for `__proto__`.
 */
export function parseAny(text: string, levels = depthMax, parts = Number.POSITIVE_INFINITY): Json {
  const members = countMembers(text, levels, parts)
  let value: Json
  try {
    value = JSON.parse(text)
  } catch {
    throw new JsonError('not valid JSON')
  }
  if (countKeys(value) !== members) throw new JsonError('a member appears twice')
  return value
}

/**
 * Counts colons outside of strings, one for each member, so that repeated members show as a
 * difference from the parsed keys. Throws when the text nests too deeply or has too many parts,
 * before a parser reads it.
 */
function countMembers(text: string, levels: number, parts: number): number {
  let members = 0
  let depth = 0
  let containers = 0
  let separators = 0
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index)
    if (code === 0x22) {
      index = endOfString(text, index + 1)
    } else if (code === 0x3a) {
      members++
    } else if (code === 0x7b || code === 0x5b) {
      if (++depth > levels) throw new JsonError(`more than ${levels} levels`)
      if (++containers > containersMax) throw new JsonError('too many objects and arrays')
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

/** Limits of what is parsed for an unpaid request, about a tenth of a second. */
const heavy = { containers: 65_536, commas: 131_072 }

/**
 * Whether a text, which need not be JSON, has so many parts that parsing and checking it would
 * delay other requests. Long strings count as one part.
 */
export function isHeavy(text: string): boolean {
  let containers = 0
  let commas = 0
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index)
    if (code === 0x22) index = endOfString(text, index + 1)
    else if (code === 0x7b || code === 0x5b) containers++
    else if (code === 0x2c) commas++
    if (containers > heavy.containers || commas > heavy.commas) return true
  }
  return false
}

/** Index of the closing quote, or the end of the text. */
function endOfString(text: string, start: number): number {
  for (let at = text.indexOf('"', start); at >= 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0
    while (text.charCodeAt(at - 1 - slashes) === 0x5c) slashes++
    if (slashes % 2 === 0) return at
  }
  return text.length
}

function countKeys(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  let count = 0
  if (Array.isArray(value)) {
    for (const entry of value) count += countKeys(entry)
    return count
  }
  for (const [key, entry] of Object.entries(value)) {
    if (key === '__proto__') throw new JsonError('a member is named __proto__')
    count += 1 + countKeys(entry)
  }
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

/** Object member. Throws a JsonError. */
export function object(parent: JsonObject, name: string): JsonObject {
  const value = member(parent, name)
  if (!isObject(value)) throw new JsonError(`${name} is not an object`)
  return value
}

/** Object member or undefined when it is absent. Throws a JsonError. */
export function optionalObject(parent: JsonObject, name: string): JsonObject | undefined {
  return member(parent, name) === undefined ? undefined : object(parent, name)
}

/** The only entry of an array member. Throws a JsonError. */
export function single(parent: JsonObject, name: string): JsonObject {
  const value = member(parent, name)
  const entry = Array.isArray(value) && value.length === 1 ? value[0] : undefined
  if (!isObject(entry)) throw new JsonError(`${name} is not an array of one object`)
  return entry
}

/** Text member. Throws a JsonError. */
export function text(parent: JsonObject, name: string): string {
  const value = member(parent, name)
  if (typeof value !== 'string') throw new JsonError(`${name} is not a string`)
  return value
}

/** Text member or undefined when it is absent. Throws a JsonError. */
export function optionalText(parent: JsonObject, name: string): string | undefined {
  return member(parent, name) === undefined ? undefined : text(parent, name)
}

/** Address member, checksummed. Throws a JsonError. */
export function address(parent: JsonObject, name: string): Address {
  const value = parseAddress(member(parent, name))
  if (value === undefined) throw new JsonError(`${name} is not an address`)
  return value
}

/** Unsigned 256-bit integer member: decimal digits or a safe integer. Throws a JsonError. */
export function uint(parent: JsonObject, name: string): bigint {
  const value = parseAtomic(member(parent, name))
  if (value === undefined) throw new JsonError(`${name} is not an unsigned integer`)
  return value
}

/** 32-byte hex member, lower case. Throws a JsonError. */
export function word(parent: JsonObject, name: string): Hex {
  const value = member(parent, name)
  if (typeof value !== 'string' || !wordPattern.test(value)) {
    throw new JsonError(`${name} is not 32 bytes of hex`)
  }
  return value.toLowerCase() as Hex
}

/**
 * 32-byte member as hex, or as the integer that it is; answers the hex, lower case. Throws a
 * JsonError.
 */
export function wordOrUint(parent: JsonObject, name: string): Hex {
  const value = member(parent, name)
  if (typeof value === 'string' && wordPattern.test(value)) return value.toLowerCase() as Hex
  return `0x${uint(parent, name).toString(16).padStart(64, '0')}`
}

/** Signature member: whole bytes of hex, of any length that a contract wallet may need. */
export function signature(parent: JsonObject, name: string): Hex {
  const value = member(parent, name)
  const isHex =
    typeof value === 'string' && value.length <= 2 + 2 * signatureBytesMax && hexPattern.test(value)
  if (!isHex) throw new JsonError(`${name} is not a signature`)
  return value as Hex
}

/** RFC 8785 (JCS) text of a JSON value: members sorted by UTF-16 code units, no white space. */
export function canonicalize(value: Json): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonicalize).join(',')}]`
  const object = value as JsonObject
  const members = Object.keys(object)
    .sort()
    .map((name) => `${JSON.stringify(name)}:${canonicalize(object[name] ?? null)}`)
  return `{${members.join(',')}}`
}
