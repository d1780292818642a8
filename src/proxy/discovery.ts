import type { Address } from 'viem'
import type { Config, Merchant, Method, NetworkConfig, Route } from '../config/Config'
import * as Amount from '../protocol/Amount'
import * as Permit from '../protocol/Permit'
import { isServed } from './builtin/serve'
import { type Segment, segmentsOf, templateOf } from './Tail'

type Json = Record<string, unknown>

export type DiscoveryOptions = {
  /** Signer of our receipts. */
  receiptAddress: Address
}

type Context = { merchant: Merchant; route: Route; networks: readonly NetworkConfig[] }
type Form = { path: string; suffix: string; segments: readonly Segment[] }
type PaymentInfo = (context: Context) => Json

/**
 * OpenAPI 3.1 document of all merchants that can be bought from (specification 2.1). The payment
 * information is flat and names the discovery network, or the first one of a merchant without it.
 */
export function aggregate(config: Config, options: DiscoveryOptions): Json {
  const merchants = sold(config)
  const { title, baseUrl, guidance, contact, discoveryNetwork } = config.service
  const flat: PaymentInfo = (context) => {
    const { networks, merchant, route } = context
    const network = networks.find(({ id }) => id === discoveryNetwork) ?? networks[0]
    return {
      ...priceOf(context, network === undefined ? [] : [network]),
      ...(network === undefined ? {} : offerOf(merchant, route, network)),
    }
  }
  return {
    openapi: '3.1.0',
    info: infoOf({ title, description: guidance, guidance, contact }),
    servers: [{ url: baseUrl }],
    tags: [...new Set(merchants.map(({ tag }) => tag))].map((name) => ({ name })),
    paths: Object.assign(
      {},
      ...merchants.map((merchant) => pathsOf(config, merchant, `/m/${merchant.slug}`, flat)),
    ),
    'x-service-info': serviceInfo(config, merchants, options),
  }
}

/** OpenAPI 3.1 document of one merchant, whose operations list an offer for every network. */
export function merchant(config: Config, merchant: Merchant, options: DiscoveryOptions): Json {
  const { baseUrl, guidance, contact } = config.service
  const { title, description, tag, slug } = merchant
  const listed: PaymentInfo = (context) => ({
    ...priceOf(context, context.networks),
    offers: context.networks.map((network) => offerOf(context.merchant, context.route, network)),
  })
  return {
    openapi: '3.1.0',
    info: infoOf({ title, description, guidance, contact }),
    servers: [{ url: `${baseUrl}/m/${slug}` }],
    tags: [{ name: tag }],
    paths: pathsOf(config, merchant, '', listed),
    'x-service-info': serviceInfo(config, [merchant], options),
  }
}

/** The list of paid resources that x402 indexers look for at `/.well-known/x402`. */
export function wellKnown(config: Config, options: DiscoveryOptions): Json {
  const { baseUrl, guidance } = config.service
  const resources = sold(config).flatMap(({ slug, routes }) =>
    routes.map(({ path }) => `${baseUrl}/m/${slug}${path}`),
  )
  return { version: 1, resources, instructions: guidance, receiptSigner: options.receiptAddress }
}

/** What is listed can be sold: merchants without their secrets or their maker answer 503. */
function sold(config: Config): Merchant[] {
  return config.merchants.filter(
    ({ outOfService, builtin }) =>
      outOfService === undefined && (builtin === undefined || isServed(builtin)),
  )
}

function infoOf(info: {
  title: string
  description: string
  guidance: string
  contact: string
}): Json {
  const { title, description, guidance, contact } = info
  return {
    title,
    version: '1.0.0',
    description,
    contact: { email: contact },
    'x-guidance': guidance,
  }
}

function serviceInfo(
  config: Config,
  merchants: readonly Merchant[],
  options: DiscoveryOptions,
): Json {
  const { baseUrl } = config.service
  const categories = merchants.map(({ tag }) => tag.toLowerCase().replace(/[^a-z0-9]+/g, '-'))
  return {
    categories: [...new Set(categories)],
    docs: { homepage: baseUrl, apiReference: `${baseUrl}/openapi.json` },
    receiptSigner: options.receiptAddress,
  }
}

function pathsOf(config: Config, merchant: Merchant, prefix: string, info: PaymentInfo): Json {
  const paths: Json = {}
  const ids = new Set<string>()
  const networks = config.networks.filter(({ id }) => merchant.networks.includes(id))
  for (const route of merchant.routes) {
    const context = { merchant, route, networks }
    for (const form of formsOf(route)) {
      const operations = route.methods.map((method, index) => {
        const parts = [merchant.slug, ...route.path.split('/'), form.suffix]
        const base = parts.filter((part) => part !== '').join('-')
        const id = unique(index === 0 ? base : `${base}-${method.toLowerCase()}`, ids)
        return [method.toLowerCase(), operationOf(id, method, form, context, info)]
      })
      paths[`${prefix}${route.path}${form.path}`] = Object.fromEntries(operations)
    }
  }
  return paths
}

function unique(id: string, taken: Set<string>): string {
  let result = id
  for (let count = 2; taken.has(result); count++) result = `${id}-${count}`
  taken.add(result)
  return result
}

function operationOf(
  operationId: string,
  method: Method,
  form: Form,
  context: Context,
  info: PaymentInfo,
): Json {
  const { merchant, route } = context
  const takesBody = method === 'POST' || method === 'PUT' || method === 'PATCH'
  return {
    operationId,
    summary: route.summary,
    description: route.description,
    tags: [merchant.tag],
    parameters: parametersOf(route, form),
    ...(takesBody ? { requestBody: requestBodyOf(route) } : {}),
    responses: {
      200: {
        description: 'The answer of the upstream, passed through verbatim.',
        content: { 'application/json': { schema: { type: 'object', additionalProperties: true } } },
      },
      402: { description: 'Payment Required' },
    },
    'x-payment-info': info(context),
  }
}

function parametersOf(route: Route, form: Form): Json[] {
  const inPath = form.segments
    .filter(({ isLiteral }) => !isLiteral)
    .map(({ name, param }) => ({ ...parameterOf(param, name), in: 'path', required: true }))
  const inQuery = route.params
    .filter((param) => param.in === 'query')
    .map((param) => ({ ...parameterOf(param, param.name), in: 'query', required: param.required }))
  return [...inPath, ...inQuery]
}

function parameterOf(param: Route['params'][number], name: string): Json {
  const { description, schema, example } = param
  return {
    name,
    ...(description === '' ? {} : { description }),
    schema,
    ...(example === undefined ? {} : { example }),
  }
}

function requestBodyOf(route: Route): Json {
  const schema = route.body ?? { type: 'object', additionalProperties: true }
  return { required: false, content: { 'application/json': { schema } } }
}

/**
 * The paths under which a route is called: without a tail unless it must have one, then one for every
 * place where the described tail may end. An optional last segment with a list of values is one path
 * per value, a sub-resource.
 */
function formsOf(route: Route): Form[] {
  const described = segmentsOf(route)
  const segments = described.length > 0 || route.tail !== 'required' ? described : [anyTail]
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

/** Price and protocols, as payment indexers read them beside either form of offers. */
function priceOf({ route }: Context, networks: readonly NetworkConfig[]): Json {
  return {
    price: { mode: 'fixed', currency: 'USD', amount: Amount.toDecimal(route.priceAtomic, 6) },
    protocols: [
      ...networks.map(({ asset }) => ({
        mpp: { method: 'evm', intent: 'charge', currency: asset.address },
      })),
      { x402: {} },
    ],
  }
}

function offerOf(merchant: Merchant, route: Route, network: NetworkConfig): Json {
  const { asset } = network
  const isPermit2 = asset.transfer[0] === 'permit2'
  return {
    amount: route.priceAtomic.toString(),
    currency: asset.address,
    network: network.id,
    recipient: merchant.payout,
    scheme: 'exact',
    intent: 'charge',
    method: 'evm',
    extra: isPermit2
      ? { assetTransferMethod: 'permit2', spender: Permit.proxyAddress }
      : { assetTransferMethod: 'eip3009', ...asset.eip712 },
  }
}
