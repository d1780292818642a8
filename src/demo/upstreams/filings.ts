import {
  type Ask,
  dayMs,
  hex,
  isoDate,
  number,
  pick,
  type Reply,
  type Route,
  range,
  todayMs,
} from './reply'

const companies: readonly (readonly [number, string, string])[] = [
  [320193, 'AAPL', 'Apple Inc.'],
  [1045810, 'NVDA', 'NVIDIA CORP'],
  [789019, 'MSFT', 'MICROSOFT CORP'],
  [1018724, 'AMZN', 'AMAZON COM INC'],
  [1652044, 'GOOGL', 'Alphabet Inc.'],
  [1326801, 'META', 'Meta Platforms, Inc.'],
  [1318605, 'TSLA', 'Tesla, Inc.'],
  [2488, 'AMD', 'ADVANCED MICRO DEVICES INC'],
  [723125, 'MU', 'MICRON TECHNOLOGY INC'],
  [1876042, 'CRCL', 'Circle Internet Group, Inc.'],
  [1067983, 'BRK-B', 'BERKSHIRE HATHAWAY INC'],
  [19617, 'JPM', 'JPMORGAN CHASE & CO'],
]

const missing: Reply = {
  status: 404,
  type: 'application/xml',
  body: '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>',
}

/** The real service refuses programs that do not identify themselves. */
function declared(answer: (ask: Ask) => Reply): (ask: Ask) => Reply {
  const body =
    '<html><body><h1>Your Request Originates from an Undeclared Automated Tool</h1></body></html>'
  return (ask) =>
    /@|https?:/.test(ask.headers.get('user-agent') ?? '')
      ? answer(ask)
      : { status: 403, type: 'text/html', body }
}

function company(padded: string | undefined) {
  return companies.find(([cik]) => cik === Number(padded))
}

function accession(seed: string): string {
  return `0000320193-${seed.slice(2, 4)}-${hex(seed, 8).replace(/\D/g, '').padEnd(6, '7').slice(0, 6)}`
}

function tickers(): Reply {
  const rows = companies.map(([cik, ticker, title]) => ({ cik_str: cik, ticker, title }))
  return { body: Object.fromEntries(rows.entries()) }
}

const address = {
  street1: 'ONE SAMPLE WAY',
  street2: null,
  city: 'CUPERTINO',
  stateOrCountry: 'CA',
  zipCode: '95014',
  stateOrCountryDescription: 'CA',
}

/** Filings in columns, the newest first. */
function columns(cik: number, ticker: string, newestMs: number) {
  const forms = ['4', '8-K', '10-Q', '10-K', '144', 'DEF 14A'] as const
  const rows = range(600).map((index) => {
    const date = isoDate(newestMs - index * 6 * dayMs)
    return { date, form: pick(`form|${cik}|${index}`, forms), seed: `${date}|${cik}|${index}` }
  })
  const column = <T>(make: (row: (typeof rows)[number]) => T): T[] => rows.map(make)
  return {
    accessionNumber: column(({ seed }) => accession(seed)),
    filingDate: column(({ date }) => date),
    reportDate: column(({ date }) => date),
    acceptanceDateTime: column(({ date }) => `${date}T18:30:12.000Z`),
    act: column(() => '34'),
    form: column(({ form }) => form),
    fileNumber: column(() => '001-36743'),
    filmNumber: column(({ seed }) => String(number(seed, 20_000_000, 26_000_000))),
    items: column(({ form }) => (form === '8-K' ? '2.02,9.01' : '')),
    size: column(({ seed }) => number(`size|${seed}`, 4000, 9_000_000)),
    isXBRL: column(({ form }) => (form.startsWith('10-') ? 1 : 0)),
    isInlineXBRL: column(({ form }) => (form.startsWith('10-') ? 1 : 0)),
    primaryDocument: column(({ seed }) => `${ticker.toLowerCase()}-${hex(seed, 4)}.htm`),
    primaryDocDescription: column(({ form }) => form),
  }
}

// Before the 600 newest.
const olderMs = todayMs - 600 * 6 * dayMs

function older({ captures }: Ask): Reply {
  const [cik, ticker] = company(captures[0]) ?? []
  return cik === undefined || !ticker ? missing : { body: columns(cik, ticker, olderMs) }
}

function submissions({ captures }: Ask): Reply {
  const found = company(captures[0])
  if (!found) return missing
  const [cik, ticker, name] = found
  return {
    body: {
      cik: String(cik).padStart(10, '0'),
      entityType: 'operating',
      sic: '3571',
      sicDescription: 'Electronic Computers',
      ownerOrg: '06 Technology',
      insiderTransactionForOwnerExists: 0,
      insiderTransactionForIssuerExists: 1,
      name,
      tickers: [ticker],
      exchanges: ['Nasdaq'],
      ein: String(number(`ein|${cik}`, 100_000_000, 999_999_999)),
      lei: null,
      description: '',
      website: '',
      investorWebsite: '',
      category: 'Large accelerated filer',
      fiscalYearEnd: '0928',
      stateOfIncorporation: 'CA',
      stateOfIncorporationDescription: 'CA',
      addresses: { mailing: address, business: address },
      phone: '(408) 555-0100',
      flags: '',
      formerNames: [
        {
          name: `${name} (former)`,
          from: '1994-01-26T05:00:00.000Z',
          to: '2007-01-04T05:00:00.000Z',
        },
      ],
      filings: {
        recent: columns(cik, ticker, todayMs),
        files: [
          {
            name: `CIK${String(cik).padStart(10, '0')}-submissions-001.json`,
            filingCount: 600,
            filingFrom: isoDate(olderMs - 599 * 6 * dayMs),
            filingTo: isoDate(olderMs),
          },
        ],
      },
    },
  }
}

const concepts =
  'Assets,Liabilities,StockholdersEquity,Revenues,NetIncomeLoss,CashAndCashEquivalentsAtCarryingValue,OperatingIncomeLoss,GrossProfit,InventoryNet,AccountsReceivableNetCurrent'.split(
    ',',
  )

function facts({ captures }: Ask): Reply {
  const found = company(captures[0])
  if (!found) return missing
  const [cik, ticker, entityName] = found
  const points = (concept: string) =>
    range(64).map((index) => {
      const year = 2010 + Math.floor(index / 4)
      const quarter = (index % 4) + 1
      const end = `${year}-${String(quarter * 3).padStart(2, '0')}-28`
      return {
        end,
        val: number(`${ticker}|${concept}|${end}`, 1e9, 4e11),
        accn: accession(`${end}|${concept}`),
        fy: year,
        fp: quarter === 4 ? 'FY' : `Q${quarter}`,
        form: quarter === 4 ? '10-K' : '10-Q',
        filed: end,
        frame: `CY${year}Q${quarter}I`,
      }
    })
  const names = range(160).map((index) => concepts[index] ?? `SampleConcept${index + 1}`)
  const gaap = names.map((name) => {
    const label = name.replace(/([a-z])([A-Z])/g, '$1 $2')
    return [
      name,
      { label, description: `${label}, as reported.`, units: { USD: points(name) } },
    ] as const
  })
  const shares = {
    label: 'Shares Outstanding',
    description: 'Shares.',
    units: { shares: points('shares') },
  }
  return {
    body: {
      cik,
      entityName,
      facts: {
        dei: { EntityCommonStockSharesOutstanding: shares },
        'us-gaap': Object.fromEntries(gaap),
      },
    },
  }
}

/** SEC EDGAR. */
export const routes: readonly Route[] = [
  { path: /^\/files\/company_tickers\.json$/, answer: declared(tickers) },
  { path: /^\/submissions\/CIK(\d{10})\.json$/, answer: declared(submissions) },
  { path: /^\/submissions\/CIK(\d{10})-submissions-001\.json$/, answer: declared(older) },
  { path: /^\/api\/xbrl\/companyfacts\/CIK(\d{10})\.json$/, answer: declared(facts) },
  {
    path: /^\/(?:submissions|api\/xbrl\/companyfacts)\/(?!CIK\d{10}(?:-submissions-001)?\.json$).*$/,
    answer: () => missing,
  },
]
