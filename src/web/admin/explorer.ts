import type { NetworkConfig } from '../../config/Config'
import { type Html, html } from '../html'

/** Shows a hash or an address whole, with a link where the network has a public explorer. */
export type Explorer = {
  transaction(hash: string): Html
  account(address: string): Html
}

/** Explorers of the networks that the executable knows. */
const urls: Readonly<Record<string, string>> = {
  'eip155:8453': 'https://basescan.org',
  'eip155:84532': 'https://sepolia.basescan.org',
  'eip155:4663': 'https://robinhoodchain.blockscout.com',
}

export function createExplorer(
  network: Pick<NetworkConfig, 'id' | 'rpcUrls'> | undefined,
): Explorer {
  const url = network === undefined || isLocal(network) ? undefined : urls[network.id]
  const link = (path: string, text: string) => {
    const whole = html`<code class="hash">${text}</code>`
    const isHex = /^0x[0-9a-f]+$/i.test(text)
    return url === undefined || !isHex
      ? whole
      : html`<a href="${url}/${path}/${text}" rel="noreferrer">${whole}</a>`
  }
  return {
    transaction: (hash) => link('tx', hash),
    account: (address) => link('address', address),
  }
}

/** A chain on this machine, as in the demo, has the id of a public one and other transactions. */
export function isLocal({ rpcUrls }: Pick<NetworkConfig, 'rpcUrls'>): boolean {
  return rpcUrls.some((url) =>
    /^(localhost|127\.[\d.]+|\[::1\])$/.test(URL.parse(url)?.hostname ?? ''),
  )
}
