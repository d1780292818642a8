import type { Config, NetworkConfig } from './Config'
import * as keys from './keys'
import { type Keys, keyNameOf } from './kinds'
import type { Path } from './lines'

/**
 * Places where a file differs in what a running process cannot change: the sockets, the chains, and
 * the market with its data from them. Empty when the file can be applied.
 */
export function needsRestart(before: Config, after: Config): Path[] {
  const found: Path[] = []
  for (const name of Object.keys(after.service) as (keyof Config['service'])[]) {
    const key = keys.service[name]
    const isKept = key.needsRestart !== true || isSame(before.service[name], after.service[name])
    if (!isKept) found.push(['service', keyNameOf(name, key)])
  }
  found.push(...changedNetworks(before.networks, after.networks))
  if (!isSame(before.stock, after.stock)) found.push(['stock'])
  return found
}

function changedNetworks(
  before: readonly NetworkConfig[],
  after: readonly NetworkConfig[],
): readonly Path[] {
  const known = new Map(before.map((network) => [network.id, network]))
  const found = after.flatMap((network) => {
    const old = known.get(network.id)
    known.delete(network.id)
    return old === undefined ? [['networks', network.id]] : changedKeys(old, network)
  })
  for (const id of known.keys()) found.push(['networks', id])
  const isReordered = before.some(({ id }, i) => id !== after[i]?.id)
  return found.length === 0 && isReordered ? [['networks']] : found
}

function changedKeys(before: NetworkConfig, after: NetworkConfig): Path[] {
  const stated: Keys = keys.network
  return (Object.keys(after) as (keyof NetworkConfig)[])
    .filter((property) => !isSame(before[property], after[property]))
    .map((property) => ['networks', after.id, keyNameOf(property, stated[property])])
}

function isSame(a: unknown, b: unknown): boolean {
  return text(a) === text(b)
}

function text(value: unknown): string | undefined {
  return JSON.stringify(value, (_, part) => (typeof part === 'bigint' ? `${part}n` : part))
}
