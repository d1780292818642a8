import type { Config, NetworkConfig } from './Config'
import type { Path } from './lines'

/**
 * Keys of `[service]` that need a restart: the socket, and values in every challenge and document.
 */
const fixed = {
  listen: 'listen',
  connectionsMax: 'connections_max',
  baseUrl: 'base_url',
  stockBaseUrl: 'stock_base_url',
  bufferedMaxBytes: 'buffered_max',
  stalledStreamsMax: 'stalled_streams_max',
} as const

/**
 * Places where a file differs in what a running process cannot change: the sockets, the chains, and
 * the market with its data from them. Empty when the file can be applied.
 */
export function needsRestart(before: Config, after: Config): Path[] {
  const found: Path[] = []
  for (const [name, key] of Object.entries(fixed) as [keyof typeof fixed, string][])
    if (!isSame(before.service[name], after.service[name])) found.push(['service', key])
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
  const keys = Object.keys(after) as (keyof NetworkConfig)[]
  return keys
    .filter((key) => !isSame(before[key], after[key]))
    .map((key) => ['networks', after.id, keyInFile(key)])
}

/** `rpcUrls` is written `rpc_urls`. */
function keyInFile(key: string): string {
  if (key === 'feeCapWei') return 'fee_cap_gwei'
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

function isSame(a: unknown, b: unknown): boolean {
  return text(a) === text(b)
}

function text(value: unknown): string | undefined {
  return JSON.stringify(value, (_, part) => (typeof part === 'bigint' ? `${part}n` : part))
}
