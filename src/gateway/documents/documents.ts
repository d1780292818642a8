import { Type } from '@sinclair/typebox'
import type { Address } from 'viem'
import type { Config } from '../../config/Config'
import { seal, sendDocument } from '../../http/document'
import { byMethod } from '../../http/methods'
import { searchOf } from '../../http/url'
import * as Problem from '../../protocol/Problem'
import * as Schema from '../../protocol/Schema'
import * as Bazaar from './Bazaar'
import * as Catalogue from './Catalogue'
import * as Discovery from './discovery'
import { llms } from './llms'

/**
 * Answers a request for a document: 200 with an ETag, or 304. Answers preflights, too. Throws
 * ProblemError.
 */
export type Serve = (request: Request) => Response

export type Documents = ReturnType<typeof createDocuments>

type DocumentsOptions = Catalogue.Schemes & {
  /** Signer of our receipts. */
  receiptAddress: Address
  /** Whether a network can settle now. Offers that cannot be bought are not listed. */
  isReady: Catalogue.IsReady
  /** Time at which this configuration was loaded, unix ms. */
  updatedAt: number
}

/** A complete document may be cached for five minutes, as draft-payment-discovery-00 recommends. */
const maxAgeSeconds = 300
/**
 * A document without one of its networks is cached briefly, because the network may return within
 * seconds.
 */
const partialMaxAgeSeconds = 10

/**
 * The discovery documents of a configuration. Each is built at its first use, and again only when a
 * network has become ready or has ceased to be ready, for either scheme.
 */
export function createDocuments(config: Config, options: DocumentsOptions) {
  const networks = config.networks.map(({ id }) => id)
  const readiness = () => networks.map((id) => (options.isReady(id) ? '1' : '0')).join('')
  const { facilitators, channelOf, receiptAddress: payTo } = options
  const schemes = () =>
    config.networks.map((network) => {
      const channel = channelOf?.({ network, amountAtomic: 1n, payTo })
      return `${facilitators?.(network.id, 1n).join()} ${channel?.method}`
    })
  const listing = { ...options, isReady: Catalogue.readyOrAll(networks, options.isReady) }
  const whole = '1'.repeat(config.networks.length)

  /** Builds a value, and again when the state of the networks has changed. */
  function current<T>(build: () => T): () => { made: T; maxAge: number } {
    let made: T | undefined
    let madeFor = ''
    return () => {
      const ready = readiness()
      const state = `${ready};${schemes().join(';')}`
      if (made === undefined || madeFor !== state) {
        made = build()
        madeFor = state
      }
      return { made, maxAge: ready === whole ? maxAgeSeconds : partialMaxAgeSeconds }
    }
  }
  function document(type: string, build: () => string): Serve {
    const find = current(() => seal(build()))
    return readable((request) => {
      const { made, maxAge } = find()
      return sendDocument(request, made, type, maxAge)
    })
  }
  const json = (build: () => object) => document('application/json', () => JSON.stringify(build()))

  const perMerchant = new Map<string, Serve>()
  for (const merchant of config.merchants)
    perMerchant.set(
      `/m/${merchant.slug}/openapi.json`,
      json(() => {
        const isReady = Catalogue.readyOrAll(merchant.networks, options.isReady)
        const listings = Catalogue.offered({ ...config, merchants: [merchant] }, isReady)
        if (listings.length === 0) throw nothingForSale()
        return Discovery.merchant(config, merchant, { ...options, isReady })
      }),
    )
  const entries = current(() => resources(config, listing).map((entry) => JSON.stringify(entry)))
  return {
    /** The document at a path below `/m/`, if there is one. */
    find: (pathname: string): Serve | undefined => perMerchant.get(pathname),
    aggregate: json(() => {
      if (Catalogue.offered(config, listing.isReady).length === 0) throw nothingForSale()
      return Discovery.aggregate(config, listing)
    }),
    wellKnown: json(() => wellKnown(config, listing)),
    llms: document('text/plain; charset=utf-8', () => llms(config, listing)),
    /** `GET /discovery/resources?type&limit&offset`. */
    resources: readable((request) => {
      const { made, maxAge } = entries()
      const text = pageOf(made, new URLSearchParams(searchOf(request.url)))
      return sendDocument(request, seal(text), 'application/json', maxAge)
    }),
  }
}

/**
 * An indexer that reads an empty document removes the service. One that reads a 503 tries again.
 */
function nothingForSale(): Problem.ProblemError {
  return Problem.of('not-ready', 'Nothing can be bought at the moment: try again later.', {
    headers: { 'retry-after': '10' },
  })
}

/** The list of paid resources that x402 indexers read at `/.well-known/x402`. */
export function wellKnown(
  config: Config,
  options: Discovery.DiscoveryOptions,
): Record<string, unknown> {
  const { baseUrl, guidance, facilitatorUrl } = config.service
  const resources = Catalogue.offered(config, options.isReady).flatMap(({ merchant }) =>
    merchant.routes.map((route) => Catalogue.exampleUrl(baseUrl, merchant, route)),
  )
  return {
    version: 1,
    resources,
    instructions: guidance,
    receiptSigner: options.receiptAddress,
    facilitator: facilitatorUrl,
    ...Catalogue.stockApi(config),
  }
}

/** Indexers refuse a longer name of a service. */
const serviceNameMax = 32

/**
 * Every route as an entry of `GET /discovery/resources` (x402 v2 section 8), in the order of the
 * file. `updatedAt` is unix ms.
 */
function resources(config: Config, options: DocumentsOptions) {
  const { baseUrl, title } = config.service
  return Catalogue.offered(config, options.isReady).flatMap(({ merchant, networks }) =>
    merchant.routes.map((route) => {
      const [method = 'GET'] = route.methods
      const { name, brief: _, ...extension } = Bazaar.extension(merchant, route, method)
      const { accepts, more } = Catalogue.goodOf(config, { merchant, networks }, route, options)
      return {
        resource: Catalogue.exampleUrl(baseUrl, merchant, route),
        type: 'http',
        x402Version: 2,
        accepts,
        lastUpdated: Math.floor(options.updatedAt / 1000),
        description: route.description || route.summary,
        mimeType: 'application/json',
        serviceName: merchant.title.slice(0, serviceNameMax),
        tags: [merchant.tag],
        metadata: {
          category: merchant.tag,
          provider: title,
          operationId: Catalogue.operationId(merchant, route),
          openapi: `${baseUrl}/m/${merchant.slug}/openapi.json`,
          ...more,
        },
        extensions: { [name]: extension },
      }
    }),
  )
}

const limitDefault = '20'
const offsetFault = 'must be an integer from 0'

/** Query of the list of resources, x402 v2 section 8.1. */
export const resourcesQuery = Type.Object({
  type: Type.Optional(Type.String({ description: 'Kind of resource: only "http" is sold.' })),
  limit: Type.Optional(
    Type.String({
      description: 'Most resources of a page; 20 by default.',
      pattern: '^0{0,15}(?:[1-9][0-9]?|100)$',
      maxLength: 16,
      fault: 'must be an integer from 1 to 100',
    }),
  ),
  offset: Type.Optional(
    Type.String({
      description: 'Resources before the page; 0 by default.',
      pattern: '^[0-9]{1,16}$',
      fault: offsetFault,
    }),
  ),
})

/** Reads a page of the list. Throws ProblemError `invalid-parameter`. */
function pageOf(entries: readonly string[], query: URLSearchParams): string {
  const { values, wrong } = Schema.readQuery(resourcesQuery, query, {
    checks: {
      offset: (text) => (Number.isSafeInteger(Number(text)) ? undefined : offsetFault),
    },
  })
  const [first] = wrong
  if (first !== undefined)
    throw Problem.of('invalid-parameter', `Invalid: ${first.name}.`, {
      members: { invalidParams: [{ name: first.name, in: 'query', reason: first.reason }] },
    })
  const limit = Number(values.limit ?? limitDefault)
  const offset = Number(values.offset ?? 0)
  const found = (values.type ?? 'http') === 'http' ? entries : []
  const items = found.slice(offset, offset + limit).join(',')
  const pagination = JSON.stringify({ limit, offset, total: found.length })
  return `{"x402Version":2,"items":[${items}],"pagination":${pagination}}`
}

/** Documents allow GET and HEAD from any origin. */
function readable(get: (request: Request) => Response): Serve {
  return byMethod({ GET: get }, { isOpen: true })
}
