import type * as Network from '../protocol/Network'
import { checkBasePaths } from './base-paths'
import { findBuiltIn } from './builtin'
import type { NetworkConfig, Service } from './Config'
import { service as keys } from './keys'
import { readKeys } from './kinds'
import { readLogo } from './logo'
import { listed, readPreference } from './networks'
import { at, child, field, open, optional, report, type Table } from './reader'
import * as V from './values'

/** Reads `[service]`; every key but payout has a default. */
export function readService(root: Table, networks: readonly NetworkConfig[]): Service {
  const table = child(root, 'service') ?? open(root.source, ['service'], {})
  const baseUrl = keys.baseUrl.read(table, 'base_url')
  const service = readKeys(table, keys, {
    logo: () => readLogo(table),
    facilitatorUrl: (key) => otherUrl(table, key, baseUrl),
    stockBaseUrl: (key) => otherUrl(table, key, baseUrl),
    discoveryNetwork: () => discoveryOf(table, networks),
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
