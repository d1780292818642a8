import {
  type Ask,
  count,
  dayMs,
  isoDate,
  number,
  once,
  type Reply,
  type Route,
  range,
  todayMs,
} from './reply'

type Row = Readonly<Record<string, string>>
type Table = { types: Readonly<Record<string, string>>; rows(): readonly Row[] }

const common = {
  record_fiscal_year: 'YEAR',
  record_fiscal_quarter: 'QUARTER',
  record_calendar_year: 'YEAR',
  record_calendar_quarter: 'QUARTER',
  record_calendar_month: 'MONTH',
  record_calendar_day: 'DAY',
}

function calendar(date: string): Row {
  const [year = '', month = '', day = ''] = date.split('-')
  const quarter = Math.ceil(Number(month) / 3)
  return {
    record_fiscal_year: String(Number(year) + (Number(month) >= 10 ? 1 : 0)),
    record_fiscal_quarter: String((quarter % 4) + 1),
    record_calendar_year: year,
    record_calendar_quarter: String(quarter),
    record_calendar_month: month,
    record_calendar_day: day,
  }
}

const debt: Table = {
  types: {
    record_date: 'DATE',
    debt_held_public_amt: 'CURRENCY',
    intragov_hold_amt: 'CURRENCY',
    tot_pub_debt_out_amt: 'CURRENCY',
    src_line_nbr: 'NUMBER',
    ...common,
  },
  rows: once(() =>
    range(730)
      .map((ago) => isoDate(todayMs - (730 - ago) * dayMs))
      .filter((date) => ![0, 6].includes(new Date(date).getUTCDay()))
      .map((date) => {
        const held = number(`public|${date}`, 31_200_000_000_000, 31_300_000_000_000, 2)
        const internal = number(`internal|${date}`, 7_690_000_000_000, 7_700_000_000_000, 2)
        return {
          record_date: date,
          debt_held_public_amt: held.toFixed(2),
          intragov_hold_amt: internal.toFixed(2),
          tot_pub_debt_out_amt: (held + internal).toFixed(2),
          src_line_nbr: '1',
          ...calendar(date),
        }
      }),
  ),
}

const currencies =
  'Canada-Dollar,Mexico-Peso,Euro Zone-Euro,Japan-Yen,United Kingdom-Pound,Switzerland-Franc,India-Rupee,Brazil-Real,Kenya-Shilling,Australia-Dollar'
const quarterEnds = range(5).flatMap((year) =>
  ['03-31', '06-30', '09-30', '12-31'].map((day) => `${2022 + year}-${day}`),
)
const exchangeRates: Table = {
  types: {
    record_date: 'DATE',
    country: 'STRING',
    currency: 'STRING',
    country_currency_desc: 'STRING',
    exchange_rate: 'NUMBER',
    effective_date: 'DATE',
    src_line_nbr: 'NUMBER',
    ...common,
  },
  rows: once(() =>
    quarterEnds
      .filter((date) => date <= isoDate(todayMs))
      .flatMap((date) =>
        currencies.split(',').map((description, index) => {
          const [country = '', currency = ''] = description.split('-')
          return {
            record_date: date,
            country,
            currency,
            country_currency_desc: description,
            exchange_rate: number(`${description}|${date}`, 0.5, 150, 3).toFixed(3),
            effective_date: date,
            src_line_nbr: String(index + 1),
            ...calendar(date),
          }
        }),
      ),
  ),
}

const securities =
  'Treasury Bills,Treasury Notes,Treasury Bonds,Treasury Inflation-Protected Securities (TIPS),Total Marketable'
const interestRates: Table = {
  types: {
    record_date: 'DATE',
    security_type_desc: 'STRING',
    security_desc: 'STRING',
    avg_interest_rate_amt: 'PERCENTAGE',
    src_line_nbr: 'NUMBER',
    ...common,
  },
  rows: once(() =>
    range(36).flatMap((month) => {
      const date = isoDate(Date.UTC(2023, 11 + month, 0))
      return securities.split(',').map((security, index) => ({
        record_date: date,
        security_type_desc: 'Marketable',
        security_desc: security,
        avg_interest_rate_amt: number(`${security}|${date}`, 1, 5, 3).toFixed(3),
        src_line_nbr: String(index + 1),
        ...calendar(date),
      }))
    }),
  ),
}

const compare: Readonly<Record<string, (order: number) => boolean>> = {
  eq: (order) => order === 0,
  lt: (order) => order < 0,
  lte: (order) => order <= 0,
  gt: (order) => order > 0,
  gte: (order) => order >= 0,
}

function order(type: string | undefined, left: string, right: string): number {
  if (type === 'NUMBER' || type === 'CURRENCY' || type === 'PERCENTAGE')
    return Number(left) - Number(right)
  return left < right ? -1 : left > right ? 1 : 0
}

function bad(message: string): Reply {
  return { status: 400, body: { error: 'Invalid Query Param', message } }
}

/** Whether a row matches `field:operator:value`; undefined for an invalid filter. */
function passes(table: Table, row: Row, text: string): boolean | undefined {
  const [, field = '', operator = '', value = ''] = /^([^:]+):([^:]+):(.*)$/.exec(text) ?? []
  const type = table.types[field]
  if (type === undefined) return undefined
  const actual = row[field] ?? ''
  if (operator === 'in')
    return value
      .replace(/^\(|\)$/g, '')
      .split(',')
      .includes(actual)
  return compare[operator]?.(order(type, actual, value))
}

function answer(table: Table, { url }: Ask): Reply {
  const query = url.searchParams
  // Several filters are a comma list, but so are the values of `in:(a,b)`.
  const filters = (query.get('filter') ?? '').split(/,(?=\w+:\w+:)/).filter(Boolean)
  const wrong = filters.find((text) => passes(table, table.rows()[0] ?? {}, text) === undefined)
  if (wrong !== undefined) return bad(`Invalid filter '${wrong}'`)
  const sorts = (query.get('sort') ?? '').split(',').filter(Boolean)
  const names = (query.get('fields') ?? Object.keys(table.types).join(',')).split(',')
  for (const name of [...names, ...sorts.map((sort) => sort.replace(/^-/, ''))]) {
    if (!Object.hasOwn(table.types, name)) return bad(`Invalid field '${name}'`)
  }
  const rows = table
    .rows()
    .filter((row) => filters.every((text) => passes(table, row, text)))
    .sort((left, right) => {
      for (const sort of sorts) {
        const name = sort.replace(/^-/, '')
        const result = order(table.types[name], left[name] ?? '', right[name] ?? '')
        if (result !== 0) return sort.startsWith('-') ? -result : result
      }
      return 0
    })
  return envelope(table, rows, names, url)
}

function envelope(table: Table, rows: readonly Row[], names: readonly string[], url: URL): Reply {
  const size = Math.max(1, count(url, 'page[size]', 100, 10_000))
  const page = Math.max(1, count(url, 'page[number]', 1, 100_000))
  const pages = Math.ceil(rows.length / size)
  const data = rows
    .slice((page - 1) * size, page * size)
    .map((row) => Object.fromEntries(names.map((name) => [name, row[name] ?? 'null'])))
  const link = (to: number) => `&page%5Bnumber%5D=${to}&page%5Bsize%5D=${size}`
  const typeOf = (name: string) => table.types[name] ?? 'STRING'
  const each = (make: (name: string) => string) =>
    Object.fromEntries(names.map((name) => [name, make(name)]))
  const title = (name: string) =>
    name.replaceAll('_', ' ').replace(/\b\w/g, (letter) => letter.toUpperCase())
  return {
    body: {
      data,
      meta: {
        count: data.length,
        labels: each(title),
        dataTypes: each(typeOf),
        dataFormats: each((name) => (typeOf(name) === 'DATE' ? 'YYYY-MM-DD' : 'String')),
        'total-count': rows.length,
        'total-pages': pages,
      },
      links: {
        self: link(page),
        first: link(1),
        prev: page > 1 ? link(page - 1) : null,
        next: page < pages ? link(page + 1) : null,
        last: link(pages),
      },
    },
  }
}

const base = '/services/api/fiscal_service'

/** Fiscal Data of the US Treasury. */
export const routes: readonly Route[] = [
  {
    path: new RegExp(`^${base}/v2/accounting/od/debt_to_penny$`),
    answer: (ask) => answer(debt, ask),
  },
  {
    path: new RegExp(`^${base}/v1/accounting/od/rates_of_exchange$`),
    answer: (ask) => answer(exchangeRates, ask),
  },
  {
    path: new RegExp(`^${base}/v2/accounting/od/avg_interest_rates$`),
    answer: (ask) => answer(interestRates, ask),
  },
]
