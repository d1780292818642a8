import type { NetworkConfig } from '../config/Config'
import * as Amount from '../protocol/Amount'
import { type Html, html } from './html'

/** A request that can be paid from the page, and what it costs on each network. */
export type Purchase = {
  method: string
  /** Path and query. */
  target: string
  /** The body of the request; '' without one. */
  body: string
  offers: readonly PageOffer[]
}

/** Without an amount it depends on what the user enters. */
export type PageOffer = { network: NetworkConfig; amountAtomic?: bigint | undefined }

/**
 * The panel that `wallet.js` fills. What is signed is an offer of the 402 which the script asks for;
 * it refuses one above the amount here.
 */
export function walletPanel({ method, target, body, offers }: Purchase): Html {
  const networks = offers.map(({ network: { id, chainId, name, asset }, amountAtomic }) => {
    const { address, symbol, decimals } = asset
    const amount = amountAtomic?.toString()
    return { id, chain: chainId, name, asset: address, symbol, decimals, amount }
  })
  return html`<section class="wallet" data-method="${method}" data-target="${target}" data-body="${body}" data-networks="${JSON.stringify(networks)}" aria-label="Pay with your wallet" hidden>
<label>Network <select name="network">
<option value="">The one of my wallet</option>
${offers.map(
  ({ network, amountAtomic }) =>
    html`<option value="${network.id}">${offerText({ network, amountAtomic })}</option>`,
)}
</select></label>
<div class="wallets"></div>
<div class="progress" role="status"></div>
<div class="result"></div>
</section>
<noscript><p>Paying in the browser needs JavaScript. The commands below need none.</p></noscript>`
}

function offerText({ network: { asset, name }, amountAtomic }: PageOffer): string {
  if (amountAtomic === undefined) return `${asset.symbol} on ${name}`
  const amount = Amount.toDecimal(amountAtomic, asset.decimals).replace(/(\.\d\d\d*?)0+$/, '$1')
  return `${amount} ${asset.symbol} on ${name}`
}
