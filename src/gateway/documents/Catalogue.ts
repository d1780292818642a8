import type { Address } from 'viem'
import type { Config, Merchant, Method, NetworkConfig, Param, Route } from '../../config/Config'
import { withBody } from '../../config/keys'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as ByChannel from '../../paywall/offer/ByChannel'
import * as ByUse from '../../paywall/usage/ByUse'
import * as Json from '../../protocol/Json'
import type * as Network from '../../protocol/Network'
import * as X402 from '../../protocol/X402'
import { type Segment, segmentsOf, templateOf } from '../Tail'

/** What the documents for machines list. */

type Schema = Readonly<Record<string, unknown>>

export type IsReady = (network: Network.Id) => boolean

/** Relayers that may settle a ceiling on a network by the scheme `upto` now. */
export type Facilitators = (network: Network.Id, ceilingAtomic: bigint) => readonly Address[]

/** How the networks can be paid by other schemes than `exact` now; none by default. */
export type Schemes = { facilitators?: Facilitators; channelOf?: X402.ChannelOf }

/** A merchant that buyers can buy from, with its networks that can settle. */
export type Listing = { merchant: Merchant; networks: readonly NetworkConfig[] }

/** Merchants in service and their networks that can settle. A 402 offers no others either. */
export function offered(config: Config, isReady: IsReady = () => true): Listing[] {
  return config.merchants.flatMap((merchant) => {
    if (merchant.outOfService !== undefined) return []
    const networks = networksOf(config, merchant).filter(({ id }) => isReady(id))
    return networks.length === 0 ? [] : [{ merchant, networks }]
  })
}

/**
 * While none of the networks can settle, all are listed: the prices remain valid, and a buyer that
 * tries to pay is asked to try again later.
 */
export function readyOrAll(networks: readonly Network.Id[], isReady: IsReady): IsReady {
  return (id) => isReady(id) || !networks.some(isReady)
}

/**
 * A route as it is sold now, with networks on which it may be paid by the use of its answer or by a
 * channel, its x402 offers, and `x-entitlements` and `x-pass` of it.
 */
export type Good = Listing & {
  route: Route
  byUse: readonly NetworkConfig[]
  byChannel: readonly NetworkConfig[]
  accepts: readonly X402.Requirements[]
  more: Entitled
}
type Entitled = ReturnType<typeof Entitlements.toJson>

export function goodOf(
  { service }: Pick<Config, 'service'>,
  listing: Listing,
  route: Route,
  { facilitators = () => [], channelOf = () => undefined }: Schemes = {},
): Good {
  const { merchant, networks } = listing
  const isByUse = ByUse.isOffered(service, merchant, route)
  const hasChannels = ByChannel.takes(route, 'channel')
  const offers = networks.map((network) => {
    return { network, payTo: merchant.payout, amountAtomic: route.priceAtomic }
  })
  const accepts = X402.accepts(offers, {
    isExact: ByChannel.takes(route, 'exact'),
    facilitatorOf: ({ network: { id }, amountAtomic }) =>
      isByUse ? facilitators(id, amountAtomic)[0] : undefined,
    channelOf: (offer) => (hasChannels ? channelOf(offer) : undefined),
  })
  const of = (scheme: X402.Requirements['scheme']) =>
    networks.filter(({ id }) =>
      accepts.some((each) => each.scheme === scheme && each.network === id),
    )
  const sellable = networks.filter(({ id }) => accepts.some(({ network }) => network === id))
  return {
    merchant,
    networks: sellable.length === 0 ? networks : sellable,
    ...{ route, accepts, byUse: of('upto'), byChannel: of('batch-settlement') },
    more: Entitlements.toJson(service, listing, route),
  }
}

/** The networks of a merchant in the order of the file. */
export function networksOf(config: Config, merchant: Merchant): NetworkConfig[] {
  return config.networks.filter(({ id }) => merchant.networks.includes(id))
}

/** One path under which a route is called. */
export type Form = {
  /** Template below the route's path, '' without a tail. */
  path: string
  /** Suffix that makes ids of the route's paths distinct. */
  suffix: string
  segments: readonly Segment[]
}

/**
 * The paths under which a route is called: without a tail unless the tail is required, then one for
 * every place where the described tail may end. An optional last segment with a list of values
 * gives one path per value, a sub-resource.
 */
export function formsOf(route: Route): Form[] {
  const described = segmentsOf(route)
  const isAny = route.tail === 'required' || (route.tail === 'optional' && route.path === '')
  const segments = described.length > 0 || !isAny ? described : [anyTail]
  const required = segments.findLastIndex(({ param }) => param.required) + 1
  const forms: Form[] = route.tail === 'required' ? [] : [{ path: '', suffix: '', segments: [] }]
  for (let count = Math.max(1, required); count <= segments.length; count++) {
    const before = segments.slice(0, count - 1)
    const last = segments[count - 1]
    if (last === undefined) continue
    const path = before.map((segment) => `/${templateOf(segment)}`).join('')
    const values = last.param.required ? undefined : last.param.schema.enum
    if (Array.isArray(values)) {
      for (const value of values)
        forms.push({
          path: `${path}/${encodeURIComponent(`${value}`)}`,
          suffix: `${value}`,
          segments: before,
        })
      continue
    }
    const suffix = forms.length === 0 ? '' : last.name.replace(/[^A-Za-z0-9_-]+/g, '-')
    forms.push({ path: `${path}/${templateOf(last)}`, suffix, segments: [...before, last] })
  }
  return forms
}

const anyTail: Segment = {
  param: {
    name: 'tail',
    in: 'tail',
    required: true,
    description: 'Further path segments, forwarded to the upstream.',
    schema: { type: 'string' },
    example: undefined,
  },
  name: 'tail',
  prefix: '',
  suffix: '',
  isLiteral: false,
  isRest: true,
}

/** Absolute URL of a route that answers 402 to a request; a required tail is an example. */
export function exampleUrl(baseUrl: string, merchant: Merchant, route: Route): string {
  const tail = (formsOf(route)[0]?.segments ?? []).map((segment) => {
    if (segment.isLiteral) return `/${encodeURIComponent(segment.name)}`
    const value = exampleOf(segment.param)
    return `/${segment.prefix}${encodeURIComponent(`${value}`)}${segment.suffix}`
  })
  return `${baseUrl}/m/${merchant.slug}${route.path}${tail.join('')}`
}

/** URL of the stock desk's API, if it is configured. */
export function stockApi({ service, stock }: Config): { stock?: string } {
  return stock === undefined ? {} : { stock: `${service.stockBaseUrl}/api/stock` }
}

/** The declared example of a parameter, else one derived from its schema. */
export function exampleOf(param: Param): unknown {
  return param.example ?? exampleOfSchema(param.schema)
}

/**
 * An example of a route's JSON body. Members that are also parameters use the parameter's example.
 */
export function exampleBody(route: Route): unknown {
  if (route.body === undefined) return {}
  const known = route.params
    .filter((param) => param.in === 'query' && param.required)
    .map(({ name, example }) => [name, example])
  return exampleOfSchema(route.body, Object.fromEntries(known))
}

/** Deepest nesting that an example shows. */
const depthMax = 5

/**
 * A value that a JSON Schema describes: its own example if it has one, else the simplest value of
 * its type. `known` are values for members by name, which take precedence over the schema.
 */
export function exampleOfSchema(
  schema: Schema,
  known: Readonly<Record<string, unknown>> = {},
  depth = 0,
): unknown {
  const { examples, example, enum: values } = schema
  if (example !== undefined) return example
  if (Array.isArray(examples) && examples.length > 0) return examples[0]
  if (schema.const !== undefined) return schema.const
  if (schema.default !== undefined) return schema.default
  if (Array.isArray(values) && values.length > 0) return values[0]
  const [type] = [schema.type].flat()
  switch (type) {
    case 'number':
    case 'integer':
      return typeof schema.minimum === 'number' ? schema.minimum : 1
    case 'boolean':
      return true
    case 'array':
      return Json.isObject(schema.items) && depth < depthMax
        ? [exampleOfSchema(schema.items, {}, depth + 1)]
        : []
    case 'object':
      return depth < depthMax ? members(schema, known, depth + 1) : {}
    default:
      return 'string'
  }
}

/** Required members, and the other members whose value is known or in the schema. */
function members(schema: Schema, known: Readonly<Record<string, unknown>>, depth: number) {
  const properties = Json.isObject(schema.properties) ? schema.properties : {}
  const required = Array.isArray(schema.required) ? schema.required : []
  const result: Record<string, unknown> = {}
  for (const [name, member] of Object.entries(properties)) {
    if (!Json.isObject(member)) continue
    const isShown = 'example' in member || 'examples' in member
    if (Object.hasOwn(known, name) && known[name] !== undefined) result[name] = known[name]
    else if (isShown || required.includes(name) || hasRequired(member))
      result[name] = exampleOfSchema(member, {}, depth)
  }
  return result
}

/** Whether a schema has required members, so that an example of it is useful. */
function hasRequired(schema: Schema): boolean {
  const inner = Json.isObject(schema.items) ? schema.items : schema
  return Array.isArray(inner.required) && inner.required.length > 0
}

/** JSON Schema of a route's body. */
export function bodySchema(route: Route): Schema {
  return route.body ?? { type: 'object', additionalProperties: true }
}

/** JSON Schema of the answer of a route. */
export function answerSchema({ answer }: Route): Schema {
  return answer ?? { type: 'object', additionalProperties: true }
}

/** Describes how a route treats query parameters that it does not list. */
export function othersOf({ builtin }: Merchant, { fixedQuery, passOf }: Route): string {
  if (builtin !== undefined || passOf !== undefined)
    return 'Any other query parameters; they change nothing.'
  const isWhole = Object.keys(fixedQuery).length === 0
  return `Any other query parameters, forwarded verbatim${isWhole ? '.' : ', except those that the service sets itself.'}`
}

/** Whether requests of the method have a body. */
export function takesBody(method: Method): boolean {
  return withBody.includes(method)
}

/** The id of a route's operation: `{slug}-{route}`, then the suffix of its form. */
export function operationId(merchant: Merchant, route: Route, suffix = ''): string {
  const parts = [merchant.slug, ...route.path.split('/'), suffix]
  return parts.filter((part) => part !== '').join('-')
}

/** The id, or the id with the first number that makes it unique. Adds the result to `taken`. */
export function unique(id: string, taken: Set<string>): string {
  let result = id
  for (let count = 2; taken.has(result); count++) result = `${id}-${count}`
  taken.add(result)
  return result
}
