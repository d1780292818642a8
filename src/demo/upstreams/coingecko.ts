import { type Ask, list, number, type Reply, type Route, today } from './reply'

const coins: readonly (readonly [string, string, string, number, number])[] = [
  ['bitcoin', 'btc', 'Bitcoin', 91_250, 19_950_000],
  ['ethereum', 'eth', 'Ethereum', 3120, 120_700_000],
  ['tether', 'usdt', 'Tether', 1, 184_000_000_000],
  ['ripple', 'xrp', 'XRP', 2.21, 60_100_000_000],
  ['solana', 'sol', 'Solana', 141, 553_000_000],
  ['usd-coin', 'usdc', 'USDC', 1, 76_000_000_000],
  ['dogecoin', 'doge', 'Dogecoin', 0.16, 151_000_000_000],
]
const updated = `${today}T12:00:00.000Z`

function market([id, symbol, name, price, supply]: (typeof coins)[number], index: number) {
  const change = number(`change|${id}`, -4, 4, 5)
  return {
    id,
    symbol,
    name,
    image: `https://assets.coingecko.com/coins/images/${index + 1}/large/${id}.png`,
    current_price: price,
    market_cap: price * supply,
    market_cap_rank: index + 1,
    fully_diluted_valuation: price * supply,
    total_volume: Math.round(price * supply * 0.04),
    high_24h: price * 1.02,
    low_24h: price * 0.98,
    price_change_24h: (price * change) / 100,
    price_change_percentage_24h: change,
    circulating_supply: supply,
    total_supply: supply,
    max_supply: id === 'bitcoin' ? 21_000_000 : null,
    last_updated: updated,
  }
}

const markets = coins.map(market)

function global(): Reply {
  const capUsd = markets.reduce((sum, { market_cap }) => sum + market_cap, 0) * 1.2
  const share = (id: string) => {
    const found = markets.find((entry) => entry.id === id)
    return found ? Number(((found.market_cap / capUsd) * 100).toFixed(2)) : 0
  }
  return {
    body: {
      data: {
        active_cryptocurrencies: 17397,
        upcoming_icos: 0,
        ongoing_icos: 49,
        ended_icos: 3376,
        markets: 1476,
        total_market_cap: { btc: capUsd / 91_250, eth: capUsd / 3120, usd: capUsd },
        total_volume: { btc: (capUsd * 0.04) / 91_250, usd: capUsd * 0.04 },
        market_cap_percentage: { btc: share('bitcoin'), eth: share('ethereum') },
        market_cap_change_percentage_24h_usd: -1.608,
        volume_change_percentage_24h_usd: 33.06,
        updated_at: Math.floor(Date.parse(updated) / 1000),
      },
    },
  }
}

function coin({ captures }: Ask): Reply {
  const found = markets.find(({ id }) => id === captures[0])
  if (!found) return { status: 404, body: { error: 'coin not found' } }
  const { id, symbol, name, image, ...data } = found
  const usd = (value: number) => ({ usd: value })
  const token =
    id === 'usd-coin' ? { base: '0x833589fcd6edb6e08f4c7c32d4f71b54bda02913' } : { '': '' }
  return {
    body: {
      id,
      symbol,
      name,
      web_slug: id,
      asset_platform_id: id === 'usd-coin' ? 'base' : null,
      platforms: token,
      detail_platforms: {},
      block_time_in_minutes: id === 'bitcoin' ? 10 : 0,
      hashing_algorithm: id === 'bitcoin' ? 'SHA-256' : null,
      categories: ['Cryptocurrency'],
      preview_listing: false,
      public_notice: null,
      additional_notices: [],
      description: { en: `${name} is a sample of a coin profile.` },
      links: { homepage: [`https://${id}.example`], blockchain_site: [], subreddit_url: null },
      image: { thumb: image, small: image, large: image },
      country_origin: '',
      genesis_date: id === 'bitcoin' ? '2009-01-03' : null,
      sentiment_votes_up_percentage: 80.5,
      sentiment_votes_down_percentage: 19.5,
      watchlist_portfolio_users: number(`users|${id}`, 1000, 2_000_000),
      market_cap_rank: data.market_cap_rank,
      market_data: {
        current_price: usd(data.current_price),
        market_cap: usd(data.market_cap),
        total_volume: usd(data.total_volume),
        high_24h: usd(data.high_24h),
        low_24h: usd(data.low_24h),
        price_change_24h: data.price_change_24h,
        price_change_percentage_24h: data.price_change_percentage_24h,
        circulating_supply: data.circulating_supply,
        total_supply: data.total_supply,
        max_supply: data.max_supply,
        last_updated: updated,
      },
      last_updated: updated,
    },
  }
}

function simple({ url }: Ask): Reply {
  const wanted = list(url, 'ids')
  const found = markets.filter(({ id }) => wanted.includes(id))
  return {
    body: Object.fromEntries(found.map((entry) => [entry.id, { usd: entry.current_price }])),
  }
}

const keyHeaders = ['x-cg-demo-api-key', 'x-cg-pro-api-key'] as const

/** The service answers without a key. A key of the Demo or the Pro plan must be right. */
function keyed(answer: (ask: Ask) => Reply): (ask: Ask) => Reply {
  return (ask) => {
    const keys = keyHeaders.map((name) => ask.headers.get(name)).filter((key) => key !== null)
    if (keys.length > 1) return refused(400, 10010, 'Use one key, at the root URL of its plan.')
    const isWrong = keys.some((key) => !/^CG-\w+$/.test(key))
    return isWrong ? refused(401, 10002, 'API Key Missing') : answer(ask)
  }
}

function refused(status: number, error_code: number, error_message: string): Reply {
  return { status, body: { status: { error_code, error_message } } }
}

/** CoinGecko v3. */
export const routes: readonly Route[] = [
  { path: /^\/api\/v3\/global$/, answer: keyed(global) },
  { path: /^\/api\/v3\/coins\/markets$/, answer: keyed(() => ({ body: markets })) },
  { path: /^\/api\/v3\/coins\/(?!markets$)([^/]+)$/, answer: keyed(coin) },
  { path: /^\/api\/v3\/simple\/price$/, answer: keyed(simple) },
]
