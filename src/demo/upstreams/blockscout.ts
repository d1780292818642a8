import { type Ask, hex, number, pick, type Reply, type Route, range, todayMs } from './reply'
import { stocks, usdg } from './stocks'

const notFound: Reply = { status: 404, body: { message: 'Not found' } }
const invalid: Reply = { status: 422, body: { message: 'Invalid parameter(s)' } }
const height = 41_250_000

function party(hash: string) {
  const token = tokens.find((entry) => entry.address_hash.toLowerCase() === hash.toLowerCase())
  return {
    hash,
    is_contract: token !== undefined,
    is_verified: token !== undefined,
    name: token?.name ?? null,
    ens_domain_name: null,
    implementations: [],
    private_tags: [],
    public_tags: [],
    watchlist_names: [],
    reputation: 'ok',
  }
}

const tokens = [['USDG', usdg, 1] as const, ...stocks].map(([symbol, address_hash, price]) => ({
  address_hash,
  name: symbol === 'USDG' ? 'Global Dollar' : `${symbol} • Robinhood Token`,
  symbol,
  decimals: symbol === 'USDG' ? '6' : '18',
  type: 'ERC-20',
  holders_count: String(number(`holders|${symbol}`, 900, 90_000)),
  total_supply: `${number(`supply|${symbol}`, 10_000, 900_000)}${'0'.repeat(symbol === 'USDG' ? 9 : 18)}`,
  exchange_rate: String(price),
  circulating_market_cap: String(price * number(`supply|${symbol}`, 10_000, 900_000)),
  volume_24h: String(number(`volume|${symbol}`, 10_000, 9_000_000)),
  icon_url: null,
  reputation: 'ok',
}))

function tokenOf(hash: string | undefined) {
  return tokens.find((token) => token.address_hash.toLowerCase() === hash?.toLowerCase())
}

/** Answers only for a valid address. */
function ofAddress(answer: (address: string, ask: Ask) => Reply): (ask: Ask) => Reply {
  return (ask) => {
    const [address = ''] = ask.captures
    return /^0x[\da-fA-F]{40}$/.test(address) ? answer(address, ask) : invalid
  }
}

/** Answers only for a possible transaction hash; the hash of all zeros does not exist. */
function ofHash(answer: (hash: string) => Reply): (ask: Ask) => Reply {
  return ({ captures }) => {
    const [hash = ''] = captures
    if (!/^0x[\da-fA-F]{64}$/.test(hash)) return invalid
    return /^0x0+$/.test(hash) ? notFound : answer(hash.toLowerCase())
  }
}

function transaction(hash: string, from = `0x${hex(`from|${hash}`, 20)}`) {
  const block = height - number(`block|${hash}`, 1, 100_000)
  const gasUsed = number(`gas|${hash}`, 21_000, 240_000)
  return {
    hash,
    block_number: block,
    timestamp: new Date(todayMs - (height - block) * 100).toISOString(),
    status: 'ok',
    result: 'success',
    method: pick(`method|${hash}`, ['transfer', 'approve', 'settle', 'exactInputSingle']),
    type: 2,
    from: party(from),
    to: party(usdg),
    value: '0',
    fee: { type: 'actual', value: String(gasUsed * 50_000_000) },
    gas_used: String(gasUsed),
    gas_limit: '300000',
    gas_price: '50000000',
    base_fee_per_gas: '50000000',
    max_fee_per_gas: '120000000',
    max_priority_fee_per_gas: '0',
    priority_fee: '0',
    nonce: number(`nonce|${hash}`, 0, 400),
    position: number(`position|${hash}`, 0, 12),
    confirmations: height - block,
    transaction_types: ['contract_call', 'token_transfer'],
    token_transfers: null,
    decoded_input: null,
    raw_input: `0xa9059cbb${hex(`input|${hash}`, 64)}`,
    exchange_rate: '3120.5',
    created_contract: null,
    revert_reason: null,
  }
}

function hashes(seed: string, length: number): string[] {
  return range(length).map((index) => `0x${hex(`${seed}|${index}`, 32)}`)
}

const pageMax = 100

/**
 * Length of a page since version 12: `items_count` of the request, 50 by default and at most 100.
 * Undefined for an invalid number.
 * https://docs.blockscout.com/blockscout-v12-0-0-api-updates-and-breaking-changes
 */
function pageSize({ searchParams }: URL): number | undefined {
  const wanted = searchParams.get('items_count')
  if (wanted === null) return 50
  return /^[1-9]\d{0,8}$/.test(wanted) ? Math.min(Number(wanted), pageMax) : undefined
}

function unexpected(name: string, title: string): Reply {
  const error = { title, source: { pointer: `/${name}` }, detail: `${title}: ${name}` }
  return { status: 422, body: { errors: [error] } }
}

/** Start of a page, and the parameters of the next one. */
type Cursor<T> = {
  /** Whether an item comes after the cursor of a request's query. */
  isAfter: (item: T, query: URLSearchParams) => boolean
  of: (last: T) => object
}

/** One page of a list; since version 12 the cursor has no count. */
function page<T>(url: URL, all: readonly T[], { isAfter, of }: Cursor<T>): Reply {
  const size = pageSize(url)
  if (size === undefined) return unexpected('items_count', 'Invalid value')
  const rest = all.filter((item) => isAfter(item, url.searchParams))
  const items = rest.slice(0, size)
  const last = items.at(-1)
  const next = last !== undefined && rest.length > size ? of(last) : null
  return { body: { items, next_page_params: next } }
}

/** Most lists no longer accept `limit`. */
function without(limit: string, answer: (ask: Ask) => Reply): (ask: Ask) => Reply {
  return (ask) =>
    ask.url.searchParams.has(limit) ? unexpected(limit, 'Unexpected field') : answer(ask)
}

/** Transactions, the newest first. */
function transactions({ url }: Ask, hashes: readonly string[], from?: string): Reply {
  const all = hashes
    .map((hash) => transaction(hash, from))
    .sort((a, b) => b.block_number - a.block_number || b.position - a.position)
  return page(url, all, {
    isAfter: ({ block_number: block, position }, query) => {
      const below = Number(query.get('block_number') ?? Number.POSITIVE_INFINITY)
      return block < below || (block === below && position < Number(query.get('index')))
    },
    of: ({ block_number, position }) => ({ block_number, index: position }),
  })
}

function address(hash: string): Reply {
  const token = tokenOf(hash)
  return {
    body: {
      ...party(hash),
      coin_balance: String(number(`balance|${hash}`, 0, 9e15)),
      exchange_rate: '3120.5',
      creator_address_hash: token ? '0x4783C67b63dE2B358Ac5951a7D41F47A38F3C046' : null,
      creation_transaction_hash: token ? `0x${hex(`creation|${hash}`, 32)}` : null,
      block_number_balance_updated_at: height,
      has_logs: token !== undefined,
      has_token_transfers: true,
      has_tokens: true,
      has_validated_blocks: false,
      has_beacon_chain_withdrawals: false,
      token: token ?? null,
    },
  }
}

function holdings(hash: string): Reply {
  const held = tokens.filter((token) => number(`holds|${hash}|${token.symbol}`, 0, 2) > 0)
  const body = held.map((token) => ({
    token,
    token_id: null,
    token_instance: null,
    value: String(number(`value|${hash}|${token.symbol}`, 1e6, 9e12)),
  }))
  return { body }
}

/** This list ignores `limit`. */
function tokenList({ url }: Ask): Reply {
  const wanted = url.searchParams.get('q')?.toLowerCase() ?? ''
  const found = tokens
    .filter(({ name, symbol }) => `${name} ${symbol}`.toLowerCase().includes(wanted))
    .sort((a, b) => Number(b.circulating_market_cap) - Number(a.circulating_market_cap))
  return page(url, found, {
    isAfter: ({ circulating_market_cap: cap }, query) =>
      Number(cap) < Number(query.get('market_cap') ?? Number.POSITIVE_INFINITY),
    of: ({ address_hash, holders_count, circulating_market_cap, name }) => ({
      contract_address_hash: address_hash,
      holders_count,
      is_name_null: false,
      market_cap: circulating_market_cap,
      name,
    }),
  })
}

function holders(hash: string, { url }: Ask): Reply {
  if (!tokenOf(hash)) return notFound
  const all = range(60).map((index) => ({
    address: party(`0x${hex(`holder|${hash}|${index}`, 20)}`),
    token_id: null,
    value: String(number(`held|${hash}`, 1e8, 9e9) * (60 - index)),
  }))
  return page(url, all, {
    isAfter: ({ value }, query) =>
      Number(value) < Number(query.get('value') ?? Number.POSITIVE_INFINITY),
    of: ({ address, value }) => ({ address_hash: address.hash, value }),
  })
}

function transfers(hash: string): Reply {
  const item = {
    block_number: transaction(hash).block_number,
    from: party(`0x${hex(`from|${hash}`, 20)}`),
    to: party(`0x${hex(`to|${hash}`, 20)}`),
    log_index: 1,
    method: 'transfer',
    token: tokens[0],
    total: { decimals: '6', value: String(number(`amount|${hash}`, 1000, 9e8)) },
    transaction_hash: hash,
    type: 'token_transfer',
  }
  return { body: { items: [item], next_page_params: null } }
}

function logs(hash: string): Reply {
  const topics = ['0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef']
  const item = {
    address: party(usdg),
    block_number: transaction(hash).block_number,
    data: `0x${hex(`data|${hash}`, 32)}`,
    decoded: null,
    index: 1,
    topics,
    transaction_hash: hash,
  }
  return { body: { items: [item], next_page_params: null } }
}

function stats(): Reply {
  return {
    body: {
      average_block_time: 100,
      coin_image: null,
      coin_price: '3120.5',
      coin_price_change_percentage: -0.42,
      gas_price_updated_at: new Date(todayMs).toISOString(),
      gas_prices: { slow: 0.04, average: 0.05, fast: 0.08 },
      gas_prices_update_in: 21_000,
      gas_used_today: '184467440737',
      market_cap: '0',
      network_utilization_percentage: 3.1,
      secondary_coin_image: null,
      secondary_coin_price: null,
      static_gas_price: null,
      total_addresses: '2204511',
      total_blocks: String(height),
      total_gas_used: '0',
      total_transactions: '98230411',
      transactions_today: '1320455',
      tvl: null,
    },
  }
}

// Under its own prefix, and under that of the paid service.
function at(pattern: string): RegExp {
  return new RegExp(`^(?:/4663)?/api/v2/${pattern}$`)
}

/** Blockscout v2. */
export const routes: readonly Route[] = [
  { path: at('stats'), answer: stats },
  { path: at('addresses/([^/]+)'), answer: ofAddress(address) },
  {
    path: at('addresses/([^/]+)/transactions'),
    answer: without(
      'limit',
      ofAddress((hash, ask) => transactions(ask, hashes(hash, 10), hash)),
    ),
  },
  { path: at('addresses/([^/]+)/token-balances'), answer: ofAddress(holdings) },
  { path: at('tokens'), answer: tokenList },
  {
    path: at('tokens/([^/]+)'),
    answer: ofAddress((hash) => {
      const body = tokenOf(hash)
      return body ? { body } : notFound
    }),
  },
  { path: at('tokens/([^/]+)/holders'), answer: without('limit', ofAddress(holders)) },
  {
    path: at('transactions'),
    answer: without('limit', (ask) => transactions(ask, hashes('latest', 120))),
  },
  { path: at('transactions/([^/]+)'), answer: ofHash((hash) => ({ body: transaction(hash) })) },
  {
    path: at('transactions/([^/]+)/token-transfers'),
    answer: without('limit', ofHash(transfers)),
  },
  { path: at('transactions/([^/]+)/logs'), answer: ofHash(logs) },
]
