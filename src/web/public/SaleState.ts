import type { Merchant, NetworkConfig, Route } from '../../config/Config'
import type { Tone } from '../parts'
import * as Parts from '../parts'

type Row = { tone: Tone; badge: string; sells: boolean; text: string }

/**
 * Whether something can be bought now: one row for each state. Only where `sells` is true does a page
 * have anything that pays. `text` says to a buyer why there is nothing.
 */
export const states = {
  available: { tone: 'good', badge: 'available', sells: true, text: '' },
  partly: { tone: 'fair', badge: 'partly available', sells: true, text: '' },
  'out-of-service': {
    tone: 'bad',
    badge: 'out of service',
    sells: false,
    text: 'This merchant is out of service, and nothing can be paid for it.',
  },
  paused: {
    tone: 'fair',
    badge: 'paused',
    sells: false,
    text: 'The operator has paused this sale. Nothing can be paid for it; look again later.',
  },
  unavailable: {
    tone: 'bad',
    badge: 'not answering, nothing is charged',
    sells: false,
    text: 'The source of these answers does not respond. Nothing can be paid for them; look again in a minute.',
  },
  'key-refused': {
    tone: 'bad',
    badge: 'out of service',
    sells: false,
    text: 'The source of these answers refuses this service. Nothing can be paid for them; look again later.',
  },
  'not-ready': {
    tone: 'bad',
    badge: 'no network is ready',
    sells: false,
    text: 'No network is ready for a payment. Look again in a minute.',
  },
} as const satisfies Record<string, Row>

export type SaleState = keyof typeof states

/** What the pages read of a sale at each request, from memory. */
export type Facts = {
  isReady(network: NetworkConfig): boolean
  /** Whether a channel can be opened on a network. */
  hasChannels(network: NetworkConfig): boolean
  /** Of a merchant with all of its routes. */
  healthOf(merchant: Merchant): 'available' | 'partly' | 'unavailable' | 'out-of-service' | 'paused'
  /** Why one route sells nothing while others of its merchant do. */
  faultOf(merchant: Merchant, route: Route): 'unavailable' | 'key-refused' | undefined
}

/** The state of a merchant, or of one of its routes. */
export function of(
  facts: Facts,
  networks: readonly NetworkConfig[],
  merchant: Merchant,
  route?: Route,
): SaleState {
  const health = facts.healthOf(merchant)
  if (!states[health].sells) return health
  if (!Parts.networksOf(networks, merchant).some((network) => facts.isReady(network)))
    return 'not-ready'
  if (route === undefined) return health
  return facts.faultOf(merchant, route) ?? 'available'
}

export function badgeOf(state: SaleState): ReturnType<typeof Parts.badge> {
  const { tone, badge } = states[state]
  return Parts.badge(tone, badge)
}

/**
 * The same of a stock token, by the `status` that `GET /api/stock/list` answers. The script has this
 * table from the page. A status without a row is closed.
 */
export const tokenStates = {
  open: { tone: 'good', sells: true, text: '' },
  stale: { tone: 'fair', sells: false, text: 'The market does not answer now.' },
  halted: { tone: 'bad', sells: false, text: 'The issuer has halted this stock.' },
  paused: { tone: 'bad', sells: false, text: 'The issuer has paused transfers of this stock.' },
  'feed-distance': {
    tone: 'bad',
    sells: false,
    text: 'The price of this stock is too far from its price feed.',
  },
  'no-liquidity': {
    tone: 'bad',
    sells: false,
    text: 'The pool of this stock cannot take an order.',
  },
  closed: { tone: 'bad', sells: false, text: 'This stock cannot be bought now.' },
} as const
