const address = '0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC'
const berlin = 'latitude=52.52&longitude=13.41'

/** Requests that no upstream could serve, with the refused names. */
export const refusals: readonly (readonly [ask: string, ...names: string[]])[] = [
  ['weather/forecast', 'latitude', 'longitude'],
  [`weather/forecast?${berlin}&forecast_days=17`, 'forecast_days'],
  ['weather/forecast?latitude=90.1&longitude=-180.5', 'latitude', 'longitude'],
  [`weather/forecast?${berlin}&current=a%20b&daily=,`, 'current', 'daily'],
  ['weather/air-quality?latitude=north&longitude=1', 'latitude'],
  ['weather/forecast?latitude=52.5,91&longitude=13.4,x', 'latitude', 'longitude'],
  ['weather/air-quality?latitude=52.5,&longitude=13.4', 'latitude'],
  ['weather/geocode?count=3', 'name'],
  ['weather/geocode?name=Berlin&count=101', 'count'],
  ['fx/historical/1998-12-31', 'date'],
  ['fx/historical/2024-13-01?base=EURO', 'base', 'date'],
  ['fx/historical/2024-01-01..1998-01-01', 'date'],
  ['fx/historical/yesterday', 'date'],
  ['fx/latest?base=E&symbols=EUR;GBP', 'base', 'symbols'],
  ['crypto-prices/chart/bitcoin?period=day&span=0', 'period', 'span', 'coins'],
  ['crypto-prices/current/coingecko:bitcoin,', 'coins'],
  ['crypto-prices/historical/yesterday/coingecko:bitcoin', 'timestamp'],
  ['crypto-prices/historical/1648680149', 'coins'],
  ['defi/stablecoins?includePrices=maybe', 'includePrices'],
  ['wiki/search?limit=101', 'q', 'limit'],
  [`wiki/summary/${'x'.repeat(256)}`, 'title'],
  ['words/related?max=1001', 'max'],
  ['tech-news/front-page?hitsPerPage=many', 'hitsPerPage'],
  ['tech-news/search?tags=%3Cb%3E&hitsPerPage=1001', 'tags', 'hitsPerPage'],
  ['world-data/country/GERMANY?format=yaml&per_page=0', 'format', 'per_page', 'iso'],
  ['world-data/indicator/US', 'indicator', 'code'],
  ['world-data/indicator/US/indicators/NY.GDP.PCAP.CD?date=15', 'date', 'indicator'],
  ['chainscan/address/0x12', 'address'],
  [`chainscan/address/${address}/counters`, 'resource'],
  [`chainscan/token/${address}/holder`, 'resource'],
  ['chainscan/tx/latest', 'hash'],
  ['books/search?limit=0', 'limit'],
  ['books/work/OL893415W.json', 'works', 'id'],
  ['books/work/works/dune.json', 'id'],
  ['company-filings/facts/320193.json', 'padded_cik'],
  ['company-filings/filings/0000320193', 'padded_cik'],
  [
    'us-treasury/debt?sort=record%20date&page[size]=0&filter=record_date',
    'sort',
    'page[size]',
    'filter',
  ],
  ['us-treasury/exchange-rates?filter=record_date:like:2026', 'filter'],
  ['us-treasury/interest-rates?page%5Bsize%5D=10001', 'page[size]'],
  [`crypto-markets/coin/${'x'.repeat(256)}`, 'coin_id'],
  ['catjoke/joke?id=41', 'id'],
]

/** Values that the upstreams accept in several forms, so no check of ours may refuse them. */
export const taken: readonly string[] = [
  'weather/forecast?latitude=52.5,48.1&longitude=13.4,11.5&current=temperature_2m',
  'weather/forecast?latitude=52.5%2C48.1&longitude=13.4%2C11.5',
  'weather/forecast?latitude=52.5&latitude=48.1&longitude=13.4&longitude=11.5',
  'weather/air-quality?latitude=-33.9,%2B52.52&longitude=151.2,13.41',
  'crypto-prices/chart/coingecko:bitcoin?period=3600&span=2',
  'crypto-prices/chart/coingecko:bitcoin?period=W',
  'tech-news/search?query=x&hitsPerPage=0',
  'world-data/country/all',
]

/** Bodies that `assistant/chat` refuses, with the reported places. */
export const refusedChats: readonly (readonly [body: string, ...names: string[]])[] = [
  ['model=assistant-fast', ''],
  ['[]', ''],
  ['{"model":"x","messages":"hello"}', 'messages'],
  ['{"model":"x","messages":[{"content":"x"}]}', 'messages/0/role'],
  [
    '{"model":"x","messages":[{"role":"user","content":{}}],"stream":"yes"}',
    'stream',
    'messages/0/content',
  ],
  ['{"model":"x","messages":[],"plugins":[]}', 'plugins'],
  // Not of the schema but of the meter.
  ['{"model":"x","messages":[]}', 'model'],
  ['{"model":"assistant-fast","messages":[],"max_tokens":2001}', 'max_tokens'],
  ['{"model":"assistant-fast","messages":[],"n":2}', 'n'],
  ['{"model":"assistant-fast","model":"x","messages":[]}', 'model'],
  ['{"model":"","messages":[]}', 'model'],
  ['{"model":"assistant-fast"}', 'messages'],
  ['{}', 'model', 'messages'],
  ['', 'model', 'messages'],
]

/** Inputs of `chain-stocks/quote` and `token`, with the refused names: none when it is valid. */
export const stockInputs: readonly (readonly [search: string, body: string, ...names: string[]])[] =
  [
    ['?symbol=NVDA', ''],
    [`?symbol=NVDA&address=${address}&other=1`, ''],
    ['', '{"symbol":"NVDA"}'],
    ['', `{"symbol":"NVDA","address":"${address}"}`],
    ['', '', 'symbol'],
    ['?symbol=', '', 'symbol'],
    ['?symbol=ALONGERTICKER', '', 'symbol'],
    ['?symbol=NVDA&address=0x12', '', 'address'],
    ['?symbol=NVDA', '{"symbol":"NVDA","amount":1}', 'amount'],
    ['?symbol=NVDA', '{}', 'symbol'],
    ['', '{"symbol":7}', 'symbol'],
    ['', '{"symbol":"NVDA","address":null}', 'address'],
    ['?symbol=NVDA', '[]', ''],
    ['?symbol=NVDA', 'symbol=NVDA', ''],
  ]

/** Paths that are not sold: a required tail is missing, or there is one where none is allowed. */
export const unsold: readonly string[] = [
  'wiki/summary',
  'wiki/summary/',
  'fx/historical',
  'crypto-prices/chart',
  'crypto-prices/current',
  'crypto-prices/historical',
  'crypto-markets/coin',
  'defi/tvl',
  'words/define',
  'chainscan/address',
  'books/work',
  'company-filings/facts',
  'company-filings/filings',
  'world-data/indicator',
  'catjoke/joke/1',
  'chain-stocks/quote/NVDA',
  'weather',
  'weather/forecasts',
]
