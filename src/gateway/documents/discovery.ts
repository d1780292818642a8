import type { Address } from 'viem'
import type { Config, Merchant, Method, NetworkConfig, Param, Route } from '../../config/Config'
import * as Price from '../../meter/Price'
import * as ByChannel from '../../paywall/offer/ByChannel'
import * as ByUse from '../../paywall/usage/ByUse'
import * as Permit from '../../protocol/Permit'
import * as Upto from '../../protocol/Upto'
import * as Catalogue from './Catalogue'

type Json = Record<string, unknown>

export type DiscoveryOptions = Catalogue.Schemes & {
  /** Signer of our receipts. */
  receiptAddress: Address
  /** Networks that can settle; all of them by default. */
  isReady?: Catalogue.IsReady
}

type PaymentInfo = (good: Catalogue.Good) => Json
type Operation = { id: string; method: Method; form: Catalogue.Form }

/** Registries accept at most five categories of one service. */
const categoriesMax = 5

/**
 * OpenAPI 3.1 document of all merchants that can be bought from (specification 2.1). The payment
 * information is flat. It names the discovery network, or the first network of a merchant without
 * it.
 */
export function aggregate(config: Config, options: DiscoveryOptions): Json {
  const listings = Catalogue.offered(config, options.isReady)
  const { title, baseUrl, guidance, discoveryNetwork } = config.service
  const flat: PaymentInfo = (good) => {
    const { networks } = good
    const network = networks.find(({ id }) => id === discoveryNetwork) ?? networks[0]
    const offer = offersOf(good).find((each) => each.network === network?.id)
    return { ...priceOf(good, network === undefined ? [] : [network]), ...offer }
  }
  const paths = listings.map((listing) =>
    pathsOf(goodsOf(config, listing, options), `/m/${listing.merchant.slug}`, flat),
  )
  const merchants = listings.map(({ merchant }) => merchant)
  const named = { title, description: guidance, url: baseUrl }
  return documentOf(config, options, { ...named, merchants, paths: Object.assign({}, ...paths) })
}

/** OpenAPI 3.1 document of one merchant, whose operations list an offer for every network. */
export function merchant(config: Config, merchant: Merchant, options: DiscoveryOptions): Json {
  const { title, description, slug } = merchant
  const { isReady = () => true } = options
  const networks = Catalogue.networksOf(config, merchant).filter(({ id }) => isReady(id))
  const listed: PaymentInfo = (good) => ({
    ...priceOf(good, good.networks),
    offers: offersOf(good),
  })
  return documentOf(config, options, {
    title,
    description,
    url: `${config.service.baseUrl}/m/${slug}`,
    merchants: [merchant],
    paths: pathsOf(goodsOf(config, { merchant, networks }, options), '', listed),
  })
}

type Parts = {
  title: string
  description: string
  url: string
  merchants: readonly Merchant[]
  paths: Json
}

function documentOf(config: Config, options: DiscoveryOptions, parts: Parts): Json {
  const { title, description, url, merchants, paths } = parts
  const { contact, guidance } = config.service
  return {
    openapi: '3.1.0',
    info: {
      title,
      version: '1.0.0',
      description,
      ...(contact === undefined ? {} : { contact: { email: contact } }),
      'x-guidance': guidance,
    },
    servers: [{ url }],
    security: [],
    tags: [...new Set(merchants.map(({ tag }) => tag))].map((name) => ({ name })),
    paths,
    ...serviceInfo(config, merchants, options),
  }
}

function goodsOf(
  config: Config,
  listing: Catalogue.Listing,
  options: DiscoveryOptions,
): Catalogue.Good[] {
  return listing.merchant.routes.map((route) => Catalogue.goodOf(config, listing, route, options))
}

/** Service metadata in both dialects: draft-payment-discovery-00 and agentcash. */
function serviceInfo(
  config: Config,
  merchants: readonly Merchant[],
  options: DiscoveryOptions,
): Json {
  const { baseUrl, facilitatorUrl } = config.service
  const counts = new Map<string, number>()
  for (const { tag } of merchants) {
    const category = tag.toLowerCase().replace(/[^a-z0-9]+/g, '-')
    counts.set(category, (counts.get(category) ?? 0) + 1)
  }
  const categories = [...counts].sort(([, a], [, b]) => b - a).map(([category]) => category)
  const llms = `${baseUrl}/llms.txt`
  return {
    'x-service-info': {
      categories: categories.slice(0, categoriesMax),
      docs: { homepage: baseUrl, apiReference: `${baseUrl}/openapi.json`, llms },
      receiptSigner: options.receiptAddress,
      facilitator: facilitatorUrl,
      ...Catalogue.stockApi(config),
    },
    'x-agentcash-guidance': { llmsTxtUrl: llms },
  }
}

function pathsOf(goods: readonly Catalogue.Good[], prefix: string, info: PaymentInfo): Json {
  const paths: Json = {}
  const ids = new Set<string>()
  for (const good of goods) {
    const { merchant, route } = good
    for (const form of Catalogue.formsOf(route)) {
      const operations = route.methods.map((method, index) => {
        const base = Catalogue.operationId(merchant, route, form.suffix)
        const named = index === 0 ? base : `${base}-${method.toLowerCase()}`
        const id = Catalogue.unique(named, ids)
        return [method.toLowerCase(), operationOf({ id, method, form }, good, info)]
      })
      paths[`${prefix}${route.path}${form.path}` || '/'] = Object.fromEntries(operations)
    }
  }
  return paths
}

function operationOf(operation: Operation, good: Catalogue.Good, info: PaymentInfo): Json {
  const { id, method, form } = operation
  const { merchant, route } = good
  const { entitlements, pass } = good.more
  const isMetered = route.meter !== undefined && good.byUse.length + good.byChannel.length > 0
  const headers = {
    ...(isMetered ? streamHeaders : {}),
    ...(entitlements && { 'Payment-Entitlement': entitlementHeader }),
    ...(route.again && { 'Payment-Redeem': redeemHeader }),
  }
  return {
    operationId: id,
    summary: route.summary,
    description: route.description,
    tags: [merchant.tag],
    parameters: [
      ...parametersOf(merchant, route, form),
      ...(entitlements ? [signInParameter] : []),
    ],
    ...(Catalogue.takesBody(method) ? { requestBody: requestBodyOf(route) } : {}),
    responses: {
      200: {
        description:
          pass === undefined
            ? 'The answer of the upstream, forwarded verbatim.'
            : 'The pass, which the wallet has that paid for it.',
        ...(Object.keys(headers).length === 0 ? {} : { headers }),
        content: { 'application/json': { schema: Catalogue.answerSchema(route) } },
      },
      402: { description: 'Payment Required' },
    },
    'x-payment-info': info(good),
    ...(entitlements && { 'x-entitlements': entitlements }),
    ...(pass && { 'x-pass': pass }),
  }
}

function parametersOf(merchant: Merchant, route: Route, form: Catalogue.Form): Json[] {
  const inPath = form.segments
    .filter(({ isLiteral }) => !isLiteral)
    .map(({ name, param }) => ({ ...parameterOf(param, name), in: 'path', required: true }))
  const inQuery = route.params
    .filter((param) => param.in === 'query')
    .map((param) => ({
      ...parameterOf(param, param.name),
      in: 'query',
      required: param.required,
      // Lists are written with commas.
      ...([param.schema.type].flat().includes('array') ? { style: 'form', explode: false } : {}),
    }))
  const others = inQuery.some(({ name }) => name === anyQuery) ? [] : [othersOf(merchant, route)]
  return [...inPath, ...inQuery, ...others]
}

function parameterOf(param: Param, name: string) {
  const { description, schema, example } = param
  return {
    name,
    ...(description === '' ? {} : { description }),
    schema,
    ...(example === undefined ? {} : { example }),
  }
}

/** Specification 4.1: the name under which arbitrary query parameters are described. */
const anyQuery = 'params'

/** An exploded object describes parameters of any name. */
function othersOf(merchant: Merchant, route: Route): Json {
  return {
    name: anyQuery,
    in: 'query',
    required: false,
    description: Catalogue.othersOf(merchant, route),
    style: 'form',
    explode: true,
    schema: { type: 'object', additionalProperties: { type: 'string' } },
  }
}

function requestBodyOf(route: Route): Json {
  const schema = Catalogue.bodySchema(route)
  const example = Catalogue.exampleBody(route)
  return { required: route.bodyRequired, content: { 'application/json': { schema, example } } }
}

const header = (description: string) => ({ description, schema: { type: 'string' } })

/** Headers of an answer that is sent before its charge is settled. */
const streamHeaders: Json = {
  'Payment-Id': header('Of a stream that is charged by its use: the id of its payment.'),
  'Payment-Token': header(
    'Of such a stream: GET /api/payments/{Payment-Id} with this header answers its receipt.',
  ),
}

const entitlementHeader = header(
  'Of an answer without a payment: its kind (again, pass or trial), how many remain, and until when.',
)
const redeemHeader = header(
  'Of a paid answer: the same request with this header has the answer again, without signing in.',
)
const signInParameter: Json = {
  name: 'SIGN-IN-WITH-X',
  in: 'header',
  required: false,
  description:
    'In place of a payment: the extension sign-in-with-x of the 402, signed by a wallet that has a ' +
    'pass or a trial, or has paid for this request.',
  schema: { type: 'string' },
}

/** Price and protocols, which payment indexers read in addition to either form of offers. */
function priceOf(good: Catalogue.Good, networks: readonly NetworkConfig[]): Json {
  const schemes = [...new Set(good.accepts.map(({ scheme }) => scheme))]
  const [first] = schemes
  const isExact = first === 'exact'
  return {
    price: priceJson(good),
    protocols: [
      ...(isExact ? networks : []).map(({ asset }) => ({
        mpp: { method: 'evm', intent: 'charge', currency: asset.address },
      })),
      { x402: isExact && schemes.length === 1 ? {} : { schemes } },
    ],
  }
}

/** The `price` of `x-payment-info`, which says how the route is sold besides a fixed price. */
export function priceJson(good: Catalogue.Good): Json {
  const price = Price.toJson(good.route)
  const { byUse, byChannel } = good
  return byUse.length + byChannel.length === 0
    ? price
    : { ...price, description: priceSentence(good) }
}

/** What a request for a route costs; '' for a fixed price alone. */
export function priceSentence({ route, byUse, byChannel }: Catalogue.Good): string {
  return [
    Price.sentence(route),
    byUse.length === 0 ? '' : ByUse.sentence,
    ByChannel.sentence(route, byChannel),
  ]
    .filter((sentence) => sentence !== '')
    .join(' ')
}

/** Every offer for a route: those of the scheme `exact`, then those of `upto` and of channels. */
export function offersOf({ merchant, route, networks, byUse, accepts }: Catalogue.Good): Json[] {
  const termsOf = ({ id: network, asset }: NetworkConfig) => ({
    amount: route.priceAtomic.toString(),
    currency: asset.address,
    network,
    recipient: merchant.payout,
  })
  return [
    ...networks
      .filter(({ id }) =>
        accepts.some(({ scheme, network }) => scheme === 'exact' && network === id),
      )
      .map((network) => ({ ...termsOf(network), ...exactly(network) })),
    ...byUse.map((network) => ({
      ...termsOf(network),
      scheme: 'upto',
      extra: { assetTransferMethod: 'permit2', spender: Upto.proxyAddress },
    })),
    ...accepts
      .filter(({ scheme }) => scheme === 'batch-settlement')
      .map(({ amount, asset: currency, network, payTo: recipient, scheme, extra }) => {
        return { amount, currency, network, recipient, scheme, extra }
      }),
  ]
}

/** What an offer says of `exact`, in the terms of the MPP discovery draft and specification 2.1. */
function exactly({ asset }: NetworkConfig): Json {
  const isPermit2 = asset.transfer[0] === 'permit2'
  return {
    scheme: 'exact',
    intent: 'charge',
    method: 'evm',
    extra: isPermit2
      ? { assetTransferMethod: 'permit2', spender: Permit.proxyAddress }
      : { assetTransferMethod: 'eip3009', ...asset.eip712 },
  }
}
