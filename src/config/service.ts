import type * as Network from '../protocol/Network'
import type { NetworkConfig, Service } from './Config'
import { service as keys } from './keys'
import { readKeys } from './kinds'
import { readLogo } from './logo'
import { readNetworkId, readPreference } from './networks'
import { child, field, openTable, reportKey, type Table } from './reader'
import * as V from './values'

/** Reads `[service]`; every key but payout has a default. */
export function readService(root: Table, networks: readonly NetworkConfig[]): Service {
  const table = child(root, 'service') ?? openTable(root.source, ['service'], {})
  const baseUrl = keys.baseUrl.read(table, 'base_url')
  const service = readKeys(table, keys, {
    logo: () => readLogo(table),
    facilitatorUrl: (key) => otherUrl(table, key, baseUrl),
    stockBaseUrl: (key) => otherUrl(table, key, baseUrl),
    discoveryNetwork: (key) => readNetworkId(table, key, networks, true),
    mppOrder: () => mppOrderOf(table, networks),
    metrics: (key) => field(table, key, V.oneOf(['public', 'token', 'off']), readersOf(baseUrl)),
  })
  checkSizes(table, service)
  checkBasePaths(table, service.facilitatorUrl, service.stockBaseUrl)
  return service
}

/** The figures of a business are no one else's, once others can reach it. */
function readersOf(baseUrl: string): Service['metrics'] {
  return V.isLoopback(new URL(baseUrl)) ? 'public' : 'token'
}

/** The networks in the configured order. Networks without an order follow in file order. */
function mppOrderOf(table: Table, networks: readonly NetworkConfig[]): readonly Network.Id[] {
  const ids = networks.map((network) => network.id)
  const fallback = (['eip155:8453', 'eip155:4663'] as const).filter((id) => ids.includes(id))
  const wanted = readPreference(table, 'mpp_order', networks)
  return [...new Set([...(table.raw.mpp_order === undefined ? fallback : wanted), ...ids])]
}

/** A URL that may have a path; empty means the base URL. Returned without a trailing slash. */
function otherUrl(table: Table, key: string, baseUrl: string): string {
  if (table.raw[key] === '') {
    table.known.add(key)
    return baseUrl
  }
  const url = field(table, key, V.url('http', 'https'), undefined)
  return url ? `${url.origin}${url.pathname.replace(/\/+$/, '')}` : baseUrl
}

function checkSizes(table: Table, service: Service): void {
  if (service.unpaidBodyMaxBytes > service.bodyMaxBytes)
    reportKey(table, 'unpaid_body_max', 'unpaid_body_max must not exceed body_max')
  if (service.bodyMaxBytes > service.bufferedMaxBytes)
    reportKey(table, 'buffered_max', 'buffered_max must be at least body_max')
}

/** First segments of the service's own paths. */
const taken = [
  'm',
  'mcp',
  'api',
  'supported',
  'verify',
  'settle',
  'facilitator',
  'discovery',
  '.well-known',
  'openapi.json',
  'llms.txt',
  'merchants',
  'orders',
  'stocks',
  'assets',
  'admin',
  'favicon.svg',
  'healthz',
  'readyz',
  'metrics',
  'problems',
  'robots.txt',
  'sitemap.xml',
]

const segments = /^(?:\/[A-Za-z0-9._~-]+)*$/

/**
 * Reports base URLs with paths that cannot be served beside the others: `facilitator_url` and
 * `stock_base_url`, each absolute and without a trailing slash.
 */
function checkBasePaths(table: Table, facilitatorUrl: string, stockBaseUrl: string): void {
  const facilitator = new URL(facilitatorUrl).pathname.replace(/\/$/, '')
  const stock = new URL(stockBaseUrl).pathname.replace(/\/$/, '')
  // The facilitator always answers at this path.
  if (facilitator !== '/facilitator') checkPath(table, 'facilitator_url', facilitator)
  checkPath(table, 'stock_base_url', stock)
  if (stock === '' || !`${facilitator}/`.startsWith(`${stock}/api/`)) return
  const message = 'facilitator_url is among the paths of stock_base_url: write another path'
  reportKey(table, 'facilitator_url', message)
}

function checkPath(table: Table, key: string, path: string): void {
  const [, first = ''] = path.split('/')
  if (!segments.test(path))
    reportKey(table, key, `${key} may have a path of letters, digits, -, ., _ and ~ only`)
  else if (taken.includes(first)) {
    const message = `${key} has a path below /${first}, which is taken: write another, such as "/pay"`
    reportKey(table, key, message)
  }
}
