import { type Ask, count, number, type Reply, type Route } from './reply'

type Country = readonly [string, string, string, string, string, string, string]
const countries: readonly Country[] = [
  ['BRA', 'BR', 'Brazil', 'LCN|ZJ|Latin America & Caribbean ', 'Brasilia', '-47.9292', '-15.7801'],
  ['CHE', 'CH', 'Switzerland', 'ECS|Z7|Europe & Central Asia', 'Bern', '7.44821', '46.948'],
  ['CHN', 'CN', 'China', 'EAS|Z4|East Asia & Pacific', 'Beijing', '116.286', '40.0495'],
  ['DEU', 'DE', 'Germany', 'ECS|Z7|Europe & Central Asia', 'Berlin', '13.4115', '52.5235'],
  ['FRA', 'FR', 'France', 'ECS|Z7|Europe & Central Asia', 'Paris', '2.35097', '48.8566'],
  ['GBR', 'GB', 'United Kingdom', 'ECS|Z7|Europe & Central Asia', 'London', '-0.126236', '51.5002'],
  ['IND', 'IN', 'India', 'SAS|8S|South Asia', 'New Delhi', '77.225', '28.6353'],
  ['JPN', 'JP', 'Japan', 'EAS|Z4|East Asia & Pacific', 'Tokyo', '139.77', '35.67'],
  ['KEN', 'KE', 'Kenya', 'SSF|ZG|Sub-Saharan Africa ', 'Nairobi', '36.8126', '-1.27975'],
  ['USA', 'US', 'United States', 'NAC|XU|North America', 'Washington D.C.', '-77.032', '38.8895'],
]
const indicators: Readonly<Record<string, readonly [string, number]>> = {
  'NY.GDP.PCAP.CD': ['GDP per capita (current US$)', 50_000],
  'NY.GDP.MKTP.CD': ['GDP (current US$)', 4e12],
  'SP.POP.TOTL': ['Population, total', 9e7],
  'SP.DYN.LE00.IN': ['Life expectancy at birth, total (years)', 78],
}

// The real service reports its errors with status 200.
const invalid: Reply = {
  body: [
    {
      message: [
        { id: '120', key: 'Invalid value', value: 'The provided parameter value is not valid' },
      ],
    },
  ],
}

function find(iso: string): readonly Country[] {
  if (/^all$/i.test(iso)) return countries
  const wanted = iso.toUpperCase().split(';')
  const found = countries.filter(([iso3, iso2]) => wanted.includes(iso3) || wanted.includes(iso2))
  return found.length === wanted.length ? found : []
}

const perPageMax = 32_500
const date = /^(?:\d{4}(?:M(?:0[1-9]|1[0-2])|Q[1-4])?|YTD)$/

/** Whether all values of a query are valid; the real service refuses others, too. */
function isValid({ searchParams }: URL): boolean {
  const perPage = searchParams.get('per_page') ?? '50'
  const page = searchParams.get('page') ?? '1'
  const dates = searchParams.get('date')?.split(':') ?? []
  const isPaged = /^[1-9]\d{0,5}$/.test(page) && /^[1-9]\d{0,4}$/.test(perPage)
  const isDated = dates.length <= 2 && dates.every((one) => date.test(one))
  return isPaged && isDated && Number(perPage) <= perPageMax
}

function paged<T>(url: URL, rows: readonly T[], more: object, perPageIsText: boolean): Reply {
  const perPage = count(url, 'per_page', 50, perPageMax)
  const page = count(url, 'page', 1, 999_999)
  const head = {
    page,
    pages: Math.ceil(rows.length / perPage),
    per_page: perPageIsText ? String(perPage) : perPage,
    total: rows.length,
    ...more,
  }
  const body = [head, rows.slice((page - 1) * perPage, page * perPage)]
  if (url.searchParams.get('format') === 'json') return { body }
  const xml = `<?xml version="1.0" encoding="utf-8"?><wb:data total="${rows.length}" />`
  return { body: xml, type: 'text/xml;charset=utf-8' }
}

function country({ url, captures }: Ask): Reply {
  const found = find(captures[0] ?? 'all')
  if (found.length === 0 || !isValid(url)) return invalid
  const rows = found.map(([id, iso2Code, name, area, capitalCity, longitude, latitude]) => {
    const [region = '', iso2code = '', value = ''] = area.split('|')
    return {
      id,
      iso2Code,
      name,
      region: { id: region, iso2code, value },
      adminregion: { id: '', iso2code: '', value: '' },
      incomeLevel: { id: 'HIC', iso2code: 'XD', value: 'High income' },
      lendingType: { id: 'LNX', iso2code: 'XX', value: 'Not classified' },
      capitalCity,
      longitude,
      latitude,
    }
  })
  return paged(url, rows, {}, true)
}

function indicator({ url, captures }: Ask): Reply {
  const [iso = '', code = ''] = captures
  const found = find(iso)
  const known =
    indicators[code] ?? (/^[A-Z]{2}(\.[A-Z\d]+){2,}$/.test(code) ? [code, 100] : undefined)
  if (found.length === 0 || !known || !isValid(url)) return invalid
  const [label, level] = known
  const dates = url.searchParams.get('date') ?? '1960:2025'
  const [, from = '1960', to = from] = /^(\d{4})(?::(\d{4}))?$/.exec(dates) ?? []
  const years: string[] = []
  for (let year = Math.min(Number(to), 2025); year >= Math.max(Number(from), 1960); year--) {
    years.push(String(year))
  }
  const wanted = years.slice(0, count(url, 'mrnev', years.length, 100))
  const rows = found.flatMap(([countryiso3code, id, value]) =>
    wanted.map((date) => ({
      indicator: { id: code, value: label },
      country: { id, value },
      countryiso3code,
      date,
      value: date === '1960' ? null : number(`${id}|${code}|${date}`, level * 0.5, level * 1.5, 2),
      unit: '',
      obs_status: '',
      decimal: 1,
    })),
  )
  return paged(url, rows, { sourceid: '2', lastupdated: '2026-07-01' }, false)
}

/** World Bank v2. */
export const routes: readonly Route[] = [
  { path: /^\/v2\/country(?:\/([^/]+))?$/, answer: country },
  { path: /^\/v2\/country\/([^/]+)\/indicator\/([^/]+)$/, answer: indicator },
]
