import { builtIns } from '../config/builtin'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'

const explorers: Readonly<Record<Network.Id, string>> = {
  'eip155:8453': 'https://basescan.org',
  'eip155:84532': 'https://sepolia.basescan.org',
  'eip155:4663': 'https://robinhoodchain.blockscout.com',
}

/**
 * What a buyer may be told of a network: the explorer of its transactions, and a public RPC for a
 * wallet that does not know it. The RPCs of the file may contain keys. A node on this machine is a
 * copy of a network, which neither of them knows.
 */
export function publicFacts({ id, rpcUrls }: NetworkConfig): { explorer?: string; rpc?: string } {
  if (rpcUrls.some((url) => loopback.has(new URL(url).hostname))) return {}
  const urls = builtIns.find((each) => each.id === id)?.table.rpc_urls
  const [rpc] = Array.isArray(urls) ? urls : []
  const explorer = explorers[id]
  return {
    ...(explorer === undefined ? {} : { explorer }),
    ...(typeof rpc === 'string' ? { rpc } : {}),
  }
}

const loopback = new Set(['localhost', '127.0.0.1', '[::1]'])
