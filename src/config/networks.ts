import type { Asset, TransferMethod } from '../protocol/Asset'
import * as Network from '../protocol/Network'
import { findBuiltIn } from './builtin'
import type { Channels, NetworkConfig, Sponsor } from './Config'
import * as keys from './keys'
import { readKeys } from './kinds'
import type { Path } from './lines'
import {
  child,
  field,
  isEmptyList,
  isTable,
  openTable,
  optional,
  readList,
  report,
  reportKey,
  type Source,
  type Table,
} from './reader'
import * as V from './values'

type Raw = Readonly<Record<string, unknown>>

/**
 * The document with the tables of its networks. When `[service]` lists networks, the tables are
 * those of the list, in its order: a block of the file overrides single keys of a built-in network,
 * or describes another one. Without a list the blocks stay as they are, each complete by itself.
 */
export function selectNetworks(document: Raw, source: Source): Raw {
  const { service, networks = {} } = document
  if (!isTable(service) || service.networks === undefined || !isTable(networks)) return document
  const ids = readListed(service, source)
  const tables = ids.flatMap(({ id, path }): [string, unknown][] => {
    const block = networks[id]
    const known = findBuiltIn(id)?.table
    if (known === undefined && block === undefined) {
      const message = `${id} is not built in: describe it in [networks."${id}"], or remove it here`
      report(source, path, message)
      return []
    }
    return [[id, known === undefined ? block : merge(known, block)]]
  })
  for (const id of Object.keys(networks)) {
    if (ids.some((listed) => listed.id === id)) continue
    report(source, ['networks', id], unlisted(id))
  }
  // Without any network every key that names one would be a fault, too.
  const selected = tables.length > 0 ? tables : [['eip155:8453', findBuiltIn('base')?.table]]
  return { ...document, networks: Object.fromEntries(selected) }
}

function readListed(service: Record<string, unknown>, source: Source) {
  const table = openTable(source, ['service'], service)
  const found = readList(table, 'networks', V.networkId)
  if (found?.length === 0 && Array.isArray(service.networks) && service.networks.length === 0)
    report(source, ['service', 'networks'], 'networks is empty; write networks = ["base"]')
  const raw: unknown[] = Array.isArray(service.networks) ? service.networks : []
  const ids: { id: Network.Id; path: Path }[] = []
  raw.forEach((value, i) => {
    const id = V.networkId(value)
    if (typeof id !== 'string') return
    const path = ['service', 'networks', i]
    if (ids.some((listed) => listed.id === id))
      report(source, path, 'networks names this network twice')
    else ids.push({ id, path })
  })
  return ids
}

function unlisted(id: string): string {
  const meant = findBuiltIn(id)
  if (meant?.word === id) return `write [networks."${meant.id}"]: a block has the CAIP-2 id`
  if (V.isNetworkId(id))
    return `${id} is not in networks of [service]: add "${meant?.word ?? id}" there, or remove this block`
  return `${id} is not a CAIP-2 id of an EVM network, such as "eip155:8453"`
}

/** A built-in table with the keys of a block; nested tables are merged, arrays are replaced. */
function merge(known: Raw, block: unknown): unknown {
  if (block === undefined) return known
  if (!isTable(block)) return block
  const keys = Object.entries(block).map(([key, value]): [string, unknown] => {
    const inner = known[key]
    return [key, isTable(inner) ? merge(inner, value) : value]
  })
  return { ...known, ...Object.fromEntries(keys) }
}

/**
 * Networks of the file, in file order. A network with faults is included, so that other keys can
 * refer to it.
 */
export function readNetworks(root: Table): readonly NetworkConfig[] {
  const table = child(root, 'networks')
  const ids = Object.keys(table?.raw ?? {})
  const networks = ids.flatMap((id) => {
    const inner = table && child(table, id)
    return inner ? [readNetwork(inner, id)] : []
  })
  if (ids.length === 0 && (table !== undefined || root.raw.networks === undefined)) {
    report(
      root.source,
      ['service', 'networks'],
      'no network is listed; write networks = ["base"] under [service]',
    )
  }
  return networks
}

function readNetwork(table: Table, id: string): NetworkConfig {
  const chainId = V.isNetworkId(id) ? Network.chainIdOf(id) : undefined
  if (chainId === undefined) {
    const meant = findBuiltIn(id)?.id
    const message = `${id} is not a CAIP-2 id of an EVM network; write [networks."${meant ?? 'eip155:8453'}"]`
    reportKey(table, [], message)
  }
  const rpcUrls = readList(table, 'rpc_urls', V.endpoint('http', 'https'))
  if (table.raw.rpc_urls === undefined || isEmptyList(table, 'rpc_urls'))
    reportKey(table, 'rpc_urls', 'rpc_urls is missing; write rpc_urls = ["https://..."]')
  const ethPriceUsd = keys.network.ethPriceUsd.read(table, 'eth_price_usd')
  return {
    id: `eip155:${chainId ?? 0}`,
    chainId: chainId ?? 0,
    ...readKeys(table, keys.network, {
      rpcUrls: () => rpcUrls ?? [],
      wsUrl: (key) => (table.raw[key] === '' ? '' : field(table, key, V.endpoint('ws', 'wss'), '')),
      asset: () => readAsset(table),
      sponsor: () => readSponsor(table, ethPriceUsd),
      channels: () => readChannels(table),
    }),
  }
}

function readAsset(network: Table): Asset {
  const table = child(network, 'asset')
  if (!table) {
    const header = `[${network.path[0]}."${network.path[1]}".asset]`
    reportKey(network, 'asset', `asset is missing; write ${header}`)
    return emptyAsset
  }
  const transfer = readList(table, 'transfer', V.oneOf(['permit2', 'eip3009']))
  if (isEmptyList(table, 'transfer') || new Set(transfer).size < (transfer?.length ?? 0)) {
    const message = 'transfer lists each method once: write transfer = ["permit2", "eip3009"]'
    reportKey(table, 'transfer', message)
  }
  const eip712 = child(table, 'eip712')
  if (!eip712) {
    const example = '{ name = "USD Coin", version = "2" }'
    reportKey(table, 'eip712', `eip712 is missing; write eip712 = ${example}`)
  }
  return readKeys(table, keys.asset, {
    transfer: () => transfer ?? defaultTransfer,
    eip712: () => (eip712 ? readKeys(eip712, keys.eip712, {}) : emptyAsset.eip712),
  })
}

const defaultTransfer: readonly TransferMethod[] = ['permit2', 'eip3009']

const emptyAsset: Asset = {
  symbol: '',
  address: V.zeroAddress,
  decimals: 6,
  transfer: defaultTransfer,
  eip712: { name: '', version: '' },
  revertsOnUsedNonce: false,
  eip2612: true,
}

function readSponsor(network: Table, ethPriceUsd: number): Sponsor | undefined {
  const table = child(network, 'sponsor')
  if (!table) return undefined
  return readKeys(table, keys.sponsor, {
    ethPriceUsd: (key) => field(table, key, V.positive, ethPriceUsd),
  })
}

function readChannels(network: Table): Channels | undefined {
  const table = child(network, 'channels')
  if (!table) return undefined
  const channels = readKeys(table, keys.channels, {})
  if (channels.claimEveryMs * 10 > channels.withdrawDelayMs) {
    const message =
      'claim_every is above a tenth of withdraw_delay: vouchers must be on the chain long before a ' +
      'withdrawal ends. Lower claim_every, or raise withdraw_delay'
    reportKey(table, 'claim_every', message)
  }
  return channels
}

/** Reports the id of a network that the file does not list. */
function assertListed(
  table: Table,
  key: string | Path,
  networks: readonly NetworkConfig[],
  id: Network.Id,
): void {
  if (networks.some((network) => network.id === id)) return
  const ids = networks.map((network) => `"${network.id}"`).join(', ') || 'none'
  reportKey(table, key, `${id} is none of the networks of this service: ${ids}`)
}

/** Reads an array of ids of listed networks, without repetition; undefined when it is absent. */
export function readNetworkList(
  table: Table,
  key: string,
  networks: readonly NetworkConfig[],
): readonly Network.Id[] | undefined {
  const ids = readList(table, key, V.networkId)
  ids?.forEach((id, i) => {
    if (ids.indexOf(id) < i) reportKey(table, [key, i], `${key} names this network twice`)
    else assertListed(table, [key, i], networks, id)
  })
  return ids
}

/**
 * Reads an array of networks, the preferred one first; empty when it is absent. A built-in network
 * that this service does not have is no fault, so that one can be dropped by its own line.
 */
export function readPreference(
  table: Table,
  key: string,
  networks: readonly NetworkConfig[],
): readonly Network.Id[] {
  const ids = readList(table, key, V.networkId) ?? []
  ids.forEach((id, i) => {
    if (findBuiltIn(id) === undefined) assertListed(table, [key, i], networks, id)
  })
  return ids.filter((id) => networks.some((network) => network.id === id))
}

/**
 * Reads the id of a listed network: Robinhood Chain by default, and the first network where that is
 * not offered. With `dropsBuiltIns` a built-in network that is not listed counts as absent.
 */
export function readNetworkId(
  table: Table,
  key: string,
  networks: readonly NetworkConfig[],
  dropsBuiltIns = false,
): Network.Id {
  const fallback: Network.Id = 'eip155:4663'
  const isListed = (id: Network.Id) => networks.some((network) => network.id === id)
  const id = optional(table, key, V.networkId)
  const isDropped = dropsBuiltIns && id !== undefined && findBuiltIn(id) !== undefined
  if (id !== undefined && !isDropped) assertListed(table, key, networks, id)
  if (id !== undefined && (!isDropped || isListed(id))) return id
  return isListed(fallback) ? fallback : (networks[0]?.id ?? fallback)
}
