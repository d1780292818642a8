import type { Config, Merchant, Method, NetworkConfig, Param, Route } from '../../config/Config'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as Amount from '../../protocol/Amount'
import * as Catalogue from '../documents/Catalogue'
import { offersOf, priceJson, priceSentence } from '../documents/discovery'
import { segmentsOf } from '../Tail'
import { invalidParams, McpFault } from './answer'
import { entitlementsKey, passKey } from './Payment'

/** Routes as MCP tools: one tool per route, for all its methods and sub-paths. */

/** An argument of a tool, and the part of a request that it fills. */
type Slot = {
  fills: Param | 'rest' | 'others' | 'body'
  schema: Readonly<Record<string, unknown>>
  isRequired: boolean
}

export type Tool = {
  name: string
  merchant: Merchant
  route: Route
  networks: readonly NetworkConfig[]
  /** By the name of the argument. */
  slots: ReadonlyMap<string, Slot>
}

/** The HTTP request of a call. `path` is absolute, with the query. */
export type Call = { method: Method; path: string; body: string | undefined }

/** Arguments from which no request can be made. The message names the argument. */
export class ArgumentError extends Error {
  override readonly name = 'ArgumentError'
}

/** Clients refuse longer names, or other characters, in tools and in the members of their input. */
const nameMax = 64
const notInNames = /[^A-Za-z0-9_-]+/g

/** Tools of everything that can be sold, by name, in the order of the file. */
function compile(config: Config): ReadonlyMap<string, Tool> {
  const tools = new Map<string, Tool>()
  const taken = new Set<string>()
  for (const { merchant, networks } of Catalogue.offered(config))
    for (const route of merchant.routes) {
      const id = Catalogue.operationId(merchant, route).replace(notInNames, '-')
      const name = Catalogue.unique(id.slice(0, nameMax - 6), taken)
      tools.set(name, { name, merchant, route, networks, slots: slotsOf(merchant, route) })
    }
  return tools
}

function slotsOf(merchant: Merchant, route: Route): Map<string, Slot> {
  const slots = new Map<string, Slot>()
  const taken = new Set<string>()
  const add = (name: string, fills: Slot['fills'], isRequired: boolean, schema: Slot['schema']) => {
    const plain = name.replace(notInNames, '_').replace(/^_+|_+$/g, '') || 'value'
    const argument = Catalogue.unique(plain.slice(0, nameMax - 6), taken)
    slots.set(argument, { fills, isRequired, schema })
  }
  // Parameters of an optional tail describe the tail when it is present.
  const needsTail = route.tail === 'required'
  const segments = segmentsOf(route)
  for (const { name, param, isLiteral } of segments)
    if (!isLiteral) add(name, param, param.required && needsTail, described(param))
  if (segments.length === 0 && route.tail !== 'none') {
    const description = 'Further path segments, separated by slashes.'
    add('tail', 'rest', needsTail, { type: 'string', description })
  }
  for (const param of route.params)
    if (param.in === 'query') add(param.name, param, param.required, described(param))
  const { method, withBody } = methodsOf(route)
  if (withBody !== undefined) {
    const description =
      method === undefined ? 'JSON body.' : 'JSON body; with it the request is a POST.'
    const needsBody = route.bodyRequired || Array.isArray(route.body?.required)
    const schema = { description, ...Catalogue.bodySchema(route) }
    add('body', 'body', method === undefined && needsBody, schema)
  }
  add('params', 'others', false, {
    type: 'object',
    description: Catalogue.othersOf(merchant, route),
    additionalProperties: { type: ['string', 'number', 'boolean'] },
  })
  return slots
}

/**
 * The tool in the form of `tools/list`, with the networks that can settle, and those on which a
 * call may be paid by what it uses.
 */
function describe(tool: Tool, good: Catalogue.Good) {
  const { name, merchant, route } = tool
  const { networks } = good
  const { entitlements, pass } = good.more
  const properties = [...tool.slots].map(([argument, { schema }]) => [argument, schema])
  const required = [...tool.slots].flatMap(([key, { isRequired }]) => (isRequired ? [key] : []))
  const coins = networks.map((network) => `${network.asset.symbol} on ${network.name}`)
  const kinds = coins.join(' or ')
  const unit = Entitlements.unitOf(merchant, route) ?? 'per call'
  const http = Entitlements.overHttp(tool, networks)
  const cost =
    route.meter === undefined
      ? `Costs ${Amount.toDecimal(route.priceAtomic, 6)} USD ${unit}, paid in ${kinds}. ${priceSentence(good)}`.trim()
      : `${priceSentence(good)} Paid in ${kinds}.`
  return {
    name,
    title: `${merchant.title}: ${route.summary}`,
    description: [route.description || route.summary, ...answersOf(route), cost, http]
      .filter(Boolean)
      .join(' '),
    inputSchema: {
      type: 'object' as const,
      properties: Object.fromEntries(properties),
      ...(required.length === 0 ? {} : { required }),
      additionalProperties: false,
    },
    // A call moves money, so clients should ask the user before it.
    annotations: {
      title: route.summary,
      readOnlyHint: false,
      destructiveHint: false,
      idempotentHint: false,
      openWorldHint: true,
    },
    _meta: {
      'turnpike/x-payment-info': {
        price: priceJson(good),
        offers: offersOf(good),
      },
      ...(entitlements && { [entitlementsKey]: entitlements }),
      ...(pass && { [passKey]: pass }),
    },
  }
}

/** Describes an answer that is not an object, because tools can declare only object outputs. */
function answersOf({ answer }: Route): string[] {
  const types = [answer?.type].flat().filter((type) => type !== undefined)
  return types.length === 0 ? [] : [`Answers with a JSON ${types.join(' or ')}.`]
}

function described({ description, schema, example }: Param): Record<string, unknown> {
  return {
    ...schema,
    ...(description === '' ? {} : { description }),
    ...(example === undefined ? {} : { examples: [example] }),
  }
}

function methodsOf(route: Route) {
  return {
    method: route.methods.find((method) => !Catalogue.takesBody(method)),
    withBody: route.methods.find(Catalogue.takesBody),
  }
}

export type Tools = ReturnType<typeof createTools>

const pageSize = 100

/** The tools of a configuration, one for each route. They are compiled at the first request. */
export function createTools(
  config: Config,
  isReady: Catalogue.IsReady,
  schemes?: Catalogue.Schemes,
) {
  let tools: ReadonlyMap<string, Tool> | undefined
  const compiled = () => {
    tools ??= compile(config)
    return tools
  }
  let names: ReadonlyMap<Route, string> | undefined
  return {
    find: (name: string) => compiled().get(name),
    /** The name of a route's tool; undefined for a route that cannot be bought. */
    nameOf(route: Route): string | undefined {
      names ??= new Map([...compiled().values()].map((tool) => [tool.route, tool.name]))
      return names.get(route)
    },
    /** A page of the tools that can be bought now. Throws McpFault for a foreign cursor. */
    list(cursor: string | undefined) {
      const offset = cursor === undefined ? 0 : Number(/^\d{1,9}$/.exec(cursor)?.[0] ?? Number.NaN)
      if (Number.isNaN(offset))
        throw new McpFault(invalidParams, 'The cursor is not one of this service.')
      // A client lists tools once a session: an outage must not leave it without tools.
      const ids = config.networks.map(({ id }) => id)
      const isListed = Catalogue.readyOrAll(ids, isReady)
      const offered = [...compiled().values()].flatMap((tool) => {
        const networks = tool.networks.filter(({ id }) => isListed(id))
        return networks.length === 0 ? [] : [{ tool, networks }]
      })
      const next = offset + pageSize
      return {
        tools: offered.slice(offset, next).map(({ tool, networks }) => {
          const listing = { merchant: tool.merchant, networks }
          return describe(tool, Catalogue.goodOf(config, listing, tool.route, schemes))
        }),
        ...(next < offered.length ? { nextCursor: String(next) } : {}),
      }
    },
  }
}

/** The request for the arguments. Throws an ArgumentError. The gateway checks the schemas. */
export function toCall(tool: Tool, args: Readonly<Record<string, unknown>>): Call {
  const { merchant, route, slots } = tool
  for (const name of Object.keys(args))
    if (!slots.has(name)) throw new ArgumentError(`There is no argument ${clip(name)}.`)
  const query: string[] = []
  const given = new Map<Param, unknown>()
  let rest = ''
  let body: string | undefined
  for (const [name, { fills }] of slots) {
    const value = args[name]
    if (value === undefined || value === null) continue
    if (fills === 'rest') rest = restOf(name, value)
    else if (fills === 'others') query.push(...others(name, value))
    else if (fills === 'body') body = JSON.stringify(value)
    else if (fills.in === 'query') query.push(pair(fills.name, textOf(name, value)))
    else given.set(fills, value)
  }
  const { method, withBody } = methodsOf(route)
  const chosen = body === undefined ? (method ?? withBody) : withBody
  const path = `/m/${merchant.slug}${route.path}${tailOf(route, given)}${rest}`
  const search = query.length === 0 ? '' : `?${query.join('&')}`
  return { method: chosen ?? 'GET', path: path + search, body }
}

/** The described segments up to the last one that is given. */
function tailOf(route: Route, given: ReadonlyMap<Param, unknown>): string {
  const segments = segmentsOf(route)
  const lastGiven = segments.findLastIndex(({ param }) => given.has(param))
  if (lastGiven === -1 && route.tail !== 'required') return ''
  // Literals belong to the segments around them.
  const lastRequired = segments.findLastIndex(({ param }) => param.required)
  let tail = ''
  for (const segment of segments.slice(0, Math.max(lastGiven, lastRequired) + 1)) {
    const { name, prefix, suffix, isLiteral, isRest, param } = segment
    const value = given.get(param)
    if (isLiteral) tail += `/${encode(name, name)}`
    else if (value === undefined) throw new ArgumentError(`The argument ${name} is missing.`)
    else if (isRest) tail += restOf(name, value)
    else tail += `/${prefix}${encode(name, textOf(name, value))}${suffix}`
  }
  return tail
}

function restOf(name: string, value: unknown): string {
  const text = textOf(name, value).replace(/^\/+/, '')
  return text === ''
    ? ''
    : `/${text
        .split('/')
        .map((part) => encode(name, part))
        .join('/')}`
}

function others(name: string, value: unknown): string[] {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new ArgumentError(`The argument ${name} must be an object.`)
  return Object.entries(value).flatMap(([key, entry]) =>
    // A name may be repeated.
    [entry].flat().map((one) => pair(key, textOf(`${name}.${key}`, one))),
  )
}

function textOf(name: string, value: unknown): string {
  if (typeof value === 'string') return value
  if (typeof value === 'number' || typeof value === 'boolean') return String(value)
  // Comma lists, as in a query.
  if (Array.isArray(value)) return value.map((entry) => textOf(name, entry)).join(',')
  throw new ArgumentError(`The argument ${clip(name)} must be a string, a number or a boolean.`)
}

function pair(name: string, value: string): string {
  return `${percentEncode(name, name)}=${percentEncode(name, value)}`
}

/** One path segment: a value cannot leave its segment. */
function encode(name: string, value: string): string {
  if (value === '' || value === '.' || value === '..')
    throw new ArgumentError(`The argument ${name} cannot be part of a path.`)
  return percentEncode(name, value)
}

function percentEncode(name: string, value: string): string {
  try {
    return encodeURIComponent(value)
  } catch {
    throw new ArgumentError(`The argument ${clip(name)} is not valid Unicode.`)
  }
}

function clip(name: string): string {
  return JSON.stringify(name.slice(0, nameMax))
}
