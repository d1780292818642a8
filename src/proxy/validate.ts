import {
  type OutputUnit,
  type Schema,
  type ValidationResult,
  Validator,
} from '@cfworker/json-schema'
import type { Route } from '../config/Config'
import * as Json from '../protocol/Json'
import { foldName } from './Fold'
import { readQuery } from './Query'
import { type Segment, segmentsOf } from './Tail'

/**
 * An input that cannot be served. `reason` completes "name ...". `status`: status of the answer to
 * a request with a credential, where it is not 400.
 */
export type InvalidParam = {
  name: string
  in: 'query' | 'tail' | 'body'
  reason: string
  status?: 404
}

type Check = (text: string) => string | undefined
type BodyCheck = (value: unknown, bytes: number) => ValidationResult
type Compiled = {
  query: readonly { name: string; required: boolean; check: Check }[]
  /** Described names by the names themselves and by their folded form. */
  names: ReadonlyMap<string, string>
  tail: readonly { segment: Segment; check: Check }[]
  body: BodyCheck | undefined
}

/** Longest value that is matched against a pattern. */
const lengthMax = 4096
const reportedMax = 20
const draft = '2020-12'
const none: readonly InvalidParam[] = []
const compiled = new WeakMap<Route, Compiled>()

/**
 * All inputs of a request that its route cannot serve; empty when there are none. `search` is the
 * query, `tail` the canonical one of `Route.match`. Values are converted to the types of their
 * schema (numbers, booleans, comma lists of an array). Every value of a repeated name is checked. A
 * body is checked when there is one. A required query parameter may also be a member of the body.
 */
export function validateParams(
  route: Route,
  search: string,
  tail: string,
  body: Uint8Array,
): readonly InvalidParam[] {
  if (route.params.length === 0 && (route.body === undefined || body.byteLength === 0)) return none
  const checks = compile(route)
  const json = route.body === undefined ? undefined : parse(body)
  const found = [...invalidQuery(checks, search, json?.value), ...invalidTail(route, checks, tail)]
  if (json?.fault !== undefined) found.push({ name: '', in: 'body', reason: json.fault })
  else if (json !== undefined && checks.body !== undefined)
    found.push(...invalidBody(checks.body(json.value, body.byteLength)))
  return found.slice(0, reportedMax)
}

/** The same for a request without its required body: the members that the body needs. */
export function missingBody(route: Route, search: string, tail: string): readonly InvalidParam[] {
  const found = validateParams(route, search, tail, new TextEncoder().encode('{}'))
  if (found.some((param) => param.in === 'body')) return found
  return [...found, { name: 'body', in: 'body', reason: 'is required' }]
}

/** Compiles a route's schemas ahead of its first request. */
export function compile(route: Route): Compiled {
  const known = compiled.get(route)
  if (known !== undefined) return known
  const query = route.params.filter((param) => param.in === 'query')
  const result: Compiled = {
    query: query.map(({ name, required, schema }) => ({ name, required, check: checkOf(schema) })),
    names: new Map([
      ...query.map(({ name }) => [foldName(name).at(-1) ?? name, name] as const),
      ...query.map(({ name }) => [name, name] as const),
    ]),
    tail: segmentsOf(route).map((segment) => ({ segment, check: checkOf(segment.param.schema) })),
    body: route.body === undefined ? undefined : bodyCheckOf(route.body as Schema),
  }
  compiled.set(route, result)
  return result
}

/** Finds all faults of a short body, the first one of a long body. */
function bodyCheckOf(schema: Schema): BodyCheck {
  const first = new Validator(schema, draft, true)
  const all = new Validator(schema, draft, false)
  return (value, bytes) => {
    const result = first.validate(value)
    return result.valid || bytes > exhaustiveMaxBytes ? result : all.validate(value)
  }
}

function checkOf(schema: Readonly<Record<string, unknown>>): Check {
  const validator = new Validator(schema as Schema, draft, true)
  const types = [schema.type].flat()
  const { items } = schema as { items?: { type?: unknown } }
  const itemTypes = [items?.type].flat()
  return (text) => {
    if (text.length > lengthMax) return `is longer than ${lengthMax} characters`
    const value = coerce(text, types, itemTypes)
    if (value === undefined) return `is not of type ${types.join(' or ')}`
    const result = validator.validate(value)
    return result.valid ? undefined : reasonOf(result.errors)
  }
}

const numeric = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?$/i

/** Undefined when the text has none of the types; `itemTypes` are those of a comma list. */
function coerce(
  text: string,
  types: readonly unknown[],
  itemTypes: readonly unknown[] = [],
): unknown {
  if ((types.includes('number') || types.includes('integer')) && numeric.test(text))
    return Number(text)
  if (types.includes('boolean') && /^(?:true|false|0|1)$/i.test(text))
    return text === '1' || text.toLowerCase() === 'true'
  // A part of another type stays a string, which the schema of the items refuses.
  if (types.includes('array')) return text.split(',').map((part) => coerce(part, itemTypes) ?? part)
  return types.includes('string') || types[0] === undefined ? text : undefined
}

function invalidQuery(checks: Compiled, search: string, body: unknown): InvalidParam[] {
  if (checks.query.length === 0) return []
  const { values, others } = readValues(checks, search)
  const found: InvalidParam[] = []
  for (const { name, required, check } of checks.query) {
    const own = values.get(name) ?? []
    const isPresent = own.some((value) => value !== '') || isMember(body, name)
    if (required && !isPresent) found.push({ name, in: 'query', reason: 'is required' })
    for (const value of [...own, ...(others.get(name) ?? [])]) {
      const reason = value === '' ? undefined : check(value)
      if (reason === undefined) continue
      found.push({ name, in: 'query', reason })
      break
    }
  }
  return found
}

type Values = Map<string, string[]>

/** Values by the described name: under the name itself, and under others that may set it, too. */
function readValues({ names }: Compiled, search: string): { values: Values; others: Values } {
  const [values, others]: [Values, Values] = [new Map(), new Map()]
  for (const [name, value] of readQuery(search)) {
    const isOwn = names.get(name) === name
    // Of several keys around a value, the innermost described one is set.
    const described = isOwn
      ? name
      : names.get(foldName(name).findLast((key) => names.has(key)) ?? '')
    if (described === undefined) continue
    const into = isOwn ? values : others
    const known = into.get(described)
    if (known === undefined) into.set(described, [value])
    else known.push(value)
  }
  return { values, others }
}

function isMember(body: unknown, name: string): boolean {
  return typeof body === 'object' && body !== null && Object.hasOwn(body, name)
}

function invalidTail(route: Route, checks: Compiled, tail: string): InvalidParam[] {
  // Parameters of an optional tail describe the tail when it is present.
  if (tail === '' && route.tail !== 'required') return []
  const segments = tail.split('/')
  const found: InvalidParam[] = []
  checks.tail.forEach(({ segment, check }, index) => {
    const encoded = segment.isRest ? segments.slice(index).join('/') : (segments[index] ?? '')
    const reason =
      encoded === ''
        ? segment.param.required
          ? 'is required'
          : undefined
        : segmentReason(segment, decodeURIComponent(encoded), check)
    if (reason !== undefined) found.push({ name: segment.name, in: 'tail', reason })
  })
  return found
}

function segmentReason(segment: Segment, text: string, check: Check): string | undefined {
  const { prefix, suffix, isLiteral, name } = segment
  if (isLiteral) return text === name ? undefined : `must be "${name}"`
  const isFramed = text.startsWith(prefix) && text.endsWith(suffix)
  if (!isFramed || text.length <= prefix.length + suffix.length)
    return `must look like ${prefix}{${name}}${suffix}`
  return check(text.slice(prefix.length, text.length - suffix.length))
}

/** Undefined without a body. */
function parse(body: Uint8Array): { value: unknown; fault: string | undefined } | undefined {
  if (body.byteLength === 0) return undefined
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(body)
    // The sender has not paid yet, so limit the work.
    if (Json.isHeavy(text)) return { value: undefined, fault: 'has too many parts' }
    return { value: JSON.parse(text), fault: undefined }
  } catch {
    return { value: undefined, fault: 'is not JSON' }
  }
}

/**
 * Longest body whose faults are all searched: any client can send one with a fault at every byte.
 */
const exhaustiveMaxBytes = 8 * 1024

// These keywords only repeat what a nested keyword reports better.
const containers = new Set(['properties', 'items', 'prefixItems', 'allOf', '$ref'])

function invalidBody({ valid, errors }: ValidationResult): InvalidParam[] {
  if (valid) return []
  const leaves = errors.filter((error) => !containers.has(error.keyword))
  return (leaves.length === 0 ? errors : leaves).map((error) => {
    // A JSON pointer below the body.
    const place = error.instanceLocation.replace(/^#\/?/, '')
    const missing = error.keyword === 'required' ? missingIn(error.error) : undefined
    return missing === undefined
      ? { name: place, in: 'body', reason: reasonOf([error]) }
      : { name: place === '' ? missing : `${place}/${missing}`, in: 'body', reason: 'is required' }
  })
}

/** The member that an object lacks. The validator names it only in its message. */
function missingIn(words: string): string | undefined {
  return /required property "(.*)"\.$/.exec(words)?.[1]
}

/** The validator's message; it names the schema, never the value. */
function reasonOf(errors: readonly OutputUnit[]): string {
  const words = errors.at(-1)?.error ?? 'it does not match its schema'
  const [, list] = /^Instance type ".*" is invalid\. Expected (.*)\.$/.exec(words) ?? []
  if (list === undefined) return `is invalid: ${words}`
  const wanted = list.split(', ').map((type) => typeWords[type.slice(1, -1)] ?? type)
  return `must be ${wanted.join(' or ')}`
}

const typeWords: Readonly<Record<string, string>> = {
  array: 'a list',
  boolean: 'true or false',
  integer: 'a whole number',
  null: 'null',
  number: 'a number',
  object: 'an object',
  string: 'a text',
}
