import * as Books from '../../books/Books'
import * as Funnel from '../../books/Funnel'
import * as Group from '../../books/Group'
import { type Html, html } from '../html'
import { freeOf, sumOf } from './figures'
import { type Column, figure, percent, short, table, time, usd } from './parts'
import { addingUp, rangeForm, readRange } from './range'
import type { AdminContext } from './sources'

/** Most lines of a page; `turnpike sales` has all. */
const shownMax = 100

/** What was earned in a period: those are the figures of `turnpike sales`. */
export async function salesPage(context: AdminContext, params: URLSearchParams): Promise<Html> {
  const now = context.now()
  const chosen = readRange(params, Books.groupings, now)
  const { range, by, fault } = chosen
  await context.flushRequests()
  const report = fault === undefined ? await context.ranges.sales(range, by) : undefined
  return html`<h1>Sales</h1>
${rangeForm('/admin/sales', chosen, Books.groupings, now)}
${fault === undefined && (report === undefined ? addingUp : earned(report, by))}`
}

function earned(report: Books.Report, by: Books.By): Html {
  const sum = sumOf(report)
  const of = (wanted: Books.Line['class']) => report.lines.filter((line) => line.class === wanted)
  const lines = of('sale')
  const [own, settled] = [of('own'), of('facilitator')]
  return html`<dl class="numbers">
<div><dt>Net revenue, after gas</dt><dd>${usd(sum.margin)}</dd></div>
<div><dt>Revenue</dt><dd>${usd(sum.revenue)}</dd></div>
<div><dt>Gas of sales</dt><dd>${usd(sum.gas)}</dd></div>
<div><dt>Payments</dt><dd>${figure(sum.payments)}</dd></div>
${sum.refunds > 0 && html`<div><dt>Payments refunded</dt><dd>${figure(sum.refunds)}</dd></div>`}
${freeOf(report).map(([name, times]) => times > 0 && html`<div><dt>${name}</dt><dd>${figure(times)}</dd></div>`)}
${report.channels.map(({ asset, usd: unclaimed }) => html`<div><dt><a href="/admin/channels">Not on chain yet</a>, ${asset.networkName}</dt><dd>${usd(unclaimed)}</dd></div>`)}
</dl>
<h2>${by === 'payer' ? 'Top payers' : `By ${by}`}</h2>
${salesTable('Sales', by, lines)}
${lines.length > shownMax && html`<p class="quiet">The first ${shownMax} of ${figure(lines.length)} lines.</p>`}
${report.isCut && html`<p class="note" role="status">There are too many payers: the figures end at ${time(report.to)}. <code>turnpike sales --by payer</code> has all.</p>`}
${own.length > 0 && html`<h2>Own wallets, not in the sums</h2>${salesTable('Own wallets', by, own)}`}
${settled.length > 0 && html`<h2>Settled for other servers, not in the sums</h2>${salesTable('Settled for other servers', by, settled)}`}
<p class="quiet">Revenue: what was delivered, without what was swapped for stock. These are the figures of <code>turnpike sales --by ${by}</code>.</p>`
}

function salesTable(name: string, by: Books.By, lines: readonly Books.Line[]): Html {
  const first: Column<Books.Line> = [
    by === 'network' ? 'Network' : titleOf(by),
    (line) =>
      line.payer === undefined
        ? Group.nameOf(line) || line.asset.networkName
        : html`<a href="/admin/payments?q=${line.payer}">${short(line.payer)}</a>`,
  ]
  return table(
    { list: name },
    lines.slice(0, shownMax),
    [
      first,
      ['Net revenue', ({ usd: { margin } }) => usd(margin), 'number'],
      ['Revenue', ({ usd: { revenue } }) => usd(revenue), 'number'],
      ['Payments', ({ figures }) => figure(figures.payments), 'number'],
      ['Paid', ({ usd: { paid } }) => usd(paid), 'number'],
      ['Not delivered', ({ figures }) => figure(figures.undelivered), 'number'],
      ['Refunded', ({ figures }) => figure(figures.refunds), 'number'],
      ['Gas', ({ usd: { gas } }) => usd(gas), 'number'],
      ['Network', ({ asset }) => asset.networkName, 'number'],
    ],
    'Nothing was sold in this period.',
  )
}

function titleOf(by: string): string {
  return `${by.slice(0, 1).toUpperCase()}${by.slice(1)}`
}

/** What became of the visitors of a period: those are the figures of `turnpike sales --funnel`. */
export async function funnelPage(context: AdminContext, params: URLSearchParams): Promise<Html> {
  const now = context.now()
  const chosen = readRange(params, Funnel.groupings, now)
  const { range, by, fault } = chosen
  await context.flushRequests()
  const report = fault === undefined ? await context.ranges.funnel(range, by) : undefined
  return html`<h1>Funnel</h1>
${rangeForm('/admin/funnel', chosen, Funnel.groupings, now)}
${fault === undefined && (report === undefined ? addingUp : visits(report))}`
}

function visits({ by, lines, total }: Funnel.Report): Html {
  const refusals = Funnel.sorted(total.refused)
  const presented = Funnel.sorted(total.tried).map(([name, times]) => `${times} ${name}`)
  return html`<dl class="numbers">
<div><dt>Got a price (402)</dt><dd>${figure(total.asked)}</dd></div>
<div><dt>Tried to pay</dt><dd>${figure(Funnel.sumOf(total.tried))}</dd></div>
<div><dt>Refused or failed</dt><dd>${figure(Funnel.sumOf(total.refused))}</dd></div>
<div><dt>Paid</dt><dd>${figure(total.paid)}</dd></div>
<div><dt>Buyers</dt><dd>${figure(total.buyers)}</dd></div>
<div><dt>Came again</dt><dd>${figure(total.again)}</dd></div>
</dl>
<h2>By ${by === 'client' ? 'kind of client' : by}</h2>
${table(
  { list: 'Funnel' },
  lines.slice(0, shownMax),
  [
    [by === 'client' ? 'Client' : titleOf(by), (line) => Group.nameOf(line)],
    ['402', ({ asked }) => figure(asked), 'number'],
    ['Tries', ({ tried }) => figure(Funnel.sumOf(tried)), 'number'],
    ['Refused', ({ refused }) => figure(Funnel.sumOf(refused)), 'number'],
    ['Paid', ({ paid }) => figure(paid), 'number'],
    ['Paid of 402', ({ paid, asked }) => percent(paid, asked), 'number'],
    ['Buyers', ({ buyers }) => figure(buyers), 'number'],
    ['Came again', ({ again }) => figure(again), 'number'],
    ['Own wallets', ({ own }) => figure(own), 'number'],
    ['Free', ({ free }) => figure(Funnel.sumOf(free)), 'number'],
  ],
  html`No request came in this period.`,
)}
${refusals.length > 0 && html`<h2>Why tries were refused or failed</h2>`}
${
  refusals.length > 0 &&
  table('Reasons', refusals, [
    ['Reason', ([reason]) => html`<code>${reason}</code>`],
    ['Times', ([, times]) => figure(times), 'number'],
  ])
}
${presented.length > 0 && html`<p class="quiet">Tries by what was presented: ${presented.join(', ')}.</p>`}
<p class="quiet">Whole UTC days. Paid: confirmed payments of buyers; those of own wallets stand apart. A buyer counts once a day, and came again when it has paid on an earlier day. The kind of a client comes from its <code>User-Agent</code> and protocol; neither texts nor addresses are kept. Free: answers of a pass, a trial, or fetched again. These are the figures of <code>turnpike sales --funnel</code>; <a href="/problems">what the codes mean</a>.</p>`
}
