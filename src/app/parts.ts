import type { Db } from '../../db/open'
import type { Config } from '../config/Config'
import type { Facilitator } from '../facilitator/handler'
import type { Settling } from '../facilitator/settle'
import type { Registry } from '../http/metrics'
import type { createMcp } from '../proxy/mcp/endpoint'
import type { Gateway, GatewayOptions } from '../proxy/merchant'
import type { ApprovalSponsor } from '../settlement/Sponsorship'
import type { Settlement } from '../settlement/settle'
import type { Sponsor } from '../sponsor/sponsor'
import type { openMarket } from '../stock/open'
import type { StartedStock } from '../stock/start'
import type { AdminState } from '../web/admin'

/** Parts that survive a reload, because they hold state or money. */
export type Parts = Pick<
  GatewayOptions,
  | 'paywall'
  | 'upstream'
  | 'breaker'
  | 'places'
  | 'budget'
  | 'recognise'
  | 'rateLimit'
  | 'now'
  | 'log'
  | 'requestId'
  | 'accepts'
> & {
  db: Db
  settlement: Settlement
  /** Of the facilitator. */
  calls: ReturnType<Registry['counter']>
  settling: Settling
  /** For its bodies. */
  facilitatorBudget: GatewayOptions['budget']
  relayers: readonly `0x${string}`[]
  sponsor: ApprovalSponsor | undefined
  sponsoring: Sponsor
  registry: Registry
  receiptAddress: `0x${string}`
  exchange: ReturnType<typeof openMarket>
  counter: StartedStock | undefined
  deskAddress: `0x${string}`
  /** Address of the other end of a request's connection. */
  peerOf: (request: Request) => string | undefined
  adminToken: string
  pending: () => AdminState['pending']
}

/** The request handlers of one configuration. */
export type Catalogue = {
  config: Config
  /** Below `/m/`. */
  gateway: Gateway
  facilitator: Facilitator
  mcp: ReturnType<typeof createMcp>
  /** Everywhere else. */
  site: { fetch(request: Request): Response | Promise<Response> }
}
