import type { Line } from '../../books/Books'
import type { Config } from '../../config/Config'
import { dayMs, dayOf } from '../../protocol/Time'
import type { Details } from '../../settlement/state/availability'
import { type Html, html } from '../html'
import { badge } from '../parts'
import { type Attention, attentionOf, type Missing } from './attention'
import { type Figures, freeOf, periods, readFigures, requestsOf, sumOf, worthOf } from './figures'
import { bars, type Cell, type Column, figure, percent, table, usd } from './parts'
import type { AdminContext, AdminSources } from './sources'

/** The first page for an operator: numbers, what needs attention, then the last days. */
export async function overviewPage(context: AdminContext): Promise<Html> {
  const { config, ...sources } = context
  const figures = await readFigures(sources)
  const month = figures.reports.at(-1)
  const sum = month === undefined ? { payments: 0, undelivered: 0, redeemable: 0 } : sumOf(month)
  const missing = await missingOf(sources, sum)
  const attention = await attentionOf(context, missing)
  const now = sources.now()
  return html`<h1>Overview</h1>
${numbers(config, figures, { networks: sources.networks(), undelivered: missing.undelivered })}
<h2 id="attention">What needs attention</h2>
${attentionList(attention, figures.isWhole)}
<h2 id="days">The last days</h2>
${!figures.isWhole && html`<p class="note" role="status">The figures of earlier days are being added up: ${figures.days} of 30 are in them. Load the page again in a moment.</p>`}
${sum.payments === 0 ? firstSale(config) : chart(figures, now)}
${periodTable(figures)}
<p class="quiet">These are the figures of <code>turnpike sales</code>. A day begins at 0:00 UTC, and a payment belongs to the day on which its request came.</p>`
}

/** A younger payment without a failed attempt may be delivered at this moment, ms. */
const underwayMs = 60_000
/** Most payments that are read to find those; reading them takes some milliseconds. */
const underwayRows = 2_000

/** The undelivered answers, without those that are being delivered now. */
async function missingOf({ ledger, now }: AdminSources, sum: Missing): Promise<Missing> {
  if (sum.redeemable === 0) return sum
  const page = { before: undefined, limit: underwayRows, rows: underwayRows }
  const { lines } = await ledger.payments({ outcome: 'undelivered' }, page)
  const recent = lines.filter(({ createdAt }) => now() - createdAt < 29 * dayMs)
  const young = recent.filter(
    ({ createdAt, redeemUntil }) => redeemUntil === undefined && now() - createdAt < underwayMs,
  ).length
  const lost = sum.undelivered - sum.redeemable
  // A payment that came after the figures were read must not reduce their count of older ones.
  const undelivered = Math.max(sum.undelivered - young, recent.length - young, lost)
  return { undelivered, redeemable: undelivered - lost }
}

function numbers(
  config: Config,
  { reports: [today] }: Figures,
  { networks, undelivered }: { networks: readonly Details[]; undelivered: number },
): Html {
  const sum = today && sumOf(today)
  const networkOf = (id: string | undefined) => config.networks.find((each) => each.id === id)
  const least = leastGas(networks.filter(({ network }) => networkOf(network)?.testnet !== true))
  const name = networkOf(least?.network)?.name
  return html`<dl class="numbers">
<div><dt>Revenue today</dt><dd>${usd(sum?.revenue)}</dd></div>
<div><dt>Sales today</dt><dd>${figure(sum?.payments ?? 0)}</dd></div>
<div><dt>Not delivered, 30 days</dt><dd${undelivered > 0 ? html` class="bad"` : undefined}>${undelivered > 0 ? html`<a href="/admin/payments?state=undelivered">${figure(undelivered)}</a>` : figure(undelivered)}</dd></div>
<div><dt>Gas left${name !== undefined && `, least on ${name}`}</dt><dd${least?.isShort === true ? html` class="bad"` : undefined}>${least?.text ?? noGas(networks)}</dd></div>
</dl>`
}

/** Test networks are left out, because their coin costs nothing. */
function noGas(networks: readonly Details[]): string {
  if (networks.length === 0) return 'no network'
  return networks.some(({ cost }) => cost.priceWei > 0n) ? 'test networks only' : 'unknown'
}

/** The network whose relayers can pay for the fewest sales at the present fee. */
function leastGas(networks: readonly Details[]) {
  const all = networks.flatMap(({ network, relayers, cost }) => {
    const wei = relayers.reduce((sum, { balanceWei = 0n }) => sum + balanceWei, 0n)
    const each = cost.gas * cost.priceWei
    return each === 0n ? [] : [{ network, sales: Number(wei / each) }]
  })
  const [least] = all.toSorted((left, right) => left.sales - right.sales)
  const { network } = least ?? {}
  return least && { network, text: salesText(least.sales), isShort: least.sales < 100 }
}

/** `about 4,200 sales`: two significant digits; above a million the number is of no use. */
export function salesText(sales: number): string {
  if (sales < 1) return 'not one sale'
  if (sales >= 1e6) return 'plenty'
  const unit = 10 ** Math.max(0, String(Math.floor(sales)).length - 2)
  return `about ${(Math.floor(sales / unit) * unit).toLocaleString('en')} sales`
}

function attentionList(attention: readonly Attention[], isWhole: boolean): Html {
  if (attention.length === 0 && !isWhole)
    return html`<p class="empty">Nothing so far. The payments of earlier days are still being read.</p>`
  if (attention.length === 0)
    return html`<p class="empty">${badge('good', 'fine')} Nothing: all that is configured works.</p>`
  return html`<ul class="attention">${attention.map(
    ({ tone, word, what, more, image, link }) =>
      html`<li>${image}<div><p>${badge(tone, word)} <strong>${what}</strong></p>
${more !== undefined && html`<p>${more}</p>`}
${link !== undefined && html`<p><a href="${link[0]}">${link[1]}</a></p>`}</div></li>
`,
  )}</ul>`
}

/** The first steps, in place of a chart without data. */
function firstSale({ service, merchants }: Config): Html {
  const first = merchants.find(({ routes }) => routes.length > 0)
  const path = first && `/m/${first.slug}${first.routes[0]?.path ?? ''}`
  if (path === undefined)
    return html`<p class="empty">No sale in the last 30 days, and nothing to sell. <strong>First step:</strong> add a merchant with a route to the file, then <a href="/admin/configuration">reload it</a>.</p>`
  return html`<p class="empty">No sale in the last 30 days. <strong>First step:</strong> buy something yourself, in a browser from <a href="/">the shop</a>, or with <code>turnpike pay ${service.baseUrl}${path}</code>.</p>`
}

function chart({ reports }: Figures, now: number): Html {
  const byDay = new Map<string, bigint>()
  for (const { day = '', class: of, usd: value } of reports.at(-1)?.lines ?? [])
    if (of === 'sale') byDay.set(day, (byDay.get(day) ?? 0n) + (value.revenue ?? 0n))
  const values = Array.from({ length: 30 }, (_, index) => {
    const name = dayOf(now - (29 - index) * dayMs)
    return { name, micro: byDay.get(name) ?? 0n }
  })
  const label = `Revenue of each of the last 30 days in USD; the table below has the sums`
  return html`<figure>${bars(label, values)}<figcaption class="quiet">Revenue by day, USD</figcaption></figure>
<details><summary>Revenue by day as a table</summary>
${table('Revenue by day', values.toReversed(), [
  ['Day', ({ name }) => name],
  ['Revenue', ({ micro }) => usd(micro), 'number'],
])}</details>`
}

const names = ['Today', '7 days', '30 days'] as const

function periodTable({ reports }: Figures): Html {
  const sums = reports.map(sumOf)
  const requests = reports.map(requestsOf)
  const free = reports.map(freeOf)
  const worth = (name: Parameters<typeof worthOf>[1]) =>
    reports.map(({ totals }) => usd(worthOf(totals as readonly Line[], name)))
  const rows: readonly (readonly [name: string, ofPeriods: readonly Cell[]])[] = [
    ['Revenue', sums.map(({ revenue }) => usd(revenue))],
    ['Swapped for stock', sums.map(({ swapped }) => usd(swapped))],
    ['Paid', sums.map(({ paid }) => usd(paid))],
    ['Delivered', worth('deliveredAtomic')],
    ['Not delivered', worth('undeliveredAtomic')],
    ['Refunded', worth('refundedAtomic')],
    ['Payments refunded', sums.map(({ refunds }) => figure(refunds))],
    ['Gas of sales', sums.map(({ gas }) => usd(gas))],
    ['Margin after gas', sums.map(({ margin }) => usd(margin))],
    ['Payments', sums.map(({ payments }) => figure(payments))],
    ['Requests answered 402', requests.map(({ asked }) => figure(asked))],
    ['Paid requests', requests.map(({ paid }) => figure(paid))],
    ['Conversion, paid of 402', requests.map(({ asked, paid }) => percent(paid, asked))],
    ['Failed requests', requests.map(({ failed }) => figure(failed))],
    ...(free.at(-1) ?? []).flatMap(([name, most], at): typeof rows =>
      most > 0 ? [[name, free.map((of) => figure(of[at]?.[1] ?? 0))]] : [],
    ),
  ]
  return table('Figures of the last days', rows, [
    ['All networks', ([name]) => name],
    ...periods.map(
      (_, at): Column<(typeof rows)[number]> => [
        names[at] ?? '',
        ([, ofPeriods]) => ofPeriods[at] ?? '',
        'number',
      ],
    ),
  ])
}
