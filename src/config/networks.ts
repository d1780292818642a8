import type { Address } from 'viem'
import type { Asset, TransferMethod } from '../protocol/Asset'
import * as Network from '../protocol/Network'
import { findBuiltIn } from './builtin'
import type { NetworkConfig, Sponsor } from './Config'
import * as keys from './keys'
import { readKeys } from './kinds'
import {
  at,
  child,
  field,
  isEmptyList,
  list,
  optional,
  report,
  type Source,
  type Table,
} from './reader'
import * as V from './values'

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
    report(table.source, table.path, message)
  }
  const rpcUrls = list(table, 'rpc_urls', V.endpoint('http', 'https'))
  if (table.raw.rpc_urls === undefined || isEmptyList(table, 'rpc_urls')) {
    const message = 'rpc_urls is missing; write rpc_urls = ["https://..."]'
    report(table.source, at(table, 'rpc_urls'), message)
  }
  const ethPriceUsd = keys.network.ethPriceUsd.read(table, 'eth_price_usd')
  return {
    id: `eip155:${chainId ?? 0}`,
    chainId: chainId ?? 0,
    ...readKeys(table, keys.network, {
      rpcUrls: () => rpcUrls ?? [],
      wsUrl: (key) => (table.raw[key] === '' ? '' : field(table, key, V.endpoint('ws', 'wss'), '')),
      asset: () => readAsset(table),
      sponsor: () => readSponsor(table, ethPriceUsd),
    }),
  }
}

function readAsset(network: Table): Asset {
  const table = child(network, 'asset')
  if (!table) {
    const header = `[${network.path[0]}."${network.path[1]}".asset]`
    report(network.source, at(network, 'asset'), `asset is missing; write ${header}`)
    return emptyAsset
  }
  const transfer = list(table, 'transfer', V.oneOf(['permit2', 'eip3009']))
  if (isEmptyList(table, 'transfer') || new Set(transfer).size < (transfer?.length ?? 0)) {
    const message = 'transfer lists each method once: write transfer = ["permit2", "eip3009"]'
    report(table.source, at(table, 'transfer'), message)
  }
  const eip712 = child(table, 'eip712')
  if (!eip712) {
    const example = '{ name = "USD Coin", version = "2" }'
    report(table.source, at(table, 'eip712'), `eip712 is missing; write eip712 = ${example}`)
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

/** The network of a CAIP-2 id that the file lists; reports any other id. */
export function listed(
  source: Source,
  path: readonly (string | number)[],
  networks: readonly NetworkConfig[],
  id: Network.Id,
): NetworkConfig | undefined {
  const found = networks.find((network) => network.id === id)
  if (!found) {
    const ids = networks.map((network) => `"${network.id}"`).join(', ') || 'none'
    report(source, path, `${id} is none of the networks of this service: ${ids}`)
  }
  return found
}

/** Reads an array of ids of listed networks, without repetition; undefined when it is absent. */
export function readNetworkList(
  table: Table,
  key: string,
  networks: readonly NetworkConfig[],
): readonly Network.Id[] | undefined {
  const ids = list(table, key, V.networkId)
  ids?.forEach((id, i) => {
    const path = [...table.path, key, i]
    if (ids.indexOf(id) < i) report(table.source, path, `${key} names this network twice`)
    else listed(table.source, path, networks, id)
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
  const ids = list(table, key, V.networkId) ?? []
  ids.forEach((id, i) => {
    if (findBuiltIn(id) === undefined) listed(table.source, [...table.path, key, i], networks, id)
  })
  return ids.filter((id) => networks.some((network) => network.id === id))
}

/**
 * Reads the id of a listed network. A default that is not listed is replaced by the first network.
 */
export function readNetworkId(
  table: Table,
  key: string,
  networks: readonly NetworkConfig[],
  fallback: Network.Id,
): Network.Id {
  const id = optional(table, key, V.networkId)
  if (id !== undefined) listed(table.source, at(table, key), networks, id)
  if (id !== undefined) return id
  return networks.some((network) => network.id === fallback)
    ? fallback
    : (networks[0]?.id ?? fallback)
}

/** The asset address of each network, for messages and checks. */
export function assetsOf(networks: readonly NetworkConfig[]): readonly Address[] {
  return networks.map((network) => network.asset.address)
}
