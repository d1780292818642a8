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
  // A chain on this machine, as in the demo, has the id of a public one and other transactions.
  const isPublic = network !== undefined && !network.rpcUrls.some(isLocal)
  const url = isPublic ? urls[network.id] : undefined
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

function isLocal(url: string): boolean {
  return /^(localhost|127\.[\d.]+|\[::1\])$/.test(URL.parse(url)?.hostname ?? '')
}
