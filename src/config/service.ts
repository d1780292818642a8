import type * as Network from '../protocol/Network'
import { checkBasePaths } from './base-paths'
import { findBuiltIn } from './builtin'
import type { NetworkConfig, Service } from './Config'
import { readLogo } from './logo'
import { listed, readPreference } from './networks'
import {
  at,
  child,
  close,
  field,
  open,
  optional,
  type Read,
  report,
  required,
  type Table,
} from './reader'
import * as V from './values'

/** Reads `[service]`; every key but payout has a default. */
export function readService(root: Table, networks: readonly NetworkConfig[]): Service {
  const table = child(root, 'service') ?? open(root.source, ['service'], {})
  const baseUrl = field(table, 'base_url', V.baseUrl, 'http://localhost:4020')
  const service: Service = {
    title: field(table, 'title', V.filled, 'Turnpike'),
    lead: optional(table, 'lead', sentence),
    logo: readLogo(table),
    accent: optional(table, 'accent', colour),
    baseUrl,
    listen: field(table, 'listen', V.listen, { hostname: '127.0.0.1', port: 4020 }),
    connectionsMax: field(table, 'connections_max', V.integer(16, 1_000_000), 10_000),
    facilitatorUrl: otherUrl(table, 'facilitator_url', baseUrl),
    stockBaseUrl: otherUrl(table, 'stock_base_url', baseUrl),
    contact: optional(table, 'contact', V.filled),
    guidance: field(table, 'guidance', V.text, 'Each path is an independent paid endpoint.'),
    payout: required(table, 'payout', V.address, '"0x..."') ?? V.zeroAddress,
    trustProxy: field(table, 'trust_proxy', V.integer(0, 16), 0),
    discoveryNetwork: discoveryOf(table, networks),
    mppOrder: mppOrderOf(table, networks),
    stopSeconds: field(table, 'stop_seconds', V.integer(0, 600), 30),
    settleWaitSeconds: field(table, 'settle_wait_seconds', V.integer(1, 300), 25),
    confirmTwiceAboveAtomic: field(table, 'confirm_twice_above', amountOrOff, { atomic: ten })
      .atomic,
    unsettledMaxAtomic: field(table, 'unsettled_max', V.amount, 1_000_000n),
    payoutExclusive: field(table, 'payout_exclusive', V.flag, false),
    bodyMaxBytes: field(table, 'body_max', V.size, 10 * 1024 ** 2),
    unpaidBodyMaxBytes: field(table, 'unpaid_body_max', V.size, 1024 ** 2),
    bufferedMaxBytes: field(table, 'buffered_max', V.size, 256 * 1024 ** 2),
    paidPerMinute: field(table, 'paid_per_minute', V.integer(1, 1_000_000), 600),
    quotePerMinute: field(table, 'quote_per_minute', V.integer(1, 1_000_000), 120),
    concurrencyMax: field(table, 'concurrency_max', V.integer(1, 12_000), 2_048),
    metrics: field(table, 'metrics', V.oneOf(['public', 'token', 'off']), readersOf(baseUrl)),
    stalledStreamsMax: field(table, 'stalled_streams_max', V.integer(1, 12_000), 16),
  }
  // Read before, to find the tables of the networks.
  table.known.add('networks')
  close(table)
  checkSizes(table, service)
  checkBasePaths(table, service.facilitatorUrl, service.stockBaseUrl)
  return service
}

/** The figures of a business are no one else's, once others can reach it. */
function readersOf(baseUrl: string): Service['metrics'] {
  return V.isLoopback(new URL(baseUrl)) ? 'public' : 'token'
}

const leadMaxCharacters = 200

const sentence: Read<string> = (value) => {
  const text = V.filled(value)
  return typeof text !== 'string' || text.length <= leadMaxCharacters
    ? text
    : { wrong: `must have at most ${leadMaxCharacters} characters` }
}

/** The pages derive shades that can be read on a light and on a dark background. */
const colour: Read<string> = (value) =>
  typeof value === 'string' && /^#[0-9a-f]{6}$/i.test(value)
    ? value.toLowerCase()
    : { wrong: 'must be a colour of six hexadecimal digits, such as "#0b6060"' }

const ten = 10_000_000n

/** An atomic amount; undefined for "off". */
const amountOrOff: Read<{ atomic: bigint | undefined }> = (value) => {
  if (value === 'off') return { atomic: undefined }
  const atomic = V.amount(value)
  return typeof atomic === 'bigint'
    ? { atomic }
    : { wrong: 'must be an amount in USD in quotes, such as "10", or "off"' }
}

/** The networks in the configured order. Networks without an order follow in file order. */
function mppOrderOf(table: Table, networks: readonly NetworkConfig[]): readonly Network.Id[] {
  const ids = networks.map((network) => network.id)
  const fallback = (['eip155:8453', 'eip155:4663'] as const).filter((id) => ids.includes(id))
  const wanted = readPreference(table, 'mpp_order', networks)
  return [...new Set([...(table.raw.mpp_order === undefined ? fallback : wanted), ...ids])]
}

/** Robinhood Chain by default, and the first network where it is not offered. */
function discoveryOf(table: Table, networks: readonly NetworkConfig[]): Network.Id {
  const fallback: Network.Id = 'eip155:4663'
  const wanted = optional(table, 'discovery_network', V.networkId)
  if (wanted !== undefined && findBuiltIn(wanted) === undefined)
    listed(table.source, at(table, 'discovery_network'), networks, wanted)
  const found = [wanted, fallback].find((id) => networks.some((network) => network.id === id))
  return found ?? networks[0]?.id ?? fallback
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
  if (service.unpaidBodyMaxBytes > service.bodyMaxBytes) {
    report(table.source, at(table, 'unpaid_body_max'), 'unpaid_body_max must not exceed body_max')
  }
  if (service.bodyMaxBytes > service.bufferedMaxBytes) {
    report(table.source, at(table, 'buffered_max'), 'buffered_max must be at least body_max')
  }
}
