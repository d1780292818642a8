import type * as Network from '../protocol/Network'
import { findBuiltIn } from './builtin'
import { isTable, list, open, report, type Source } from './reader'
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
  const ids = readList(service, source)
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

function readList(service: Record<string, unknown>, source: Source) {
  const table = open(source, ['service'], service)
  const found = list(table, 'networks', V.networkId)
  if (found?.length === 0 && Array.isArray(service.networks) && service.networks.length === 0)
    report(source, ['service', 'networks'], 'networks is empty; write networks = ["base"]')
  const raw: unknown[] = Array.isArray(service.networks) ? service.networks : []
  const ids: { id: Network.Id; path: readonly (string | number)[] }[] = []
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
