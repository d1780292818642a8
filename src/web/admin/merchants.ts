import type { Config, Merchant } from '../../config/Config'
import { type Html, html } from '../html'
import { readReport } from './figures'
import { badge, count, percent, table, usd } from './parts'
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
    const paid = own.reduce((sum, line) => sum + (line.usd.paid ?? 0n), 0n)
    const requests = report.requests.find((line) => line.merchant === slug)
    const { asked = 0, paid: bought = 0, failed = 0 } = requests ?? {}
    const paused = isPaused(slug)
    return [
      html`<strong>${title}</strong><br><code>${slug}</code>`,
      html`${stateOf(state)}${paused && html`<br>${badge('fair', 'sales paused')}`}`,
      timesOf(state),
      pricesOf(state.merchant),
      routes.length,
      usd(paid),
      count(bought),
      percent(bought, asked),
      count(failed),
      html`<a href="/admin/actions/${paused ? 'resume' : 'pause'}?subject=merchant:${slug}">${paused ? 'Resume' : 'Pause'}<span class="hidden"> ${title}</span></a>`,
    ]
  })
  const number = (title: string) => ({ title, isNumber: true })
  return html`<h1>Merchants</h1>
<p class="quiet">Figures of the last 30 days. The health follows the last paid requests. "Answers in" is the median of the newest 200 since the start, and the time in which 95 % of them were answered.</p>
${!isWhole && html`<p class="note" role="status">The figures of earlier days are being added up. Load the page again in a moment.</p>`}
${table(
  'Merchants',
  [
    'Merchant',
    'State',
    number('Answers in'),
    number('Price'),
    number('Routes'),
    number('Revenue'),
    number('Paid requests'),
    number('Paid of 402'),
    number('Failed'),
    'Sales',
  ],
  rows,
  'The file has no merchants.',
)}
${config.stock !== undefined && html`<p class="quiet">The stock desk is on the page of <a href="/admin/orders">orders</a>.</p>`}`
}

function stateOf({ health, merchant }: MerchantState): Html {
  switch (health) {
    case 'available':
      return badge('good', 'available')
    case 'partly':
      return badge('fair', 'partly available')
    case 'unavailable':
      return badge('bad', 'not answering')
    case 'out-of-service':
      return merchant.outOfService === undefined
        ? badge('bad', 'out of service')
        : html`${badge('bad', 'out of service')} <code>${merchant.outOfService}</code> is not set`
  }
}

/** `120 ms (95 % in 480 ms)`. */
function timesOf({ times }: MerchantState): Html {
  if (times === undefined) return html`<span class="quiet">none yet</span>`
  return html`${milliseconds(times.medianMs)}<br><span class="quiet">95 % in ${milliseconds(times.p95Ms)}</span>`
}

function milliseconds(ms: number): string {
  return `${ms.toLocaleString('en')} ms`
}

/** `$0.005` or `$0.005 to $0.02`; by use the price is the most that a request costs. */
function pricesOf({ routes }: Merchant): Html {
  const prices = routes.map(({ priceAtomic }) => priceAtomic).toSorted((a, b) => (a < b ? -1 : 1))
  const [least, most] = [prices[0], prices.at(-1)]
  if (least === undefined || most === undefined) return html`-`
  return least === most ? usd(least) : html`${usd(least)} to ${usd(most)}`
}
