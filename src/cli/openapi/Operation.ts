import * as Headers from '../../config/headers'
import { type Method, methods, withBody } from '../../config/keys'
import { isTable } from '../../config/reader'
import { isPrivate } from '../../config/values'
import { unique } from '../../gateway/documents/Catalogue'
import { CommandError } from '../Command'
import type { Document } from './document'
import * as Schema from './Schema'
import { brief, follow, isScalar, type Table, textOf } from './Value'

/** What the routes of a file say of the operations of a specification. */

export type Param = {
  name: string
  in: 'query' | 'tail'
  required: boolean
  description: string
  schema: Table
  example: string | number | boolean | undefined
}

export type Operation = {
  /** Method and path of the specification: `GET /pets/{id}`. */
  key: string
  id: string
  method: Method
  /** The path without the names of its parameters: `/pets/{}`. */
  template: string
  /** Path of the route. */
  path: string
  /** Undefined where it is the path of the route. */
  upstreamPath: string | undefined
  /** Another server than that of the specification. */
  upstream: string | undefined
  summary: string
  description: string
  params: readonly Param[]
  fixedQuery: Readonly<Record<string, string>>
  body: Table | undefined
  bodyRequired: boolean
  answer: Table | undefined
  /** For the person who reads the file. */
  notes: readonly string[]
}

/** An operation that no route can have, and why. */
export type LeftOut = { key: string; reason: string }

/** A header or parameter that the upstream wants, and what gives its value. */
export type Secret = { in: string; name: string; value: string; hint: string }

export type Listing = {
  title: string
  description: string
  /** The first way to authenticate, and the others as comments. */
  secrets: readonly Secret[]
  otherSchemes: readonly string[]
  operations: readonly Operation[]
  leftOut: readonly LeftOut[]
  /** Headers that operations need and buyers cannot send. */
  headers: readonly { name: string; value: string }[]
}

const names = ['get', 'put', 'post', 'delete', 'options', 'head', 'patch', 'trace', 'query']

type Found = { key: string; verb: string; path: string; item: Table; operation: Table }

/**
 * All operations of a document, in its order. `prefix` is in the names of variables. `upstream`: the
 * URL whose key the operator will give; without it no key is given.
 */
export function list({ root }: Document, prefix: string, upstream?: string): Listing {
  const info = isTable(root.info) ? root.info : {}
  const schemes = schemesOf(root, prefix)
  const listing = { operations: [] as Operation[], leftOut: [] as LeftOut[] }
  const headers = new Map<string, string>()
  const found = foundIn(root)
  if (found.length > operationsMax)
    throw new CommandError(`the specification has over ${operationsMax} operations: split it`)
  const paths = pathsOf(found)
  const keyed = schemes.secrets.length > 0 ? URL.parse(upstream ?? '')?.origin : undefined
  for (const each of found) {
    try {
      listing.operations.push(
        read(root, each, { path: paths.get(each) ?? '', schemes, headers, keyed }),
      )
    } catch (error) {
      if (!(error instanceof LeftOutError)) throw error
      listing.leftOut.push({ key: each.key, reason: error.message })
    }
  }
  return {
    ...listing,
    title: brief(textOf(info.title), 80),
    description: brief(textOf(info.description), 300),
    secrets: schemes.secrets,
    otherSchemes: schemes.others,
    headers: [...headers].map(([name, value]) => ({ name, value })),
  }
}

/** A file with more takes seconds to read at each start. */
const operationsMax = 5000

class LeftOutError extends Error {
  override readonly name = 'LeftOutError'
}

function foundIn(root: Table): Found[] {
  const paths = isTable(root.paths) ? root.paths : {}
  return Object.entries(paths).flatMap(([path, value]) => {
    const item = follow(root, value)
    if (item === undefined || !path.startsWith('/')) return []
    return Object.entries(item).flatMap(([verb, operation]) => {
      if (!names.includes(verb.toLowerCase()) || !isTable(operation)) return []
      const key = brief(`${verb.toUpperCase()} ${path}`, 200)
      // A fragment tells operations of one path apart, and is never sent.
      return [{ key, verb: verb.toUpperCase(), path: path.split('#')[0] ?? '', item, operation }]
    })
  })
}

/** URL of the first server, with the defaults of its variables. */
export function serverOf({ servers }: Table): string | undefined {
  const [first] = Array.isArray(servers) ? servers : []
  if (!isTable(first) || typeof first.url !== 'string') return undefined
  const variables = isTable(first.variables) ? first.variables : {}
  return first.url.replace(/\{([^{}]+)\}/g, (whole, name: string) => {
    const variable = variables[name]
    return isTable(variable) ? String(variable.default ?? whole) : whole
  })
}

type Schemes = { secrets: readonly Secret[]; others: readonly string[] }

/** How the upstream knows its clients: by the first requirement of the document. */
function schemesOf(root: Table, prefix: string): Schemes {
  const components = isTable(root.components) ? root.components : {}
  const table = isTable(components.securitySchemes) ? components.securitySchemes : {}
  const all = [root, ...foundIn(root).map(({ operation }) => operation)]
  const requirements = all.flatMap(({ security }) => (Array.isArray(security) ? security : []))
  const [first] = requirements.filter((each) => isTable(each) && Object.keys(each).length > 0)
  const wanted = isTable(first) ? Object.keys(first) : []
  const secretOf = (name: string): Secret[] => {
    const scheme = follow(root, table[name])
    // A stranger chose both names: without the first word they could be RELAYER and KEYS.
    const variable = `upstream_${prefix}_${name}`.toUpperCase().replace(/[^A-Z0-9]+/g, '_')
    const value = `\${${variable}}`
    return scheme === undefined ? [] : secretsOf(scheme, value)
  }
  const others = Object.keys(table).filter((name) => !wanted.includes(name))
  return {
    secrets: wanted.flatMap(secretOf),
    others: others
      .flatMap(secretOf)
      .map(({ in: place, name, value }) =>
        place === 'query' ? `fixed_query = { ${name} = "${value}" }` : `${name} = "${value}"`,
      ),
  }
}

function secretsOf({ type, name, in: place, scheme }: Table, value: string): Secret[] {
  const header = (text: string, hint: string) => [
    { in: 'header', name: 'Authorization', value: text, hint },
  ]
  if (type === 'apiKey' && typeof name === 'string') {
    if (place === 'cookie' && !/^[\w.-]+$/.test(name)) return []
    if (place === 'cookie')
      return [{ in: 'header', name: 'Cookie', value: `${name}=${value}`, hint: 'a cookie' }]
    return [{ in: String(place), name, value, hint: 'a key of the upstream' }]
  }
  if (type === 'http' && String(scheme).toLowerCase() === 'basic')
    return header(`Basic ${value}`, 'base64 of user:password')
  if (type === 'http') return header(`Bearer ${value}`, 'a token of the upstream')
  if (type === 'oauth2' || type === 'openIdConnect')
    return header(`Bearer ${value}`, 'an access token: renew it before it ends')
  return []
}

type Around = {
  path: string
  schemes: Schemes
  headers: Map<string, string>
  /** The only origin that may get the secrets; undefined where there are none. */
  keyed: string | undefined
}

function read(root: Table, found: Found, { path, schemes, headers, keyed }: Around): Operation {
  const { key, verb, item, operation } = found
  const method = methods.find((name) => name === verb)
  if (verb === 'HEAD') throw new LeftOutError('HEAD comes with GET')
  if (method === undefined) throw new LeftOutError(`${verb} is never sold`)
  if (found.path.includes('?')) throw new LeftOutError('its path has a query')
  const notes: string[] = []
  const note = (text: string) => void notes.push(text)
  if (operation.deprecated === true) note('deprecated')
  const described = parametersOf(root, found)
  const place = placeOf(root, found.path, { described, note })
  const query = described.filter((each) => each.in === 'query')
  const secret = schemes.secrets.filter((each) => each.in === 'query')
  const own = query.filter(({ name }) => !secret.some((each) => each.name === name))
  for (const header of described.filter((each) => each.in === 'header' && each.required === true))
    wantHeader(root, header, headers)
  const isSold = place.upstreamPath !== path
  const { body, bodyRequired } = bodyOf(root, operation, { method, note })
  return {
    key,
    id: textOf(operation.operationId),
    method,
    template: found.path.replace(/\{[^{}]*\}/g, '{}'),
    path,
    upstreamPath: isSold ? place.upstreamPath : undefined,
    upstream: ownServer(operation, keyed) ?? ownServer(item, keyed),
    summary: brief(textOf(operation.summary ?? item.summary), 120) || key,
    description: brief(textOf(operation.description ?? item.description), 500),
    params: [...place.params, ...own.map((each) => paramOf(root, each, note))],
    fixedQuery: Object.fromEntries(secret.map(({ name, value }) => [name, value])),
    body,
    bodyRequired,
    answer: answerOf(root, operation),
    notes: [...new Set(notes)],
  }
}

function ownServer(at: Table, keyed: string | undefined): string | undefined {
  const text = serverOf(at)
  const url = text === undefined ? null : URL.parse(text)
  if (text === undefined || url === null) return undefined
  // A file from a stranger must not lead to the operator's own network.
  if (url.protocol !== 'https:' || isPrivate(url))
    throw new LeftOutError(`its own server ${brief(text, 80)} is not https and public`)
  // The author of the file need not be the owner of the API.
  if (keyed !== undefined && url.origin !== keyed)
    throw new LeftOutError(`its own server ${brief(text, 80)} would get the key of the upstream`)
  return url.href
}

function parametersOf(root: Table, { item, operation }: Found): Table[] {
  const known = new Map<string, Table>()
  for (const value of [item.parameters, operation.parameters].flat()) {
    if (value === undefined) continue
    const param = follow(root, value)
    if (param === undefined || typeof param.name !== 'string' || param.name.trim() === '') continue
    known.set(`${String(param.in)} ${param.name}`, param)
  }
  return [...known.values()]
}

/**
 * Where an operation is at the upstream. What comes before the first parameter and after the last
 * one is in the path, and the segments between them are the tail.
 */
function placeOf(
  root: Table,
  path: string,
  { described, note }: { described: readonly Table[]; note: (text: string) => void },
): { upstreamPath: string; params: Param[] } {
  const segments = path.slice(1).split('/')
  const isParam = (segment: string) => /\{[^{}]+\}/.test(segment)
  const first = segments.findIndex(isParam)
  const last = segments.findLastIndex(isParam)
  if (first === -1) return { upstreamPath: literal(path), params: [] }
  const before = segments.slice(0, first).map((each) => `/${literal(each)}`)
  const after = segments.slice(last + 1).map((each) => `/${literal(each)}`)
  const taken = new Set<string>()
  const params = segments.slice(first, last + 1).map((segment): Param => {
    if (!isParam(segment)) {
      const name = unique(segment, taken)
      const fixed = { description: 'This word.', schema: { const: segment }, example: undefined }
      return { name, in: 'tail', required: true, ...fixed }
    }
    const [, prefix = '', inner, suffix = ''] =
      /^([^{}]*)\{[+/.]?([^{}]+?)\*?\}([^{}]*)$/.exec(segment) ?? []
    // Of several parameters in one segment a file describes the whole.
    const name = inner ?? segment.replace(/[{}]/g, '')
    const own = described.find((each) => each.in === 'path' && each.name === name)
    const param = paramOf(root, own ?? { name, in: 'path' }, note)
    // The parameter with this name takes all further segments.
    const free = unique(name === 'tail' ? 'tail_value' : name, taken)
    const framed = prefix === '' && suffix === '' ? free : `${prefix}{${free}}${suffix}`
    return { ...param, name: framed, in: 'tail', required: true }
  })
  return { upstreamPath: `${before.join('')}/{tail}${after.join('')}`, params }
}

/** A path as a file has it: characters that it may not have are encoded. */
function literal(path: string): string {
  return path.toWellFormed().replace(/[^A-Za-z0-9._~!$&'()*+,;=:@/%-]/gu, encodeURIComponent)
}

function paramOf(root: Table, param: Table, note: (text: string) => void): Param {
  const [media] = isTable(param.content) ? Object.values(param.content) : []
  const schema = Schema.simplify(root, param.schema ?? param, note)
  const name = String(param.name)
  // A value of a media type is JSON text.
  const own = media === undefined ? Schema.ofParameter(schema, param.explode !== false) : {}
  const isObject = media === undefined && Object.keys(own).length < Object.keys(schema).length
  const examples = isTable(param.examples) ? Object.values(param.examples).map(exampleValue) : []
  const known = Array.isArray(schema.examples) ? schema.examples : []
  const candidates = [param.example, ...examples, ...known, schema.default].map((each) =>
    Array.isArray(each) && each.every(isScalar) ? each.join() : each,
  )
  const isExample = (value: unknown) =>
    isScalar(value) && value !== '' && (own.type === 'array' || Schema.fits(own, value))
  return {
    name,
    in: 'query',
    // The names of the members of an object differ from the name of the parameter.
    required: param.required === true && !(isObject && own.type === undefined),
    description: brief(textOf(param.description ?? schema.description), 200),
    schema: own,
    example: candidates.find((value): value is string | number | boolean => isExample(value)),
  }
}

function exampleValue(example: unknown): unknown {
  return isTable(example) ? example.value : undefined
}

function wantHeader(root: Table, header: Table, headers: Map<string, string>): void {
  const name = String(header.name)
  const isBuyers = /^(accept|accept-language|content-language|content-type|authorization)$/i
  if (isBuyers.test(name) || Headers.requestNameFault(name) !== undefined) return
  const { default: usual, enum: values } = Schema.simplify(root, header.schema, () => undefined)
  const [first] = Array.isArray(values) ? values : []
  headers.set(name, String(usual ?? first ?? header.example ?? '...'))
}

const json = /^(application\/(.+\+)?json\b|\*\/\*)/i

function bodyOf(
  root: Table,
  { requestBody }: Table,
  { method, note }: { method: Method; note: (text: string) => void },
): Pick<Operation, 'body' | 'bodyRequired'> {
  const request = follow(root, requestBody)
  if (request === undefined) return { body: undefined, bodyRequired: false }
  if (!withBody.includes(method)) {
    note(`left out: the body, which ${method} has not`)
    return { body: undefined, bodyRequired: false }
  }
  const content = isTable(request.content) ? request.content : {}
  const kinds = Object.keys(content)
  const kind = kinds.find((each) => json.test(each))
  const media = kind === undefined ? undefined : content[kind]
  const bodyRequired = request.required === true
  if (!isTable(media)) {
    if (kinds.length > 0) note(`its body is ${brief(kinds.join(' or '), 80)}, not checked`)
    return { body: undefined, bodyRequired }
  }
  const { examples: _, ...body } = Schema.simplify(root, media.schema, note)
  const [example] = examplesOf(root, media)
  const isShown = example !== undefined && Schema.fits(body, example)
  return { body: isShown ? { ...body, examples: [example] } : body, bodyRequired }
}

function examplesOf(root: Table, { example, examples, schema }: Table): unknown[] {
  const named = isTable(examples) ? Object.values(examples).map((each) => follow(root, each)) : []
  const all = [example, ...named.map(exampleValue), Schema.sample(root, schema)].map(Schema.shorten)
  return all.filter((each) => each !== undefined && each !== null)
}

function answerOf(root: Table, { responses }: Table): Table | undefined {
  const all = isTable(responses) ? responses : {}
  const status = [
    '200',
    '201',
    '2XX',
    ...Object.keys(all).filter((key) => /^2/.test(key)),
    'default',
  ]
  const response = follow(root, all[status.find((key) => all[key] !== undefined) ?? ''])
  const content = isTable(response?.content) ? response.content : {}
  const kind = Object.keys(content).find((each) => json.test(each))
  const media = kind === undefined ? undefined : content[kind]
  if (!isTable(media)) return undefined
  const [example] = examplesOf(root, media)
  // Without a type it is an object.
  if (example === undefined)
    return follow(root, media.schema)?.type === 'array' ? { type: 'array' } : undefined
  return { type: Array.isArray(example) ? 'array' : typeof example, examples: [example] }
}

/**
 * The paths of the routes. Of the operations without parameters the first of a path keeps its path,
 * so that clients of the upstream need another base URL only. A path has one route, so the others
 * are named by their ids.
 */
function pathsOf(found: readonly Found[]): Map<Found, string> {
  const taken = new Set(['/openapi.json'])
  const result = new Map<Found, string>()
  const first = (each: Found) => (methods as readonly string[]).indexOf(each.verb)
  const sold = found.filter((each) => first(each) !== -1)
  for (const each of sold.toSorted((a, b) => first(a) - first(b))) {
    const isPlain = /^(\/[\w.~-]+)+\/?$|^\/$/.test(each.path) && !/\/\.{1,2}(\/|$)/.test(each.path)
    const path = each.path.length > 1 ? each.path.replace(/\/$/, '') : each.path
    if (!isPlain || taken.has(path)) continue
    taken.add(path)
    result.set(each, path)
  }
  for (const each of sold) {
    if (result.has(each)) continue
    const { verb, path, operation } = each
    const id = textOf(operation.operationId) || `${verb.toLowerCase()}${path}`
    const word = id
      .replace(/[^A-Za-z0-9_~-]+/g, '-')
      .replace(/^-+|-+$/g, '')
      .slice(0, 80)
    result.set(each, unique(`/${word || 'operation'}`, taken))
  }
  return result
}
