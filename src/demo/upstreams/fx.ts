import { type Ask, dayMs, isoDate, list, number, type Reply, type Route, today } from './reply'

// Units of a currency for one euro.
const currencies: Readonly<Record<string, readonly [string, number]>> = {
  AUD: ['Australian Dollar', 1.66],
  BRL: ['Brazilian Real', 6.11],
  CAD: ['Canadian Dollar', 1.52],
  CHF: ['Swiss Franc', 0.94],
  CNY: ['Chinese Renminbi Yuan', 7.85],
  CZK: ['Czech Koruna', 24.6],
  DKK: ['Danish Krone', 7.46],
  EUR: ['Euro', 1],
  GBP: ['British Pound', 0.86],
  HKD: ['Hong Kong Dollar', 8.42],
  HUF: ['Hungarian Forint', 392.4],
  IDR: ['Indonesian Rupiah', 17890],
  ILS: ['Israeli New Shekel', 3.81],
  INR: ['Indian Rupee', 96.2],
  ISK: ['Icelandic Krona', 146.1],
  JPY: ['Japanese Yen', 167.3],
  KRW: ['South Korean Won', 1561],
  MXN: ['Mexican Peso', 20.9],
  MYR: ['Malaysian Ringgit', 4.72],
  NOK: ['Norwegian Krone', 11.7],
  NZD: ['New Zealand Dollar', 1.87],
  PHP: ['Philippine Peso', 63.5],
  PLN: ['Polish Zloty', 4.27],
  RON: ['Romanian Leu', 5.06],
  SEK: ['Swedish Krona', 11.1],
  SGD: ['Singapore Dollar', 1.46],
  THB: ['Thai Baht', 37.9],
  TRY: ['Turkish Lira', 46.8],
  USD: ['United States Dollar', 1.08],
  ZAR: ['South African Rand', 19.6],
}

const notFound: Reply = { status: 404, body: { message: 'not found' } }
const first = '1999-01-04'

function perEuro(code: string, date: string): number {
  const rate = currencies[code]?.[1] ?? Number.NaN
  return code === 'EUR' ? 1 : rate * number(`${code}|${date}`, 0.97, 1.03, 5)
}

// The last working day until a date: the bank publishes on working days only.
function workingDay(date: string): string {
  const ms = Date.parse(`${date}T00:00:00Z`)
  const weekday = new Date(ms).getUTCDay()
  return isoDate(ms - (weekday === 0 ? 2 : weekday === 6 ? 1 : 0) * dayMs)
}

function isDate(date: string): boolean {
  return !Number.isNaN(Date.parse(`${date}T00:00:00Z`)) && date >= first
}

function baseOf({ url }: Ask): string {
  return (url.searchParams.get('base') ?? url.searchParams.get('from') ?? 'EUR').toUpperCase()
}

function rates(ask: Ask, date: string): Record<string, number> | undefined {
  const { url } = ask
  const base = baseOf(ask)
  const wanted = [...list(url, 'symbols'), ...list(url, 'to')].map((code) => code.toUpperCase())
  const symbols = wanted.length > 0 ? wanted : Object.keys(currencies)
  if (![base, ...symbols].every((code) => Object.hasOwn(currencies, code))) return undefined
  const amount = Number(url.searchParams.get('amount') ?? 1)
  const entries = symbols
    .filter((code) => code !== base)
    .map((code) => {
      const rate = (amount * perEuro(code, date)) / perEuro(base, date)
      return [code, Number(rate.toPrecision(5))] as const
    })
  return Object.fromEntries(entries)
}

function head(ask: Ask) {
  return { amount: Number(ask.url.searchParams.get('amount') ?? 1), base: baseOf(ask) }
}

function single(ask: Ask, asked: string): Reply {
  if (!isDate(asked)) return notFound
  const date = workingDay(asked < today ? asked : today)
  const found = rates(ask, date)
  return found ? { body: { ...head(ask), date, rates: found } } : notFound
}

function between(ask: Ask): Reply {
  const [from = '', to = ''] = ask.captures
  const end = workingDay(to && to < today ? to : today)
  if (!isDate(from) || (to && !isDate(to)) || from > end) return notFound
  const start = workingDay(from)
  const days = new Set<string>()
  for (let ms = Date.parse(start); ms <= Date.parse(end); ms += dayMs) {
    days.add(workingDay(isoDate(ms)))
  }
  const all = [...days].map((date) => [date, rates(ask, date)] as const)
  if (all.some(([, found]) => found === undefined)) return notFound
  const body = { ...head(ask), start_date: start, end_date: end, rates: Object.fromEntries(all) }
  return { body }
}

/** Frankfurter v1. */
export const routes: readonly Route[] = [
  { path: /^\/v1\/latest$/, answer: (ask) => single(ask, today) },
  {
    path: /^\/v1\/currencies$/,
    answer: () => ({
      body: Object.fromEntries(Object.entries(currencies).map(([code, [name]]) => [code, name])),
    }),
  },
  {
    path: /^\/v1\/(\d{4}-\d{2}-\d{2})$/,
    answer: (ask) => single(ask, ask.captures[0] ?? ''),
  },
  { path: /^\/v1\/(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})?$/, answer: between },
]
