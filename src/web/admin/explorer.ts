import type { NetworkConfig } from '../../config/Config'
import { publicFacts } from '../chains'
import { type Html, html } from '../html'

/** Shows a hash or an address whole, with a link where the network has a public explorer. */
export type Explorer = {
  transaction(hash: string): Html
  account(address: string): Html
}

export function createExplorer(
  network: Pick<NetworkConfig, 'id' | 'rpcUrls'> | undefined,
): Explorer {
  const { explorer: url } = network === undefined ? {} : publicFacts(network)
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
