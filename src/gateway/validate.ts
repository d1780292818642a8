import type { Route } from '../config/Config'
import * as Json from '../protocol/Json'
import * as JsonSchema from '../schema/JsonSchema'
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
type Compiled = ReturnType<typeof compile>

/** Longest value that is matched against a pattern. */
const lengthMax = 4096
const reportedMax = 20
const none: readonly InvalidParam[] = []
const compiled = new WeakMap<Route, Compiled>()

/**
 * All inputs of a request that its route cannot serve; empty when there are none. `search` is the
 * query, `tail` the canonical one of `Route.match`. Values are converted to the types of their
 * schema (numbers, booleans, comma lists of an array). Every value of a repeated name is checked. A
 * body is checked when there is one. A required query parameter may also be a member of the body.
 * A body that is only rewritten may also be no JSON.
 */
export function validateParams(
  route: Route,
  search: string,
  tail: string,
  body: Uint8Array,
): readonly InvalidParam[] {
  const isRead = body.byteLength > 0 && (route.body !== undefined || isRewritten(route))
  if (route.params.length === 0 && !isRead) return none
  const checks = compiledOf(route)
  const json = isRead ? Json.readBody(body) : undefined
  const value = json !== undefined && 'value' in json ? json.value : undefined
  const found = [
    ...invalidQuery(checks, search, route.body && value),
    ...invalidTail(route, checks, tail),
  ]
  if (json !== undefined) found.push(...invalidBody(checks.body, json, body.byteLength))
  return found.slice(0, reportedMax)
}

function isRewritten({ rewrite }: Route): boolean {
  for (const _ in rewrite) return true
  return false
}

/** The same for a request without its required body: the members that the body needs. */
export function missingBody(route: Route, search: string, tail: string): readonly InvalidParam[] {
  const found = validateParams(route, search, tail, new TextEncoder().encode('{}'))
  if (found.some((param) => param.in === 'body')) return found
  return [...found, { name: 'body', in: 'body', reason: 'is required' }]
}

function compiledOf(route: Route): Compiled {
  const known = compiled.get(route) ?? compile(route)
  compiled.set(route, known)
  return known
}

function compile(route: Route) {
  const query = route.params.filter((param) => param.in === 'query')
  return {
    query: query.map(({ name, required, schema }) => ({ name, required, check: checkOf(schema) })),
    /** Described names by the names themselves and by their folded form. */
    names: new Map([
      ...query.map(({ name }) => [foldName(name).at(-1) ?? name, name] as const),
      ...query.map(({ name }) => [name, name] as const),
    ]),
    tail: segmentsOf(route).map((segment) => ({ segment, check: checkOf(segment.param.schema) })),
    body: route.body && JsonSchema.compile(route.body),
  }
}

function checkOf(schema: Readonly<Record<string, unknown>>): Check {
  const check = JsonSchema.compile(schema)
  const types = [schema.type].flat()
  const { items } = schema as { items?: { type?: unknown } }
  const itemTypes = [items?.type].flat()
  return (text) => {
    if (text.length > lengthMax) return `is longer than ${lengthMax} characters`
    const value = coerce(text, types, itemTypes)
    if (value === undefined) return `is not of type ${types.join(' or ')}`
    return check(value, 1)[0]?.reason
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

/** Longest body whose faults are all named. Of a longer one the first is named. */
const exhaustiveMaxBytes = 8 * 1024

function invalidBody(
  check: JsonSchema.Check | undefined,
  body: Json.Body,
  bytes: number,
): readonly InvalidParam[] {
  if ('fault' in body) {
    const passes = check === undefined && body.fault.reason === Json.notJson
    return passes ? none : [{ ...body.fault, in: 'body' }]
  }
  const most = bytes > exhaustiveMaxBytes ? 1 : reportedMax
  return (check?.(body.value, most) ?? []).map((fault) => ({ ...fault, in: 'body' }))
}
