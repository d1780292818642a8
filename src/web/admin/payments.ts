import { outcomes, type PaymentLine } from '../../../db/admin'
import { cell } from '../../books/formats'
import type { Config } from '../../config/Config'
import { type Html, html } from '../html'
import { adminHeaders } from './layout'
import { createNames, type Names, outcomeBadge, outcomeWord, purposeOf } from './names'
import { duration, short, table, time } from './parts'
import { type Found, find, parse, type Search, toQuery } from './search'
import type { Sources } from './sources'

const pageLength = 50
const csvMax = 1_000

export async function paymentsPage(
  config: Config,
  sources: Sources,
  params: URLSearchParams,
): Promise<Html> {
  const { search, fault } = parse(params)
  const names = createNames(config, await sources.assets())
  const found: Found =
    fault === undefined
      ? await find(sources, search, pageLength)
      : { lines: [], next: undefined, fault }
  const isSearch = toQuery({ ...search, before: undefined }) !== ''
  return html`<h1>Payments</h1>
${searchForm(config, search)}
${found.fault !== undefined && html`<p class="fault" role="alert">${found.fault}</p>`}
${found.fault === undefined && list(found, { names, now: sources.now() }, isSearch)}
${found.searchedTo !== undefined && html`<p class="note" role="status">Searched back to ${time(timeOf(found.searchedTo))}. Older payments may fit, too.</p>`}
<div class="row">
${found.lines.length === 0 && isSearch && html`<a class="button second" href="/admin/payments">Show all payments</a>`}
${found.next !== undefined && html`<a class="button second" href="/admin/payments${toQuery({ ...search, before: found.next })}">Older</a>`}
${search.before !== undefined && html`<a class="button second" href="/admin/payments${toQuery({ ...search, before: undefined })}">Newest</a>`}
${found.lines.length > 0 && html`<a href="/admin/payments.csv${toQuery(search)}">These as CSV, up to ${csvMax.toLocaleString('en')}</a>`}
</div>`
}

function searchForm({ merchants, stock }: Config, search: Search): Html {
  const slugs = [...merchants.map(({ slug }) => slug), ...(stock === undefined ? [] : ['stock'])]
  const option = (value: string, text: string, isChosen: boolean) =>
    html`<option value="${value}"${isChosen && selected}>${text}</option>`
  return html`<form class="search" method="get" action="/admin/payments" role="search">
<label class="broad">Id, transaction or payer <input name="q" value="${search.q ?? ''}" maxlength="80" autocomplete="off" spellcheck="false"></label>
<label>Merchant <select name="merchant">${option('', 'all', search.merchant === undefined)}${slugs.map((slug) => option(slug, slug, search.merchant === slug))}</select></label>
<label>Route <input name="route" value="${search.route ?? ''}" maxlength="300" placeholder="/forecast" autocomplete="off"></label>
<label>State <select name="state">${option('', 'all', search.state === undefined)}${outcomes.map((each) => option(each, outcomeWord(each), search.state === each))}</select></label>
<div><button>Search</button></div>
</form>`
}

const selected = html` selected`

function list(
  { lines }: Found,
  { names, now }: { names: Names; now: number },
  isSearch: boolean,
): Html {
  return table(
    'Payments',
    lines,
    [
      [
        'Received',
        ({ id }) => html`<a href="/admin/payments/${id}">${time(timeOf(id))} ${short(id)}</a>`,
      ],
      [
        'State',
        ({ outcome, createdAt }) =>
          html`${outcomeBadge(outcome)}${outcome === 'pending' && ` for ${duration(now - createdAt)}`}`,
      ],
      ['Amount', (line) => names.amount(line.amountAtomic, line), 'number'],
      ['For', purposeOf],
      ['Network', ({ network }) => names.network(network)],
      [
        'Payer',
        ({ payer }) => html`<a class="quiet" href="/admin/payments?q=${payer}">${short(payer)}</a>`,
      ],
    ],
    isSearch
      ? 'No payment fits this search.'
      : html`There are no payments yet. Make the first one yourself: buy something in <a href="/">the shop</a>.`,
  )
}

/** The time in the id of a payment: when its request came, unix ms. */
function timeOf(id: string): number {
  const at = Number.parseInt(id.slice(4, 16), 16)
  return Number.isSafeInteger(at) ? at : 0
}

type Csv = readonly [
  name: string,
  value: (line: PaymentLine, names: Names) => Parameters<typeof cell>[0],
]

const csv: readonly Csv[] = [
  ['received', ({ id }) => new Date(timeOf(id)).toISOString()],
  ['id', ({ id }) => id],
  ['state', ({ outcome }) => outcome],
  ['merchant', ({ merchant }) => merchant],
  ['route', ({ route }) => route],
  ['network', ({ network }) => network],
  ['network_name', ({ network }, names) => names.network(network)],
  ['asset', ({ asset }) => asset],
  ['symbol', (line, names) => names.asset(line).symbol],
  ['decimals', (line, names) => names.asset(line).decimals],
  ['amount_atomic', ({ amountAtomic }) => amountAtomic],
  ['payer', ({ payer }) => payer],
  ['payee', ({ payee }) => payee],
  ['protocol', ({ protocol }) => protocol],
  ['transaction', ({ transaction }) => transaction],
  ['upstream_status', ({ upstreamStatus }) => upstreamStatus],
]

/** The lines of a search as CSV (RFC 4180); no cell is a formula. */
export async function paymentsCsv(
  config: Config,
  sources: Sources,
  params: URLSearchParams,
): Promise<Response> {
  const { search, fault } = parse(params)
  const names = createNames(config, await sources.assets())
  const { lines } = fault === undefined ? await find(sources, search, csvMax) : { lines: [] }
  const head = csv.map(([name]) => name).join(',')
  const rows = lines.map((line) => csv.map(([, value]) => cell(value(line, names))).join(','))
  return new Response(`${[head, ...rows].join('\r\n')}\r\n`, {
    headers: {
      ...adminHeaders,
      'content-type': 'text/csv; charset=utf-8; header=present',
      'content-disposition': 'attachment; filename="payments.csv"',
    },
  })
}
