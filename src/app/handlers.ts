import type { Config } from '../config/Config'
import { createFacilitator, type Operation } from '../facilitator/handler'
import { createDocuments } from '../gateway/documents/documents'
import { createMcp } from '../gateway/mcp/endpoint'
import { createGateway } from '../gateway/merchant'
import { createHealth } from '../http/health'
import { prefixesOf } from '../http/url'
import type { RetiredOffers } from '../paywall/offer/retired-offers'
import type { Settlement } from '../settlement/settlement'
import { sponsorApprove } from '../sponsor/granting'
import { createMarketHandlers, createOrderHandlers } from '../stock/handlers'
import { createAdminSources } from './admin'
import { createMetricsHandler } from './metrics'
import type { Parts } from './parts'
import type { Handlers, People } from './routes'
import { createState } from './state'

/**
 * The handlers under one configuration. They are built anew for each configuration, so that no
 * handler mixes two.
 */
export function createHandlers(config: Config, retired: RetiredOffers, parts: Parts): Handlers {
  const { settlement, exchange, startedStock, deskAddress, receiptAddress, peerOf } = parts
  const { service } = config
  const isReady: Settlement['isReady'] = (network) =>
    settlement.isReady(network) && settlement.hasBudget(network, 'gateway')
  const addressOf = (request: Request) => peerOf(request)()
  const serving = { ...parts, config, service, addressOf, sponsor: parts.sponsoring.approvals }
  const state = createState(config, parts, isReady)
  const { facilitators } = settlement.authorizations
  const offers = { isReady, facilitators }
  const updatedAt = parts.now()
  const documents = createDocuments(config, { ...offers, receiptAddress, updatedAt })
  const isPaused = (slug: string) => parts.pauses.has('merchant', slug)
  const gateway = createGateway({
    ...serving,
    isPaused,
    retired,
    documents,
    stocks: exchange?.data,
  })
  const mcp = createMcp({ ...serving, ...offers, gateway })
  const facilitator = createFacilitator({
    ...serving,
    budget: parts.facilitatorBudget,
    ownAccounts: [deskAddress],
  })
  const operate = (operation: Operation) => (request: Request) =>
    facilitator.handle(operation, request, peerOf(request))
  const { granting } = parts.sponsoring
  const { trustProxy } = service
  return {
    middleware: parts.middleware,
    errors: { baseUrl: service.baseUrl, log: parts.log, requestId: parts.requestId },
    facilitatorAt: prefixesOf([service.facilitatorUrl, `${service.baseUrl}/facilitator`]),
    stockAt: prefixesOf([service.stockBaseUrl]),
    gateway: (request) => gateway.handle(request, peerOf(request)),
    mcp: (request) => mcp.handle(request, peerOf(request)),
    supported: operate('supported'),
    verify: operate('verify'),
    settle: operate('settle'),
    documents,
    market: exchange && createMarketHandlers({ ...exchange, ...serving, payTo: deskAddress }),
    orders:
      exchange && startedStock && createOrderHandlers({ ...exchange, ...serving, ...startedStock }),
    sponsor: (request) => sponsorApprove({ ...serving, granting, trustProxy }, request),
    metrics: createMetricsHandler(serving),
    payment: parts.lookup,
    people: once(async (): Promise<People> => {
      // A start does not load the pages.
      const [{ createPages }, { createAdmin }, { createProblemPages }, { createApiDocument }] =
        await Promise.all([
          import('../web/public/pages'),
          import('../web/admin/start'),
          import('../web/public/problems'),
          import('./openapi'),
        ])
      return {
        pages: createPages({ ...serving, ...state, toolOf: mcp.toolOf }),
        admin: createAdmin(config, { ...serving, sources: createAdminSources(config, parts) }),
        problems: createProblemPages(config),
        apiDocument: createApiDocument(config),
      }
    }),
    health: createHealth(state),
  }
}

/** Makes a value at the first call. Every call gets that value. */
function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => {
    made ??= make()
    return made
  }
}
