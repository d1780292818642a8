import type { Config, NetworkConfig, Stock, StockToken } from '../../config/Config'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import { orderStates } from './OrderState'
import { walletPanel } from './panel'
import * as SaleState from './SaleState'
import { type Point, sparkline } from './Sparkline'

type Live = {
  /** Whether the list of prices is served. */
  isLive: boolean
  /** Of the stock desk. */
  state: SaleState.SaleState
  /** The token that is chosen in the form. */
  symbol: string | undefined
  /** Prices of a token in the last day. */
  pricesOf: (symbol: string) => readonly Point[]
}

/** The tokens of `[stock]`. The script fills in live values where `GET /api/stock/list` answers. */
export function stocksPage(config: Config, stock: Stock, live: Live): Html {
  const { isLive, state, symbol, pricesOf } = live
  const network = config.networks.find(({ id }) => id === stock.network)
  const coin = network?.asset.symbol ?? ''
  const chosen = stock.tokens.find((token) => token.symbol === symbol) ?? stock.tokens[0]
  const { sells, text } = SaleState.states[state]
  const isSold = isLive && network !== undefined && chosen !== undefined
  return html`<div class="head"><h1>Tokenized stocks</h1>
<p class="lead">Buy ${Parts.count(stock.tokens.length, 'token')} on ${network?.name ?? stock.network} with one signature. ${coin}, a dollar coin, leaves your wallet, and the token arrives at your address. The gas is paid for you.</p>
${isSold && sells && html`<p class="actions"><a class="button" href="#buy">Buy a stock</a></p>`}
${!sells && html`<p class="notice bad">${text}</p>`}
<ul class="facts">
<li><span>One order</span> <strong>${money(stock.minAtomic)} to ${money(stock.maxAtomic)}</strong></li>
<li><span>Fee</span> <strong>${percent(stock.feeBps)}</strong></li>
<li><span>If the price moves too far</span> <strong>all of it comes back</strong></li>
</ul></div>
<div class="market">
${table(stock, { isLive, pricesOf })}
${isSold && buyForm(config, stock, { network, chosen, closed: text })}
</div>
${programs(config, stock)}`
}

function table(stock: Stock, { isLive, pricesOf }: Pick<Live, 'isLive' | 'pricesOf'>): Html {
  const lines = stock.tokens.map(({ symbol }) => sparkline(symbol, pricesOf(symbol)))
  const hasLines = lines.some((line) => line !== undefined)
  return html`<section aria-labelledby="tokens">
<div class="heading"><h2 id="tokens">Tokens</h2>
${isLive && html`<p class="quiet live" role="status">Reading the prices ...</p><p class="quiet scriptless">Live prices need JavaScript here. <a href="/api/stock/list">The list for programs</a> has them, too.</p>`}</div>
<div class="scroll" role="region" aria-label="Tokens and prices" tabindex="0">
<table class="stocks"${isLive && html` data-list="/api/stock/list" data-states="${JSON.stringify(SaleState.tokenStates)}"`}>
<thead><tr><th scope="col">Stock</th>${
    isLive && html`<th scope="col" class="number">Price</th><th scope="col">State</th>`
  }${hasLines && html`<th scope="col">Last day</th>`}<th scope="col" class="number">Slippage</th><th scope="col">Contract</th>${isLive && html`<th scope="col" class="order">Order</th>`}</tr></thead>
<tbody>${stock.tokens.map((token, at) => row(token, { isLive, line: hasLines && (lines[at] ?? none) }))}</tbody>
</table>
</div>
<p class="quiet">Slippage is how far a price may move against you between the quote and the purchase. Beyond it, the whole amount comes back to you.</p>
</section>`
}

const none = html`<span class="quiet">-</span>`

type Cells = { isLive: boolean; line: Html | false }

function row({ symbol, name, slippageBps, address }: StockToken, { isLive, line }: Cells): Html {
  const query = new URLSearchParams({ symbol }).toString()
  return html`<tr data-symbol="${symbol}"><th scope="row"><span class="symbol">${symbol}</span> <span class="quiet">${name}</span></th>${
    isLive &&
    html`<td class="number"><span data-field="price">-</span></td><td><span data-field="status">-</span></td>`
  }${line && html`<td>${line}</td>`}<td class="number">${percent(slippageBps)}</td><td>${Parts.address(address)}</td>${
    isLive &&
    html`<td class="order"><a class="button plain" href="/stocks?${query}#buy" data-buy="${symbol}" aria-label="Buy ${symbol}">Buy</a></td>`
  }</tr>`
}

/** What a buyer has to know before the button. */
function statements({ service }: Config, { seller, restrictions, risk }: Stock): Html {
  const by = seller ?? `The operator of ${service.title} sells the tokens, and is paid for them.`
  return html`<dl class="statements"><dt>Seller</dt><dd>${by}</dd><dt>Not for</dt><dd>${restrictions}</dd><dt>Risk</dt><dd>${risk}</dd></dl>`
}

type Form = { network: NetworkConfig; chosen: StockToken; closed: string }

function buyForm(config: Config, stock: Stock, { network, chosen, closed }: Form): Html {
  const usdg = Parts.dollars(stock.minAtomic)
  const target = `/api/stock/buy?${new URLSearchParams({ symbol: chosen.symbol, usdg }).toString()}`
  return html`<section class="buy" id="buy" aria-labelledby="order">
<h2 id="order">Buy</h2>
<form class="order">
<div class="field"><label for="symbol">Stock</label>
<select id="symbol" name="symbol">${stock.tokens.map(
    (token) =>
      html`<option value="${token.symbol}"${token === chosen && html` selected`}>${token.symbol}, ${token.name}</option>`,
  )}</select></div>
<div class="field"><label for="usdg">Amount in ${network.asset.symbol}</label>
<input id="usdg" name="usdg" inputmode="decimal" value="${usdg}" autocomplete="off"></div>
<p class="quote" role="status"></p>
</form>
${statements(config, stock)}
${walletPanel({
  method: 'POST',
  target,
  body: '',
  offers: [{ network }],
  data: html` data-orders="${JSON.stringify(orderStates)}"`,
  leastAtomic: (stock.minAtomic * BigInt(10_000 + stock.feeBps) + 9_999n) / 10_000n,
  seller: config.service.title,
  closed,
  page: [
    config.service.baseUrl,
    `/stocks?${new URLSearchParams({ symbol: chosen.symbol }).toString()}`,
  ],
  note: 'You sign a transfer in your wallet. The order appears here, until its end.',
})}
</section>`
}

function programs({ service }: Config, stock: Stock): Html {
  const api = `${service.stockBaseUrl}/api/stock`
  const [first] = stock.tokens
  const query = `symbol=${encodeURIComponent(first?.symbol ?? '')}&usdg=10`
  const steps = [
    ['Read the tokens with their prices', `curl '${api}/list'`],
    ['See what an amount buys now', `curl '${api}/quote?${query}'`],
    [
      'Request the terms. Sign them, and send the same request with the signature',
      `curl -i -X POST '${api}/buy?${query}'`,
    ],
  ] as const
  return html`<section class="programs" aria-labelledby="programs"><h2 id="programs">Buy by a program</h2>
<ol class="numbered">${steps.map(
    ([note, text]) => html`<li><p>${note}</p>${Parts.command(note.toLowerCase(), text)}</li>`,
  )}</ol></section>`
}

/** `$1`, `$1,000`, `$0.50`. */
function money(atomic: bigint): string {
  const [whole = '', cents = ''] = Parts.dollars(atomic).split('.')
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',')
  return `$${grouped}${/^0+$/.test(cents) ? '' : `.${cents}`}`
}

function percent(bps: number): string {
  return `${bps / 100} %`
}
