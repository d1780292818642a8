import type { Config, NetworkConfig, Stock } from '../config/Config'
import { dollars } from './catalogue'
import { type Html, html } from './html'
import { walletPanel } from './panel'

/** The tokens of `[stock]`. The script fills in live values where `GET /api/stock/list` answers. */
export function stocksPage(config: Config, stock: Stock, isLive: boolean): Html {
  const network = config.networks.find(({ id }) => id === stock.network)
  const symbol = network?.asset.symbol ?? ''
  const api = `${config.service.stockBaseUrl}/api/stock`
  return html`<h1>Tokenized stocks</h1>
<p class="lead">${stock.tokens.length} tokens on ${network?.name ?? stock.network}, bought with one signature: ${symbol} goes out, the token arrives at your address, and the gas is paid for you.</p>
<p>An order is ${dollars(stock.minAtomic)} to ${dollars(stock.maxAtomic)} ${symbol}. The fee is ${percent(stock.feeBps)}. If the price falls below the floor of the token, the whole amount goes back.</p>
<div class="scroll" role="region" aria-label="Tokens" tabindex="0">
<table class="stocks"${isLive && html` data-list="/api/stock/list"`}>
<caption>Tokens${isLive && html` <span class="quiet" role="status"></span>`}</caption>
<thead><tr><th scope="col">Symbol</th><th scope="col">Name</th>${
    isLive && html`<th scope="col" class="number">Price</th><th scope="col">State</th>`
  }<th scope="col" class="number">Slippage floor</th><th scope="col">Contract</th></tr></thead>
<tbody>${stock.tokens.map(
    (token) =>
      html`<tr data-symbol="${token.symbol}"><th scope="row">${token.symbol}</th><td>${token.name}</td>${
        isLive && html`<td class="number" data-field="price">-</td><td data-field="status">-</td>`
      }<td class="number">${percent(token.slippageBps)}</td><td><code>${token.address}</code></td></tr>`,
  )}</tbody>
</table>
</div>
${isLive && html`<p class="quiet scriptless">Live prices need JavaScript here; <a href="/api/stock/list">the list for programs</a> has them, too.</p>`}
${isLive && network !== undefined && buyForm(stock, network)}
<h2>Buy by a program</h2>
<ol class="steps">
<li>${command('The tokens with live prices', `curl '${api}/list'`)}</li>
<li>${command('What an amount buys now', `curl '${api}/quote?symbol=${first(stock)}&usdg=10'`)}</li>
<li>${command('Request the terms, sign them, send the same request with the signature', `curl -i -X POST '${api}/buy?symbol=${first(stock)}&usdg=10'`)}</li>
</ol>`
}

function buyForm(stock: Stock, network: NetworkConfig): Html {
  const usdg = dollars(stock.minAtomic)
  const target = `/api/stock/buy?symbol=${first(stock)}&usdg=${usdg}`
  return html`<h2 id="buy">Buy</h2>
<form class="order">
<label>Stock <select name="symbol">${stock.tokens.map(
    ({ symbol, name }) => html`<option value="${symbol}">${symbol}, ${name}</option>`,
  )}</select></label>
<label>${network.asset.symbol} <input name="usdg" inputmode="decimal" value="${usdg}" autocomplete="off"></label>
<p class="quote" role="status"></p>
</form>
${walletPanel({ method: 'POST', target, body: '', offers: [{ network }] })}`
}

function command(note: string, text: string): Html {
  return html`<div class="command"><p>${note}</p><pre><code>${text}</code></pre></div>`
}

function first({ tokens }: Stock): string {
  return encodeURIComponent(tokens[0]?.symbol ?? '')
}

function percent(bps: number): string {
  return `${bps / 100} %`
}
