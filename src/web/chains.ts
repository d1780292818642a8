import { publicRpcOf } from '../config/builtin'
import type { NetworkConfig } from '../config/Config'
import { isLoopback } from '../config/values'
import type * as Network from '../protocol/Network'

const explorers: Readonly<Record<Network.Id, string>> = {
  'eip155:8453': 'https://basescan.org',
  'eip155:84532': 'https://sepolia.basescan.org',
  'eip155:4663': 'https://robinhoodchain.blockscout.com',
}

type Facts = { explorer?: string | undefined; rpc?: string | undefined }

/**
 * What a page may say of a network: the explorer of its transactions, and a public RPC for a wallet
 * that does not know the network. The RPCs of the file are left out, because they may contain keys.
 */
export function publicFacts(network: Pick<NetworkConfig, 'id' | 'rpcUrls'>): Facts {
  const { id } = network
  return isLocal(network) ? {} : { explorer: explorers[id], rpc: publicRpcOf(id) }
}

/**
 * Whether a node is on this machine, as in the demo. Its chain has the id of a public one and other
 * transactions, which no explorer and no public RPC knows.
 */
export function isLocal({ rpcUrls }: Pick<NetworkConfig, 'rpcUrls'>): boolean {
  return rpcUrls.some((text) => {
    const url = URL.parse(text)
    return url !== null && isLoopback(url)
  })
}
