import * as JsonSchema from '../schema/JsonSchema'
import * as Pattern from '../schema/Pattern'
import type { Merchant, Method, Param, Route, Service } from './Config'
import { checkEntitlements, readAgain } from './entitlements'
import * as keys from './keys'
import { readKeys } from './kinds'
import { readMeter } from './meter'
import {
  child,
  children,
  field,
  isEmptyList,
  isTable,
  optional,
  type Read,
  readList,
  record,
  report,
  reportKey,
  type Source,
  type Table,
} from './reader'
import { readUpstream, secretsAt, type UpstreamConfig } from './upstream'
import * as V from './values'

/** Settings of a route that come from its merchant and the service. */
type Around = {
  service: Service
  upstream: UpstreamConfig | undefined
  allowPrivate: boolean
  mapUpstream: ((url: URL) => URL) | undefined
  /** Whether a network of the merchant has channels. */
  hasChannels: boolean
}

export function readRoute(table: Table, around: Around): Route {
  const path = keys.route.path.read(table, 'path')
  const own = readUpstream(table, around.allowPrivate, around.mapUpstream)
  const upstream = own ?? around.upstream
  const upstreamPath = field(table, 'upstream_path', V.text, path)
  const tail = field(table, 'tail', V.oneOf(keys.tails), 'optional')
  const isTailExact = tail === 'exact'
  const values = readKeys(table, keys.route, {
    methods: () => readMethods(table),
    upstream: () => own?.origin,
    upstreamPath: () => `${upstream?.basePath ?? ''}${upstreamPath}`,
    bodyMaxBytes: (key) => field(table, key, V.size, around.service.bodyMaxBytes),
    tail: () => (isTailExact ? 'required' : tail),
    rewrite: () => readRewrite(table),
    params: () => readParams(table, isTailExact),
    body: (key) => readSchema(table, key),
    answer: (key) => readSchema(table, key),
    meter: () => undefined,
    schemes: () => undefined,
    again: () => readAgain(table),
  })
  const pathSecrets = [...(upstream?.secrets ?? []), ...secretsAt(table, 'upstream_path')]
  const route: Route = { ...values, pathSecrets, isTailExact, passOf: undefined }
  if (isTailExact && !route.params.some((param) => param.in === 'tail'))
    reportKey(table, 'tail', 'tail = "exact" needs a parameter with in = "tail" for each segment')
  route.meter = readMeter(child(table, 'meter'), route)
  route.schemes = readSchemes(table, { ...around, isMetered: route.meter !== undefined })
  checkEntitlements(table, route)
  checkUpstreamPath(table, upstreamPath, route.tail)
  checkQuery(table, route)
  if (route.bodyRequired && !route.methods.some((each) => keys.withBody.includes(each))) {
    const message = 'body_required needs a method with a body: POST, PUT or PATCH'
    reportKey(table, 'body_required', message)
  }
  if (route.bodyMaxBytes > around.service.bufferedMaxBytes)
    reportKey(table, 'body_max', 'body_max must not exceed buffered_max of [service]')
  return route
}

const method: Read<Method> = (value) => {
  const found = keys.methods.find((name) => name === value)
  if (found) return found
  if (value === 'HEAD') return { wrong: 'HEAD comes with GET and costs the same: remove it' }
  const upper = typeof value === 'string' ? value.toUpperCase() : ''
  const hint = keys.methods.some((name) => name === upper) ? { hint: `write "${upper}"` } : {}
  return { wrong: `must be one of ${keys.methods.join(', ')}`, ...hint }
}

function readMethods(table: Table): readonly Method[] {
  const found = readList(table, 'methods', method) ?? ['GET']
  if (isEmptyList(table, 'methods'))
    reportKey(table, 'methods', 'methods is empty; write methods = ["GET"]')
  else if (new Set(found).size < found.length)
    reportKey(table, 'methods', 'methods names a method twice')
  return found
}

/** The schemes of a route that lists them, each of which must be possible. */
function readSchemes(
  table: Table,
  { hasChannels, isMetered }: { hasChannels: boolean; isMetered: boolean },
): Route['schemes'] {
  const found = readList(table, 'schemes', V.oneOf(keys.schemes))
  if (isEmptyList(table, 'schemes'))
    reportKey(table, 'schemes', 'schemes is empty; write schemes = ["exact"]')
  found?.forEach((scheme, i) => {
    const report = (message: string) => reportKey(table, ['schemes', i], message)
    if (found.indexOf(scheme) < i) report('schemes names a scheme twice')
    else if (scheme === 'upto' && !isMetered)
      report('"upto" needs a meter, which says what an answer costs: [merchants.routes.meter]')
    else if (scheme === 'channel' && !hasChannels)
      report('"channel" needs a network of the merchant with channels: [networks."...".channels]')
  })
  return found
}

function checkUpstreamPath(table: Table, path: string, tail: Route['tail']): void {
  const key = 'upstream_path'
  if (table.raw[key] === undefined) return
  const places = path.split('{tail}').length - 1
  const literal = path.replaceAll('{tail}', '')
  if (!/^\/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*$/.test(literal)) {
    const example = '"/v1/forecast" or "/submissions/CIK{tail}"'
    reportKey(table, key, `upstream_path must be a path without query, such as ${example}`)
  } else if (
    /(^|\/)(\.|%2e){1,2}(\/|$)/i.test(literal) ||
    path.replaceAll('{tail}', 'x').includes('//')
  ) {
    reportKey(table, key, 'upstream_path must not have empty or dot segments')
  } else if (places > 1 || (places > 0 && tail === 'none')) {
    reportKey(table, key, 'upstream_path may place {tail} once, and only with a tail')
  }
}

function checkQuery(table: Table, route: Route): void {
  for (const name of Object.keys(route.query)) {
    if (!(name in route.fixedQuery)) continue
    const message = `${name} is in fixed_query too, which always wins: remove one of them`
    reportKey(table, ['query', name], message)
  }
}

function readRewrite(table: Table): Route['rewrite'] {
  const inner = child(table, 'rewrite')
  if (!inner) return {}
  return Object.fromEntries(
    Object.keys(inner.raw).map((name) => [name, record(inner, name, V.text)]),
  )
}

function readParams(table: Table, isTailExact: boolean): readonly Param[] {
  const tables = children(table, 'params')
  const params = tables.map((inner) => {
    const param = readParam(inner)
    return isTailExact && param.in === 'tail' ? { ...param, required: true } : param
  })
  tables.forEach((inner, i) => {
    const param = params[i]
    if (!param) return
    if (params.findIndex((other) => other.name === param.name && other.in === param.in) < i) {
      const message = 'a parameter of this name is already described: remove one of them'
      reportKey(inner, 'name', message)
    }
    if (param.in === 'tail' && table.raw.tail === 'none')
      reportKey(inner, 'in', 'in = "tail" needs a route with a tail')
  })
  return params
}

function readParam(table: Table): Param {
  return readKeys(table, keys.param, {
    schema: (key) => readSchema(table, key) ?? { type: 'string' },
    example: (key) => optional(table, key, V.example),
  })
}

const data = ['example', 'examples', 'default', 'enum', 'const']

const types = ['string', 'number', 'integer', 'boolean', 'array', 'object', 'null']

function readSchema(table: Table, key: string): Readonly<Record<string, unknown>> | undefined {
  const inner = child(table, key)
  if (!inner) return undefined
  for (const name of Object.keys(inner.raw)) inner.known.add(name)
  const { size } = table.source.faults
  // The schema of an answer is published, and no input is checked with it.
  const isPublished = key === 'answer'
  const assertPattern = isPublished ? Pattern.assertSyntax : Pattern.compile
  checkSchema({ source: table.source, assertPattern }, inner.path, inner.raw)
  if (!isPublished && table.source.faults.size === size) checkReferences(inner)
  return inner.raw
}

function checkReferences({ source, path, raw }: Table): void {
  try {
    JsonSchema.compile(raw)
  } catch (error) {
    // Any other fault was reported at its place.
    if (error instanceof JsonSchema.SchemaError)
      report(source, path, `${path.at(-1)} ${error.message}`)
  }
}

type SchemaRules = { source: Source; assertPattern: (pattern: string) => unknown }

/**
 * Reports parts of a published schema that are dangerous, such as a reference that readers fetch,
 * or have no meaning.
 */
function checkSchema(rules: SchemaRules, path: Table['path'], schema: unknown): void {
  const { source } = rules
  if (Array.isArray(schema)) {
    for (const [i, item] of schema.entries())
      if (typeof item === 'object') checkSchema(rules, [...path, i], item)
  }
  if (!isTable(schema)) return
  for (const [key, value] of Object.entries(schema)) {
    const isReference = key === '$ref' || key === '$dynamicRef' || key === '$id'
    if (isReference && !(typeof value === 'string' && value.startsWith('#'))) {
      report(source, [...path, key], `${key} may only point into its own schema: start it with #`)
    }
    const names: unknown[] = Array.isArray(value) ? value : [value]
    // Below `properties` a key is a member of the body, not a keyword.
    if (key === 'type' && path.at(-1) !== 'properties' && names.some((name) => !isType(name))) {
      report(source, [...path, key], `type must be one of ${types.join(', ')}`)
    }
    if (key === 'pattern' && typeof value === 'string') checkPattern(rules, [...path, key], value)
    if (key === 'patternProperties' && isTable(value)) {
      for (const name of Object.keys(value)) checkPattern(rules, [...path, key, name], name)
    }
    // Values of examples are data. Below `properties` their keys are members, too.
    if (data.includes(key) && path.at(-1) !== 'properties') continue
    // Checks only values with parts: most have none, and the path of one costs more than all of its
    // checks.
    if (typeof value === 'object') checkSchema(rules, [...path, key], value)
  }
}

function isType(name: unknown): boolean {
  return typeof name === 'string' && types.includes(name)
}

/** Reports a pattern with which a buyer could keep the gateway busy. */
function checkPattern(rules: SchemaRules, path: Table['path'], pattern: string): void {
  try {
    rules.assertPattern(pattern)
  } catch (error) {
    if (!(error instanceof Pattern.PatternError)) throw error
    report(rules.source, path, `pattern ${error.message}`)
  }
}

/** Routes of a merchant that the binary serves itself. */
export const builtinRoutes: Readonly<Record<NonNullable<Merchant['builtin']>, readonly string[]>> =
  {
    catjoke: ['/joke'],
    'chain-stocks': ['/quote', '/report', '/stocks', '/token'],
  }
