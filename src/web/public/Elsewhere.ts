import type { NetworkConfig } from '../../config/Config'
import { isPrivate } from '../../config/values'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import { qr } from '../qr'

/** Longer addresses make a code that is slow to draw and hard to scan. */
const scannedMaxCharacters = 160
const linkedMaxCharacters = 2000

/**
 * Where a browser without a wallet can open the same page: in the browser of a wallet on a phone, and from
 * a desktop on a phone. Wallets open only `https:`. The script hides it beside a wallet, and style.css
 * shows the half that fits the device; without either both are visible.
 */
export function elsewhere(baseUrl: string, target: string): Html | false {
  const url = URL.parse(`${baseUrl}${target}`)
  if (url === null || url.protocol !== 'https:' || isPrivate(url)) return false
  const { href, host, pathname, search } = url
  if (href.length > linkedMaxCharacters) return false
  const metaMask = `https://metamask.app.link/dapp/${host}${pathname}${search}`
  const coinbase = `https://go.cb-w.com/dapp?${new URLSearchParams({ cb_url: href }).toString()}`
  const code =
    href.length <= scannedMaxCharacters &&
    html`<div class="on-desktop">${qr(href, 'QR code of the address of this page', { isFast: true })}<p>Wallet on your phone? Scan this code: it opens this page there.</p></div>`
  return html`<div class="elsewhere"><div class="on-phone"><p>Open this page in a wallet on this phone:</p>
<p class="actions"><a class="button" href="${metaMask}" rel="noreferrer">Open in MetaMask</a> <a class="button plain" href="${coinbase}" rel="noreferrer">Open in Coinbase Wallet</a></p></div>
${code}</div>`
}

type Needed = { network: NetworkConfig; amountAtomic?: bigint | undefined }

/** What the asset of each network is, how a person gets some, and how much of it. */
export function howToGet(needed: readonly Needed[], leastAtomic?: bigint): Html {
  const symbols = [...new Set(needed.map(({ network }) => network.asset.symbol))]
  return html`<details class="funds"><summary>No ${symbols.join(' or ')}? Here is how</summary>
<dl>${needed.map(
    ({ network, amountAtomic = leastAtomic }) =>
      html`<dt>${Parts.coinOn(network)}</dt><dd>${aboutOf(network)}${
        amountAtomic !== undefined &&
        ` You need at least ${Parts.dollars(amountAtomic)} ${network.asset.symbol} here.`
      }</dd>`,
  )}</dl>
<p>You need no native coin such as ETH: the gas of the payment is paid for you.</p></details>`
}

function aboutOf({ name, testnet, asset: { symbol } }: NetworkConfig): string {
  if (testnet)
    return `Test money without a value. The faucet of ${symbol}, or of ${name}, sends some to the address of your wallet.`
  return `${symbol} is a dollar coin: one is worth one US dollar. Buy it in your wallet, or at an exchange that sends it to your wallet on ${name}. Coins on another network do not count here; a bridge or an exchange moves them.`
}
