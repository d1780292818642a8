/**
 * The offers of the shipped merchants, in each shape: the buyer's request below `/m/`, and the
 * request that the upstream must receive. Routes of the service itself have no upstream and are not
 * here.
 */
export type Sample = {
  /** Path and query below `/m/`, as the buyer writes them. */
  ask: string
  /** Whole URL of the upstream's request; its path and query are compared byte by byte. */
  upstream: string
}

const address = '0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC'
const stranger = `0x${'11'.repeat(20)}`
const hash = `0x${'1f'.repeat(32)}`
const zeros = `0x${'00'.repeat(32)}`
const openMeteo = 'https://api.open-meteo.com/v1'
const frankfurter = 'https://api.frankfurter.dev/v1'
const coins = 'https://coins.llama.fi'
const llama = 'https://api.llama.fi'
const wikipedia = 'https://en.wikipedia.org'
const dictionary = 'https://api.dictionaryapi.dev/api/v2/entries/en'
const datamuse = 'https://api.datamuse.com/words'
const hackerNews = 'https://hn.algolia.com/api/v1/search'
const worldBank = 'https://api.worldbank.org/v2/country'
const blockscout = 'https://robinhoodchain.blockscout.com/api/v2'
const openLibrary = 'https://openlibrary.org'
const edgar = 'https://data.sec.gov'
const fiscal = 'https://api.fiscaldata.treasury.gov/services/api/fiscal_service'
const coinGecko = 'https://api.coingecko.com/api/v3'
const coinDefaults =
  'localization=false&tickers=false&community_data=false&developer_data=false'.split('&')
const berlin = 'latitude=52.52&longitude=13.41'
const base = 'base:0x833589fcd6edb6e08f4c7c32d4f71b54bda02913'

const weather: readonly Sample[] = [
  {
    ask: `weather/air-quality?${berlin}&current=pm2_5,us_aqi`,
    upstream: `https://air-quality-api.open-meteo.com/v1/air-quality?${berlin}&current=pm2_5,us_aqi`,
  },
  {
    ask: `weather/air-quality?${berlin}&current=pm2_5%2Cus_aqi`,
    upstream: `https://air-quality-api.open-meteo.com/v1/air-quality?${berlin}&current=pm2_5%2Cus_aqi`,
  },
  {
    ask: `weather/forecast?${berlin}&current=temperature_2m,wind_speed_10m&daily=temperature_2m_max,sunrise`,
    upstream: `${openMeteo}/forecast?${berlin}&current=temperature_2m,wind_speed_10m&daily=temperature_2m_max,sunrise`,
  },
  // Parameters that the route does not describe are forwarded, too.
  {
    ask: 'weather/forecast?latitude=-33.9&longitude=%2B151.2&forecast_days=16&hourly=rain&timezone=auto',
    upstream: `${openMeteo}/forecast?latitude=-33.9&longitude=%2B151.2&forecast_days=16&hourly=rain&timezone=auto`,
  },
  {
    ask: 'weather/geocode?name=Z%C3%BCrich&count=1',
    upstream: 'https://geocoding-api.open-meteo.com/v1/search?name=Z%C3%BCrich&count=1',
  },
  {
    ask: 'weather/geocode?name=s%C3%A3o+paulo&language=pt',
    upstream: 'https://geocoding-api.open-meteo.com/v1/search?name=s%C3%A3o+paulo&language=pt',
  },
  {
    ask: 'weather/geocode?name=Nowhereville',
    upstream: 'https://geocoding-api.open-meteo.com/v1/search?name=Nowhereville',
  },
]

const fx: readonly Sample[] = [
  { ask: 'fx/currencies', upstream: `${frankfurter}/currencies` },
  { ask: 'fx/currencies?a=&a=1&b', upstream: `${frankfurter}/currencies?a=&a=1&b` },
  {
    ask: 'fx/historical/2024-11-25?base=USD',
    upstream: `${frankfurter}/2024-11-25?base=USD`,
  },
  {
    ask: 'fx/historical/1999-01-04',
    upstream: `${frankfurter}/1999-01-04`,
  },
  {
    ask: 'fx/historical/2015-01-02..2015-01-09?base=USD&symbols=EUR,GBP',
    upstream: `${frankfurter}/2015-01-02..2015-01-09?base=USD&symbols=EUR,GBP`,
  },
  {
    ask: 'fx/historical/2026-11-02..',
    upstream: `${frankfurter}/2026-11-02..`,
  },
  {
    ask: 'fx/latest?base=USD&symbols=EUR,GBP',
    upstream: `${frankfurter}/latest?base=USD&symbols=EUR,GBP`,
  },
  {
    ask: 'fx/latest?base=XXX',
    upstream: `${frankfurter}/latest?base=XXX`,
  },
]

const crypto: readonly Sample[] = [
  {
    ask: 'crypto-prices/chart/coingecko:bitcoin?period=1d&span=10',
    upstream: `${coins}/chart/coingecko:bitcoin?period=1d&span=10`,
  },
  {
    ask: 'crypto-prices/chart/coingecko:bitcoin?period=1d',
    upstream: `${coins}/chart/coingecko:bitcoin?period=1d&span=10`,
  },
  {
    ask: `crypto-prices/current/coingecko:bitcoin,${base}`,
    upstream: `${coins}/prices/current/coingecko:bitcoin,${base}`,
  },
  // Reserved characters stay as the buyer wrote them.
  {
    ask: 'crypto-prices/current/coingecko%3Abitcoin%2Ccoingecko:solana',
    upstream: `${coins}/prices/current/coingecko%3Abitcoin%2Ccoingecko:solana`,
  },
  {
    ask: 'crypto-prices/current/nowhere:none',
    upstream: `${coins}/prices/current/nowhere:none`,
  },
  {
    ask: `crypto-prices/historical/1648680149/coingecko:ethereum,${base}?searchWidth=4h`,
    upstream: `${coins}/prices/historical/1648680149/coingecko:ethereum,${base}?searchWidth=4h`,
  },
  { ask: 'defi/chains', upstream: `${llama}/v2/chains` },
  { ask: 'defi/protocols', upstream: `${llama}/protocols` },
  {
    ask: 'defi/stablecoins?includePrices=true',
    upstream: 'https://stablecoins.llama.fi/stablecoins?includePrices=true',
  },
  {
    ask: 'defi/stablecoins',
    upstream: 'https://stablecoins.llama.fi/stablecoins',
  },
  { ask: 'defi/tvl/aave', upstream: `${llama}/tvl/aave` },
  {
    ask: 'defi/tvl/nothing',
    upstream: `${llama}/tvl/nothing`,
  },
  {
    ask: 'crypto-markets/coin/bitcoin',
    upstream: `${coinGecko}/coins/bitcoin?${coinDefaults.join('&')}`,
  },
  {
    ask: 'crypto-markets/coin/ethereum?tickers=true',
    upstream: `${coinGecko}/coins/ethereum?tickers=true&${coinDefaults.filter((pair) => !pair.startsWith('tickers')).join('&')}`,
  },
  {
    ask: 'crypto-markets/coin/nothing',
    upstream: `${coinGecko}/coins/nothing?${coinDefaults.join('&')}`,
  },
  { ask: 'crypto-markets/global', upstream: `${coinGecko}/global` },
]

const knowledge: readonly Sample[] = [
  {
    ask: 'wiki/search?q=earth&limit=3',
    upstream: `${wikipedia}/w/rest.php/v1/search/page?q=earth&limit=3`,
  },
  ...['Alan_Turing', 'AC%2FDC', 'S%C3%A3o_Paulo', 'What%3F', 'C%2B%2B', '%22Heroes%22'].map(
    (title) => ({
      ask: `wiki/summary/${title}`,
      upstream: `${wikipedia}/api/rest_v1/page/summary/${title}`,
    }),
  ),
  {
    ask: 'wiki/summary/Earth?redirect=false&lang=en',
    upstream: `${wikipedia}/api/rest_v1/page/summary/Earth?redirect=false&lang=en`,
  },
  {
    ask: 'wiki/summary/No_such_page',
    upstream: `${wikipedia}/api/rest_v1/page/summary/No_such_page`,
  },
  { ask: 'words/define/serendipity', upstream: `${dictionary}/serendipity` },
  { ask: 'words/define/ice%20cream', upstream: `${dictionary}/ice%20cream` },
  {
    ask: 'words/define/is',
    upstream: `${dictionary}/is`,
  },
  ...['ml=ringing+in+the+ears', 'rel_rhy=light', 'rel_syn=ocean', 'sp=hipp*', 'sp=h%3Fpp%2A'].map(
    (query) => ({
      ask: `words/related?${query}&max=4`,
      upstream: `${datamuse}?${query}&max=4`,
    }),
  ),
  { ask: 'words/related?ml=zzzz', upstream: `${datamuse}?ml=zzzz` },
  {
    ask: 'books/search?q=dune&author=Frank+Herbert&limit=2',
    upstream: `${openLibrary}/search.json?q=dune&author=Frank+Herbert&limit=2`,
  },
  {
    ask: 'books/work/works/OL893415W.json',
    upstream: `${openLibrary}/works/OL893415W.json`,
  },
  {
    ask: 'books/work/works/OL0W.json',
    upstream: `${openLibrary}/works/OL0W.json`,
  },
  { ask: 'tech-news/front-page', upstream: `${hackerNews}?tags=front_page` },
  {
    ask: 'tech-news/front-page?hitsPerPage=5&tags=story',
    upstream: `${hackerNews}?hitsPerPage=5&tags=story`,
  },
  {
    ask: 'tech-news/search?query=payments&tags=author_pg,(story,poll)&hitsPerPage=2&numericFilters=points%3E100',
    upstream: `${hackerNews}?query=payments&tags=author_pg,(story,poll)&hitsPerPage=2&numericFilters=points%3E100`,
  },
]

const worldData: readonly Sample[] = [
  {
    ask: 'world-data/country',
    upstream: `${worldBank}?format=json`,
  },
  {
    ask: 'world-data/country/US',
    upstream: `${worldBank}/US?format=json`,
  },
  {
    ask: 'world-data/country/USA;DE?per_page=1',
    upstream: `${worldBank}/USA;DE?per_page=1&format=json`,
  },
  {
    ask: 'world-data/country/US?format=xml',
    upstream: `${worldBank}/US?format=xml`,
  },
  {
    ask: 'world-data/country/ZZ',
    upstream: `${worldBank}/ZZ?format=json`,
  },
  {
    ask: 'world-data/indicator/US/indicator/NY.GDP.PCAP.CD?date=2015:2023&format=json',
    upstream: `${worldBank}/US/indicator/NY.GDP.PCAP.CD?date=2015:2023&format=json`,
  },
  {
    ask: 'world-data/indicator/all/indicator/SP.POP.TOTL?date=1960&per_page=2',
    upstream: `${worldBank}/all/indicator/SP.POP.TOTL?date=1960&per_page=2&format=json`,
  },
  {
    ask: 'world-data/indicator/US/indicator/nope',
    upstream: `${worldBank}/US/indicator/nope?format=json`,
  },
]

const chain: readonly Sample[] = [
  {
    ask: `chainscan/address/${address}`,
    upstream: `${blockscout}/addresses/${address}`,
  },
  {
    ask: `chainscan/address/${address}/transactions?filter=from`,
    upstream: `${blockscout}/addresses/${address}/transactions?filter=from`,
  },
  {
    ask: `chainscan/address/${stranger}/token-balances`,
    upstream: `${blockscout}/addresses/${stranger}/token-balances`,
  },
  { ask: 'chainscan/stats', upstream: `${blockscout}/stats` },
  { ask: 'chainscan/token', upstream: `${blockscout}/tokens` },
  { ask: 'chainscan/token?q=nvda', upstream: `${blockscout}/tokens?q=nvda` },
  {
    ask: `chainscan/token/${address}`,
    upstream: `${blockscout}/tokens/${address}`,
  },
  {
    ask: `chainscan/token/${address}/holders`,
    upstream: `${blockscout}/tokens/${address}/holders`,
  },
  {
    ask: `chainscan/token/${stranger}`,
    upstream: `${blockscout}/tokens/${stranger}`,
  },
  { ask: 'chainscan/tx', upstream: `${blockscout}/transactions` },
  {
    ask: `chainscan/tx/${hash}`,
    upstream: `${blockscout}/transactions/${hash}`,
  },
  {
    ask: `chainscan/tx/${hash}/logs`,
    upstream: `${blockscout}/transactions/${hash}/logs`,
  },
  {
    ask: `chainscan/tx/${hash}/token-transfers`,
    upstream: `${blockscout}/transactions/${hash}/token-transfers`,
  },
  {
    ask: `chainscan/tx/${zeros}`,
    upstream: `${blockscout}/transactions/${zeros}`,
  },
]

const finance: readonly Sample[] = [
  {
    ask: 'company-filings/facts/0000320193.json',
    upstream: `${edgar}/api/xbrl/companyfacts/CIK0000320193.json`,
  },
  {
    ask: 'company-filings/facts/0000000001.json',
    upstream: `${edgar}/api/xbrl/companyfacts/CIK0000000001.json`,
  },
  {
    ask: 'company-filings/filings/0000320193.json',
    upstream: `${edgar}/submissions/CIK0000320193.json`,
  },
  {
    ask: 'company-filings/filings/0000320193-submissions-001.json',
    upstream: `${edgar}/submissions/CIK0000320193-submissions-001.json`,
  },
  {
    ask: 'company-filings/tickers',
    upstream: 'https://www.sec.gov/files/company_tickers.json',
  },
  {
    ask: 'us-treasury/debt?sort=-record_date&page[size]=2&filter=record_date:gte:2026-01-01',
    upstream: `${fiscal}/v2/accounting/od/debt_to_penny?sort=-record_date&page[size]=2&filter=record_date:gte:2026-01-01`,
  },
  {
    ask: 'us-treasury/debt?page%5Bsize%5D=3&page%5Bnumber%5D=2',
    upstream: `${fiscal}/v2/accounting/od/debt_to_penny?page%5Bsize%5D=3&page%5Bnumber%5D=2`,
  },
  {
    ask: 'us-treasury/debt?filter=nope:eq:1',
    upstream: `${fiscal}/v2/accounting/od/debt_to_penny?filter=nope:eq:1`,
  },
  {
    ask: 'us-treasury/exchange-rates?filter=country_currency_desc:in:(Canada-Dollar,Mexico-Peso),record_date:gte:2025-01-01&sort=-record_date,country&page[size]=1',
    upstream: `${fiscal}/v1/accounting/od/rates_of_exchange?filter=country_currency_desc:in:(Canada-Dollar,Mexico-Peso),record_date:gte:2025-01-01&sort=-record_date,country&page[size]=1`,
  },
  {
    ask: 'us-treasury/interest-rates?sort=-record_date&page[size]=1',
    upstream: `${fiscal}/v2/accounting/od/avg_interest_rates?sort=-record_date&page[size]=1`,
  },
]

export const samples: readonly Sample[] = [
  ...weather,
  ...fx,
  ...crypto,
  ...knowledge,
  ...worldData,
  ...chain,
  ...finance,
]
