import type { Merchant, NetworkConfig, Route } from '../../config/Config'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import { publicFacts } from '../chains'
import { type Html, html } from '../html'
import { command, dollars, networksOf } from '../parts'
import type { Command } from './Commands'
import { linkOf } from './catalogue'
import { elsewhere, howToGet } from './Elsewhere'

/** A request that can be paid from the page, and what it costs on each network. */
type Purchase = {
  method: string
  /** Path and query. */
  target: string
  /** The body of the request; '' without one. */
  body: string
  offers: readonly PageOffer[]
  /** What happens after a press of the button, for the buyer. */
  note?: string
  /** The least that can be paid, where an offer has no amount. */
  leastAtomic?: bigint
  /** Title of the merchant that is paid. */
  seller: string
  /** Why nothing can be paid now; '' where something can. A payment that is kept continues. */
  closed: string
  /** The address of the page: URL of the service, path and query. */
  page: readonly [baseUrl: string, target: string]
  /** Further data for the script. */
  data?: Html
}

const settled =
  'You sign a transfer in your wallet. When it is settled, the answer appears here with a receipt.'

/** Without an amount it depends on what the user enters. */
type PageOffer = { network: NetworkConfig; amountAtomic?: bigint | undefined }

/**
 * The panel that `wallet.js` fills. The answer comes above the buttons, which then buy it once more. The
 * script asks for a 402 and signs one of its offers; it refuses an offer above the amount here.
 */
export function walletPanel(purchase: Purchase): Html {
  const { method, target, body, offers, note = settled, seller, closed, page } = purchase
  const networks = offers.map(({ network, amountAtomic }) => {
    const { id, chainId, name, asset } = network
    const { address, symbol, decimals } = asset
    const amount = amountAtomic?.toString()
    const facts = publicFacts(network)
    return { id, chain: chainId, name, asset: address, symbol, decimals, amount, ...facts }
  })
  return html`<section class="wallet" data-method="${method}" data-target="${target}" data-body="${body}" data-networks="${JSON.stringify(networks)}" data-seller="${seller}" data-closed="${closed}"${purchase.data} aria-label="Pay with your wallet">
<div class="progress" role="status">${closed || note}</div>
<p class="keeps quiet">You may close this page. This browser keeps the payment for 24 hours: open the page again, and it fetches the answer without a second payment.</p>
<div class="result"></div>
<label>Network <select name="network">
${offers.length > 1 && html`<option value="">One that my wallet can pay on</option>`}
${offers.map(
  ({ network, amountAtomic }) =>
    html`<option value="${network.id}">${offerText({ network, amountAtomic })}</option>`,
)}
</select></label>
<div class="wallets"></div>
</section>
${
  closed === '' &&
  html`<p class="notice scriptless">Paying in the browser needs JavaScript. The commands need none.</p>
${elsewhere(...page)}
${howToGet(offers, purchase.leastAtomic)}`
}`
}

/** The assets of networks have 6 decimals. */
function offerText({ network: { asset, name }, amountAtomic }: PageOffer): string {
  const coin = `${asset.symbol} on ${name}`
  return amountAtomic === undefined ? coin : `${dollars(amountAtomic)} ${coin}`
}

/** What a wallet has at a route without a further payment, and whether its money comes back. */
export function given(
  networks: readonly NetworkConfig[],
  merchant: Merchant,
  route: Route,
): Html | false {
  const back =
    merchant.refund === 'undelivered' &&
    html`<p class="hint">If an answer cannot be delivered, its money comes back to the wallet after a day.</p>`
  const pass = Entitlements.passAt(merchant, route)
  if (pass !== undefined)
    return html`<p>The pass belongs to the wallet that pays. A program with the key of this wallet makes the requests: it signs in at <a href="${linkOf(merchant, pass.opens)}">${pass.opens.summary || pass.opens.path}</a>.</p>`
  const lines = Entitlements.linesOf(route, networksOf(networks, merchant))
  if (lines.length === 0) return back
  return html`<dl class="given">${lines.map(
    ([kind, text]) =>
      html`<dt>${words[kind]}</dt><dd>${kind === 'pass' ? html`<a href="${linkOf(merchant, { path: `${route.path}/pass` })}">${text}</a>` : text}</dd>`,
  )}</dl>
<p class="hint">A program uses them: it signs in with its wallet, as the command for @x402/fetch does.</p>
${back}`
}

const words = { trial: 'Trial', pass: 'Pass', again: 'Again' } as const

/** Text of a command, and data from which the script makes it for other values. */
type Tab = Command & { templates?: Readonly<Record<string, string>> | undefined }

/**
 * Commands as tabs. Without scripts there is no list of tabs, and all commands are visible, one below
 * the other.
 */
export function commandTabs(tabs: readonly Tab[]): Html {
  const idOf = ({ name }: Tab) => name.replace(/[^A-Za-z0-9]+/g, '').toLowerCase()
  return html`<div class="tabs">
<div class="tablist" role="tablist" aria-label="Tools">${tabs.map(
    (tab, at) =>
      html`<button type="button" role="tab" id="tab-${idOf(tab)}" aria-controls="code-${idOf(tab)}" aria-selected="${at === 0 ? 'true' : 'false'}" tabindex="${at === 0 ? '0' : '-1'}">${tab.name}</button>`,
  )}</div>
${tabs.map((tab) => {
  const { name, note, text, templates } = tab
  const data =
    templates === undefined ? undefined : html` data-templates="${JSON.stringify(templates)}"`
  return html`<div class="tabpanel" role="tabpanel" id="code-${idOf(tab)}" aria-labelledby="tab-${idOf(tab)}">
<p class="note"><strong class="tabname">${name}</strong> ${note}</p>
${command(name, text, data)}
</div>`
})}
</div>`
}
