import { at, report, type Table } from './reader'

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
export function checkBasePaths(table: Table, facilitatorUrl: string, stockBaseUrl: string): void {
  const facilitator = new URL(facilitatorUrl).pathname.replace(/\/$/, '')
  const stock = new URL(stockBaseUrl).pathname.replace(/\/$/, '')
  // The facilitator always answers at this path.
  if (facilitator !== '/facilitator') checkPath(table, 'facilitator_url', facilitator)
  checkPath(table, 'stock_base_url', stock)
  if (stock === '' || !`${facilitator}/`.startsWith(`${stock}/api/`)) return
  const message = `facilitator_url is among the paths of stock_base_url: write another path`
  report(table.source, at(table, 'facilitator_url'), message)
}

function checkPath(table: Table, key: string, path: string): void {
  const [, first = ''] = path.split('/')
  if (!segments.test(path)) {
    const message = `${key} may have a path of letters, digits, -, ., _ and ~ only`
    report(table.source, at(table, key), message)
  } else if (taken.includes(first)) {
    const message = `${key} has a path below /${first}, which is taken: write another, such as "/pay"`
    report(table.source, at(table, key), message)
  }
}
