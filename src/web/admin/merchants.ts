import type { Config, Merchant } from '../../config/Config'
import { type Html, html } from '../html'
import { readReport } from './figures'
import { badge, count, number, percent, type Tone, table, usd } from './parts'
import type { MerchantState, Sources } from './sources'

/** Merchants with their state, prices and figures. */
export async function merchantsPage(config: Config, sources: Sources): Promise<Html> {
  const pauses = await sources.ledger.pauses()
  const { report, isWhole } = await readReport(sources, 'merchant', 30)
  const isPaused = (slug: string) =>
    pauses.some(({ kind, name }) => kind === 'merchant' && name === slug)
  const rows = sources.merchants().map((state) => {
    const { slug, routes, title } = state.merchant
    const own = report.lines.filter((line) => line.class === 'sale' && line.merchant === slug)
    const revenue = own.reduce((sum, line) => sum + (line.usd.revenue ?? 0n), 0n)
    const requests = report.requests.find((line) => line.merchant === slug)
    const { asked = 0, paid: bought = 0, failed = 0 } = requests ?? {}
    const paused = isPaused(slug)
    return [
      html`<strong id="${slug}">${title}</strong>${title.toLowerCase() !== slug && html`<br><code>${slug}</code>`}`,
      paused
        ? html`${badge('fair', 'sales paused')}<br><span class="quiet">upstream ${healths[state.health][1]}</span>`
        : stateOf(state),
      html`<a href="/admin/actions/${paused ? 'resume' : 'pause'}?subject=merchant:${slug}">${paused ? 'Resume' : 'Pause'}<span class="hidden"> ${title}</span></a>`,
      pricesOf(state.merchant),
      usd(revenue),
      count(bought),
      percent(bought, asked),
      count(failed),
      timesOf(state),
      routes.length,
    ]
  })
  const limited = sources
    .merchants()
    .filter(({ health, merchant }) => health !== 'available' || isPaused(merchant.slug))
  const next =
    limited.length === 0
      ? html`<p><strong>Nothing to do here:</strong> every merchant is available.</p>`
      : html`<p><strong>Look at</strong> ${limited.map(({ merchant }, index) => html`${index > 0 && ', '}<a href="#${merchant.slug}">${merchant.title}</a>`)}: ${limited.length === 1 ? 'it does' : 'they do'} not sell, or not everything.</p>`
  return html`<h1>Merchants</h1>
${rows.length > 0 && next}
<p class="quiet">Figures of the last 30 days. Conversion: the share of requests that got a price (402) and were then paid. Answer time: of the newest 200 since the start.</p>
${!isWhole && html`<p class="note" role="status">The figures of earlier days are being added up. Load the page again in a moment.</p>`}
${table(
  'Merchants',
  [
    'Merchant',
    'State',
    'Sales',
    number('Price'),
    number('Revenue'),
    number('Paid requests'),
    number('Conversion'),
    number('Failed'),
    number('Answer time'),
    number('Routes'),
  ],
  rows,
  html`No merchant is in the file. <strong>First step:</strong> add a <code>[[merchants]]</code> block with a route, then <a href="/admin/configuration">reload the file</a>.`,
)}
${config.stock !== undefined && html`<p class="quiet">The stock desk is on the page of <a href="/admin/orders">orders</a>.</p>`}`
}

const healths: Readonly<Record<MerchantState['health'], readonly [Tone, string]>> = {
  available: ['good', 'available'],
  partly: ['fair', 'partly available'],
  unavailable: ['bad', 'not answering'],
  'out-of-service': ['bad', 'out of service'],
}

function stateOf({ health, merchant: { outOfService } }: MerchantState): Html {
  const isUnset = health === 'out-of-service' && outOfService !== undefined
  return html`${badge(...healths[health])}${isUnset && html` <code>${outOfService}</code> is not set`}`
}

/** The median, and the time in which 95 % were answered. */
function timesOf({ times }: MerchantState): Html {
  if (times === undefined) return html`<span class="quiet">none yet</span>`
  return html`${milliseconds(times.medianMs)}<br><span class="quiet">95 % below ${milliseconds(times.p95Ms)}</span>`
}

function milliseconds(ms: number): string {
  return `${ms.toLocaleString('en')} ms`
}

/** `$0.005` or `$0.005 to $0.02`; by use the price is the most that a request costs. */
function pricesOf({ routes }: Merchant): Html {
  const prices = routes.map(({ priceAtomic }) => priceAtomic).toSorted((a, b) => (a < b ? -1 : 1))
  const [least, most] = [prices[0], prices.at(-1)]
  if (least === undefined || most === undefined) return html`<span class="quiet">no route</span>`
  return least === most ? usd(least) : html`${usd(least)} to ${usd(most)}`
}
