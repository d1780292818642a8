import type { Merchant } from '../../config/Config'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { readReport } from './figures'
import { figure, percent, table, usd } from './parts'
import type { AdminContext, MerchantState } from './sources'

/** Merchants with their state, prices and figures. */
export async function merchantsPage({ config, ...sources }: AdminContext): Promise<Html> {
  const pauses = await sources.ledger.pauses()
  const { report, isWhole } = await readReport(sources, 'merchant', 30)
  const rows = sources.merchants().map((state) => {
    const { slug } = state.merchant
    const own = report.lines.filter((line) => line.class === 'sale' && line.merchant === slug)
    const {
      asked = 0,
      paid = 0,
      failed = 0,
    } = report.requests.find((line) => line.merchant === slug) ?? {}
    return {
      ...state,
      ...state.merchant,
      isPaused: pauses.some(({ kind, name }) => kind === 'merchant' && name === slug),
      revenue: own.reduce((sum, line) => sum + (line.usd.revenue ?? 0n), 0n),
      ...{ asked, paid, failed },
    }
  })
  const limited = rows.filter(({ health, isPaused }) => health !== 'available' || isPaused)
  const next =
    limited.length === 0
      ? html`<p><strong>Nothing to do here:</strong> every merchant is available.</p>`
      : html`<p><strong>Look at</strong> ${limited.map(({ slug, title }, index) => html`${index > 0 && ', '}<a href="#${slug}">${title}</a>`)}: ${limited.length === 1 ? 'it does' : 'they do'} not sell, or not everything.</p>`
  return html`<h1>Merchants</h1>
${rows.length > 0 && next}
<p class="quiet">Figures of the last 30 days. Conversion: the share of requests that got a price (402) and were then paid. Answer time: of the newest 200 since the start.</p>
${!isWhole && html`<p class="note" role="status">The figures of earlier days are being added up. Load the page again in a moment.</p>`}
${table(
  'Merchants',
  rows,
  [
    [
      'Merchant',
      ({ slug, title }) =>
        html`<strong id="${slug}">${title}</strong>${title.toLowerCase() !== slug && html`<br><code>${slug}</code>`}`,
    ],
    ['State', stateOf],
    [
      'Sales',
      ({ slug, title, isPaused }) =>
        html`<a href="/admin/actions/${isPaused ? 'resume' : 'pause'}?subject=merchant:${slug}">${isPaused ? 'Resume' : 'Pause'}<span class="hidden"> ${title}</span></a>`,
    ],
    ['Price', pricesOf, 'number'],
    ['Revenue', ({ revenue }) => usd(revenue), 'number'],
    ['Paid requests', ({ paid }) => figure(paid), 'number'],
    ['Conversion', ({ paid, asked }) => percent(paid, asked), 'number'],
    ['Failed', ({ failed }) => figure(failed), 'number'],
    ['Answer time', timesOf, 'number'],
    ['Routes', ({ routes }) => routes.length, 'number'],
  ],
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

type Shown = Pick<MerchantState, 'health'> & Pick<Merchant, 'outOfService'> & { isPaused: boolean }

function stateOf({ health, outOfService, isPaused }: Shown): Html {
  if (isPaused)
    return html`${badge('fair', 'sales paused')}<br><span class="quiet">upstream ${healths[health][1]}</span>`
  const isUnset = health === 'out-of-service' && outOfService !== undefined
  return html`${badge(...healths[health])}${isUnset && html` <code>${outOfService}</code> is not set`}`
}

/** The median, and the time in which 95 % were answered. */
function timesOf({ times }: Pick<MerchantState, 'times'>): Html {
  if (times === undefined) return html`<span class="quiet">none yet</span>`
  return html`${milliseconds(times.medianMs)}<br><span class="quiet">95 % below ${milliseconds(times.p95Ms)}</span>`
}

function milliseconds(ms: number): string {
  return `${ms.toLocaleString('en')} ms`
}

/** `$0.005` or `$0.005 to $0.02`; by use the price is the most that a request costs. */
function pricesOf({ routes }: Pick<Merchant, 'routes'>): Html {
  const prices = routes.map(({ priceAtomic }) => priceAtomic).toSorted((a, b) => (a < b ? -1 : 1))
  const [least, most] = [prices[0], prices.at(-1)]
  if (least === undefined || most === undefined) return html`<span class="quiet">no route</span>`
  return least === most ? usd(least) : html`${usd(least)} to ${usd(most)}`
}
