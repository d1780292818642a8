import { type Static, Type } from '@sinclair/typebox'
import type { Address, Hex } from 'viem'
import {
  type AdminLedger,
  type Outcome,
  outcomes,
  type PaymentFilter,
  type PaymentLine,
} from '../../../db/admin'
import { timeOf } from '../../../db/sales'
import { cell } from '../../books/formats'
import type { Config } from '../../config/Config'
import * as Schema from '../../protocol/Schema'
import { type Html, html } from '../html'
import { adminHeaders } from './layout'
import { type Names, outcomeBadge, outcomeWord, purposeOf, readNames } from './names'
import { duration, short, table, time } from './parts'
import type { AdminContext, AdminSources } from './sources'

const pageLength = 50
const csvMax = 1_000

export async function paymentsPage(context: AdminContext, params: URLSearchParams): Promise<Html> {
  const { search, fault } = readSearch(params)
  const names = await readNames(context)
  const found: Found =
    fault === undefined
      ? await findPayments(context, search, pageLength)
      : { lines: [], next: undefined, fault }
  const isSearch = toQuery({ ...search, before: undefined }) !== ''
  return html`<h1>Payments</h1>
${searchForm(context.config, search)}
${found.fault !== undefined && html`<p class="fault" role="alert">${found.fault}</p>`}
${found.fault === undefined && list(found, { names, now: context.now() }, isSearch)}
${found.searchedTo !== undefined && html`<p class="note" role="status">Searched back to ${time(timeOf(found.searchedTo))}. Older payments may fit, too.</p>`}
<div class="row">
${found.lines.length === 0 && isSearch && html`<a class="button second" href="/admin/payments">Show all payments</a>`}
${found.next !== undefined && html`<a class="button second" href="/admin/payments${toQuery({ ...search, before: found.next })}">Older</a>`}
${search.before !== undefined && html`<a class="button second" href="/admin/payments${toQuery({ ...search, before: undefined })}">Newest</a>`}
${found.lines.length > 0 && html`<a href="/admin/payments.csv${toQuery(search)}">These as CSV, up to ${csvMax.toLocaleString('en')}</a>`}
<a href="/admin/refunds">Refunds</a>
</div>`
}

function searchForm({ merchants, stock }: Config, search: Search): Html {
  const slugs = [...merchants.map(({ slug }) => slug), ...(stock === undefined ? [] : ['stock'])]
  const option = (value: string, text: string, isChosen: boolean) =>
    html`<option value="${value}"${isChosen && selected}>${text}</option>`
  return html`<form class="search" method="get" action="/admin/payments" role="search">
<label class="broad">Id, transaction, channel or payer <input name="q" value="${search.q ?? ''}" maxlength="80" autocomplete="off" spellcheck="false"></label>
<label>Merchant <select name="merchant">${option('', 'all', search.merchant === undefined)}${slugs.map((slug) => option(slug, slug, search.merchant === slug))}</select></label>
<label>Route <input name="route" value="${search.route ?? ''}" maxlength="300" placeholder="/forecast" autocomplete="off"></label>
<label>State <select name="state">${option('', 'all', search.state === undefined)}${outcomes.map((each) => option(each, outcomeWord(each), search.state === each))}</select></label>
<div><button>Search</button></div>
</form>`
}

const selected = html` selected`

function list(
  { lines: found }: Found,
  { names, now }: { names: Names; now: number },
  isSearch: boolean,
): Html {
  return table(
    { list: 'Payments' },
    found,
    [
      [
        'Received',
        ({ id }) =>
          html`<a href="/admin/payments/${id}">${time(timeOf(id))} <span class="wide">${short(id)}</span></a>`,
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
  ['transaction', ({ method, transaction }) => (method === 'channel' ? undefined : transaction)],
  ['upstream_status', ({ upstreamStatus }) => upstreamStatus],
  ['channel', ({ method, transaction }) => (method === 'channel' ? transaction : undefined)],
]

/** The lines of a search as CSV (RFC 4180); no cell is a formula. */
export async function paymentsCsv(
  context: AdminContext,
  params: URLSearchParams,
): Promise<Response> {
  const { search, fault } = readSearch(params)
  const names = await readNames(context)
  const { lines } =
    fault === undefined ? await findPayments(context, search, csvMax) : { lines: [] }
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

/** The query of `GET /admin/payments`. */
export const searchQuery = Type.Object({
  q: Type.Optional(
    Type.String({
      maxLength: 80,
      description:
        'id of a payment, an order or a channel, hash of a transaction, or address of a payer',
      fault: 'is longer than an id, a hash or an address',
    }),
  ),
  merchant: Type.Optional(Type.String({ maxLength: 100 })),
  route: Type.Optional(Type.String({ maxLength: 300 })),
  state: Type.Optional(
    Type.Union(
      outcomes.map((each) => Type.Literal(each)),
      { fault: 'is not a state' },
    ),
  ),
  before: Type.Optional(
    Type.String({ pattern: '^pay_[0-9a-f]{12,32}$', fault: 'is not an id of a payment' }),
  ),
})

type Fields = Static<typeof searchQuery>
type Search = { [Name in keyof Fields]?: Fields[Name] | undefined }

type Found = {
  lines: readonly PaymentLine[]
  /** Where older ones begin; undefined at the end. */
  next: string | undefined
  /** The search stopped here, before it had a whole page. */
  searchedTo?: string | undefined
  /** Why the search cannot be understood. */
  fault?: string | undefined
}

/** Rows of one read, which takes some milliseconds, and reads of one page. */
const windowRows = 2_000
const windowsMax = 25
/** A payer with more payments is searched like all payments. */
const payerMax = 1_000

/** The search of a query. `fault` names a field that cannot be read. Empty fields are ignored. */
function readSearch(params: URLSearchParams): { search: Search; fault: string | undefined } {
  const filled = new URLSearchParams([...params].filter(([, value]) => value.trim() !== ''))
  const { values, wrong } = Schema.readQuery(searchQuery, filled)
  const [first] = wrong
  const fault = first && `${first.name === 'q' ? 'The search' : first.name} ${first.reason}.`
  return { search: values as Search, fault }
}

/** The payments that fit, the newest first. */
export async function findPayments(
  { ledger }: Pick<AdminSources, 'ledger'>,
  search: Search,
  limit: number,
): Promise<Found> {
  const { merchant, route, state, before } = search
  const filter: PaymentFilter = { merchant, route, outcome: state as Outcome | undefined }
  const text = search.q?.trim() ?? ''
  if (text !== '') {
    if (/^0x[0-9a-f]{40}$/i.test(text))
      return ofPayer(ledger, { ...filter, payer: text as Address }, before, limit)
    const ids = await idsOf(ledger, text)
    if (ids === undefined) return { lines: [], next: undefined, fault: hint }
    const lines = await Promise.all(ids.map((id) => lineOf(ledger, id)))
    return { lines: lines.filter((line) => line !== undefined), next: undefined }
  }
  if (state === 'pending' && merchant === undefined && route === undefined)
    return pageOf(await ledger.pendingPayments({ before, limit: limit + 1 }), limit)
  return walk(ledger, filter, before, limit)
}

const hint =
  'Write an id such as pay_... or ord_..., a transaction or a channel (0x and 64 digits) or a payer (0x and 40 digits).'

/** Ids of the payments that a text names; undefined when it is none of the known forms. */
async function idsOf(ledger: AdminLedger, text: string): Promise<readonly string[] | undefined> {
  if (/^0x[0-9a-f]{64}$/i.test(text))
    return (await ledger.inChannel(text as Hex, pageLength)) ?? ledger.inTransaction(text as Hex)
  if (/^pay_[0-9a-f]{1,40}$/.test(text)) return [text]
  if (!/^ord_[0-9a-f]{1,40}$/.test(text)) return undefined
  const payment = await ledger.paymentOfOrder(text)
  return payment === undefined ? [] : [payment]
}

async function lineOf(ledger: AdminLedger, id: string): Promise<PaymentLine | undefined> {
  const { lines } = await ledger.payments({}, { before: `${id}~`, limit: 1, rows: 1 })
  return lines[0]?.id === id ? lines[0] : undefined
}

async function ofPayer(
  ledger: AdminLedger,
  filter: PaymentFilter & { payer: Address },
  before: string | undefined,
  limit: number,
): Promise<Found> {
  const all = await ledger.ofPayer(filter.payer, payerMax)
  if (all === undefined) return walk(ledger, filter, before, limit)
  const fitting = all.filter(
    ({ id, merchant, route, outcome }) =>
      (before === undefined || id < before) &&
      (filter.merchant === undefined || merchant === filter.merchant) &&
      (filter.route === undefined || route === filter.route) &&
      (filter.outcome === undefined || outcome === filter.outcome),
  )
  return pageOf(fitting, limit)
}

function pageOf(lines: readonly PaymentLine[], limit: number): Found {
  const shown = lines.slice(0, limit)
  return { lines: shown, next: lines.length > limit ? shown.at(-1)?.id : undefined }
}

/** Reads from the newest on, part by part, and lets other work run between the parts. */
async function walk(
  ledger: AdminLedger,
  filter: PaymentFilter,
  before: string | undefined,
  limit: number,
): Promise<Found> {
  const lines: PaymentLine[] = []
  let next = before
  for (let read = 0; read < windowsMax; read++) {
    const page = { before: next, limit: limit - lines.length, rows: windowRows }
    const found = await ledger.payments(filter, page)
    lines.push(...found.lines)
    next = found.next
    if (next === undefined || lines.length >= limit) return { lines, next }
    await new Promise((resolve) => setImmediate(resolve))
  }
  return { lines, next, searchedTo: next }
}

/** The query of a search, without empty fields. */
function toQuery(search: Search): string {
  const params = new URLSearchParams()
  for (const name of ['q', 'merchant', 'route', 'state', 'before'] as const) {
    const entered = search[name] ?? ''
    if (entered !== '') params.set(name, entered)
  }
  const text = params.toString()
  return text === '' ? '' : `?${text}`
}
