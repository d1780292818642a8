import type { Config } from '../../config/Config'
import { publicFacts } from '../chains'
import { type Html, html } from '../html'
import * as Parts from '../parts'
import { detailOf, orderStates } from './OrderState'

/** An order of the stock desk, by the JSON of `GET /api/stock/order/{id}`. */
export function orderPage(
  { networks, stock, service }: Config,
  order: Readonly<Record<string, string>>,
): Html {
  const {
    id = '',
    symbol,
    status = '',
    createdAt = '',
    usdgAtomic = '0',
    totalAtomic = usdgAtomic,
  } = order
  const network = networks.find((each) => each.id === stock?.network)
  const explorer = network && publicFacts(network).explorer
  const coin = network?.asset.symbol ?? ''
  const { text, tone } = orderStates[status] ?? { text: status }
  const time = `${createdAt.slice(0, 16).replace('T', ' ')} UTC`
  const transaction = (hash: string) =>
    html`${Parts.address(hash)}${explorer !== undefined && html` <a href="${explorer}/tx/${hash}" rel="noreferrer">See it in the explorer</a>`}`
  const rows: readonly [name: string, value: string | Html | undefined][] = [
    ['order', html`<code>${id}</code>`],
    ['ordered', time],
    ['seller', stock?.seller ?? service.title],
    [
      'paid',
      `${Parts.dollars(BigInt(totalAtomic))} ${coin}${network === undefined ? '' : ` on ${network.name}`}`,
    ],
    ['paid by', order.payer && Parts.address(order.payer)],
    ['tokens for', order.recipient && Parts.address(order.recipient)],
    ['payment', order.settlementTx && transaction(order.settlementTx)],
    ['bought in', order.swapTx && transaction(order.swapTx)],
    ['sent back in', order.refundTx && transaction(order.refundTx)],
    ['reason', order.heldReason ?? order.refundReason],
  ]
  return html`<nav class="crumbs" aria-label="Breadcrumb"><a href="/stocks">Stocks</a></nav>
<div class="receipt"${tone === undefined && html` data-open`}>
<h1>Order of ${symbol}</h1>
<p>${Parts.badge(tone ?? 'plain', status)}</p>
<p class="lead" role="status">${text}</p>
<p>${detailOf(order, coin)}</p>
<dl>${rows.map(([name, value]) => value !== undefined && value !== '' && html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
<p class="actions"><button type="button" class="plain print">Print</button> ${tone === undefined && html`<a href="/orders/${id}">Read its state again</a>`}</p>
</div>`
}
