import {
  type Ask,
  count,
  dayMs,
  hex,
  number,
  once,
  pick,
  type Reply,
  type Route,
  range,
  todayMs,
} from './reply'

const nowSeconds = Math.floor(todayMs / 1000)
const symbols: Readonly<Record<string, readonly [string, number]>> = {
  'coingecko:bitcoin': ['BTC', 91_250],
  'coingecko:ethereum': ['ETH', 3120],
  'coingecko:solana': ['SOL', 141],
  'coingecko:usd-coin': ['USDC', 1],
  'coingecko:tether': ['USDT', 1],
  'ethereum:0xa0b86991c6218b36c1d19d4a2e9eb0ce3606eb48': ['USDC', 1],
  'base:0x833589fcd6edb6e08f4c7c32d4f71b54bda02913': ['USDC', 1],
}
const spanMs: Readonly<Record<string, number>> = { m: 60_000, h: 3_600_000, d: dayMs, w: 7 * dayMs }

function coin(id: string, seconds: number) {
  const valid =
    /^(coingecko:[a-z\d-]+|[a-z\d-]+:0x[\da-fA-F]{40}|solana:[1-9A-HJ-NP-Za-km-z]{32,44})$/
  if (!valid.test(id)) return undefined
  const known = symbols[id.toLowerCase()]
  const level = known?.[1] ?? number(id, 0.01, 50, 4)
  const steady = level === 1
  const wiggle = number(`${id}|${seconds}`, steady ? 0.999 : 0.98, steady ? 1.001 : 1.02, 6)
  const decimals = id.startsWith('coingecko:') ? {} : { decimals: known?.[0] === 'USDC' ? 6 : 18 }
  const symbol = known?.[0] ?? hex(id, 2).toUpperCase()
  return { decimals, symbol, price: Number((level * wiggle).toPrecision(8)), timestamp: seconds }
}

function coins(ids: string, make: (id: string) => object | undefined): Reply {
  const entries = ids
    .split(',')
    .map((id) => [id, make(id)] as const)
    .filter(([, value]) => value !== undefined)
  return { body: { coins: Object.fromEntries(entries) } }
}

function spot(ids: string, seconds: number): Reply {
  return coins(ids, (id) => {
    const found = coin(id, seconds)
    if (!found) return undefined
    const { decimals, ...rest } = found
    return { ...decimals, ...rest, confidence: 0.99 }
  })
}

function chart({ url, captures }: Ask): Reply {
  const { searchParams } = url
  if (searchParams.has('start') && searchParams.has('end'))
    return { status: 400, body: { message: 'use either start or end parameter, not both' } }
  const [, amount = '1', unit = 'd'] =
    /^(\d+)([mhdw])$/i.exec(searchParams.get('period') ?? '') ?? []
  const stepSeconds = Math.max(1, (Number(amount) * (spanMs[unit.toLowerCase()] ?? dayMs)) / 1000)
  // As documented: number of data points returned, defaults to 0.
  const points = count(url, 'span', 0, 500)
  const start = count(url, 'start', 0, Number.MAX_SAFE_INTEGER)
  const end = Number(searchParams.get('end') ?? nowSeconds)
  const from = start || end - stepSeconds * (points - 1)
  return coins(captures[0] ?? '', (id) => {
    const prices = range(points).map((index) => coin(id, Math.floor(from + index * stepSeconds)))
    const head = coin(id, from)
    if (!head) return undefined
    return {
      ...head.decimals,
      confidence: 0.99,
      prices: prices.map((at) => ({ timestamp: at?.timestamp, price: at?.price })),
      symbol: head.symbol,
    }
  })
}

const chainNames = ['Ethereum', 'Solana', 'BSC', 'Bitcoin', 'Tron', 'Base', 'Arbitrum'] as const
const moreChains = ['Avalanche', 'Sui', 'Hyperliquid L1', 'Polygon', 'Aptos', 'OP Mainnet', 'Ink']
const chainIds: Readonly<Record<string, number>> = {
  Ethereum: 1,
  BSC: 56,
  Base: 8453,
  Arbitrum: 42161,
  Polygon: 137,
  Avalanche: 43114,
  'Robinhood Chain': 4663,
}
const chains = [...chainNames, ...moreChains, 'Robinhood Chain'].map((name, index) => ({
  gecko_id: name.toLowerCase().replaceAll(' ', '-'),
  tvl: number(`tvl|${name}`, 6e10 / (index + 1) ** 1.6, 7e10 / (index + 1) ** 1.6, 6),
  tokenSymbol: name.slice(0, 3).toUpperCase(),
  cmcId: String(number(`cmc|${name}`, 1, 30_000)),
  name,
  chainId: chainIds[name] ?? null,
}))

const names =
  'Lido,AAVE,EigenLayer,Uniswap,Ethena,Sky,Pendle,Morpho,Spark,JustLend,Raydium,Jupiter,Curve DEX,Aerodrome,Compound Finance,Rocket Pool,PancakeSwap,Kamino,GMX,dYdX,Balancer,Convex Finance,Yearn Finance,Instadapp,Venus,Jito,Marinade,Benqi,Stargate,Synthetix'.split(
    ',',
  )
const categories = ['Lending', 'Dexs', 'Liquid Staking', 'Yield', 'Bridge', 'CDP', 'RWA'] as const

const protocols = once(() =>
  range(420).map((index) => {
    const name = names[index] ?? `Sample Protocol ${index + 1}`
    const slug = name.toLowerCase().replaceAll(' ', '-')
    const tvl = number(`protocol|${name}`, 2e10 / (index + 1), 3e10 / (index + 1), 6)
    const deployed = chains.slice(0, number(`chains|${name}`, 1, chains.length))
    const share = tvl / deployed.length
    const parts = deployed.flatMap((chain) => [
      [chain.name, share],
      [`${chain.name}-borrowed`, share * 0.4],
      [`${chain.name}-staking`, share * 0.1],
      [`${chain.name}-pool2`, share * 0.02],
    ])
    return {
      id: String(index + 1),
      name,
      address: `0x${hex(`address|${name}`, 20)}`,
      symbol: name.slice(0, 4).toUpperCase(),
      url: `https://${slug}.example`,
      description: `${name} is a sample of a row of the protocols list. `.repeat(16).trim(),
      chain: deployed.length > 1 ? 'Multi-Chain' : deployed[0]?.name,
      logo: `https://icons.llama.fi/${slug}.png`,
      audits: '2',
      audit_links: range(4).map((link) => `https://audits.example/${slug}/${hex(name + link, 20)}`),
      gecko_id: slug,
      category: pick(`category|${name}`, categories),
      chains: deployed.map((chain) => chain.name),
      oracles: ['Chainlink'],
      twitter: slug,
      slug,
      tvl,
      chainTvls: Object.fromEntries(parts),
      change_1h: number(`1h|${name}`, -1, 1, 4),
      change_1d: number(`1d|${name}`, -5, 5, 4),
      change_7d: number(`7d|${name}`, -15, 15, 4),
      tokenBreakdowns: {},
      mcap: Math.round(tvl * 0.3),
    }
  }),
)

function tvl({ captures }: Ask): Reply {
  const found = protocols().find((protocol) => protocol.slug === captures[0])
  if (!found) return { status: 404, body: 'Protocol not found', type: 'text/plain' }
  return { body: found.tvl }
}

const pegged = [
  ['1', 'Tether', 'USDT', 184_200_000_000],
  ['2', 'USD Coin', 'USDC', 76_100_000_000],
  ['5', 'Dai', 'DAI', 4_700_000_000],
  ['146', 'Ethena USDe', 'USDe', 8_300_000_000],
  ['286', 'Global Dollar', 'USDG', 1_400_000_000],
] as const

function stablecoins({ url }: Ask): Reply {
  const withPrices = url.searchParams.get('includePrices') === 'true'
  const peggedAssets = pegged.map(([id, name, symbol, supply]) => {
    const circulating = { peggedUSD: supply }
    const perChain = chainNames.map((chain, index) => {
      const current = { peggedUSD: Math.round(supply / 2 ** (index + 1)) }
      return [chain, { current, circulatingPrevDay: current }] as const
    })
    return {
      id,
      name,
      symbol,
      gecko_id: name.toLowerCase().replaceAll(' ', '-'),
      pegType: 'peggedUSD',
      priceSource: 'defillama',
      pegMechanism: symbol === 'DAI' ? 'crypto-backed' : 'fiat-backed',
      circulating,
      circulatingPrevDay: circulating,
      chainCirculating: Object.fromEntries(perChain),
      chains: [...chainNames],
      ...(withPrices ? { price: number(`peg|${symbol}`, 0.998, 1.002, 6) } : {}),
    }
  })
  return { body: { peggedAssets } }
}

/** DefiLlama: coins, api and stablecoins. */
export const routes: readonly Route[] = [
  {
    path: /^\/prices\/current\/([^/]+)$/,
    answer: ({ captures }) => spot(captures[0] ?? '', nowSeconds),
  },
  {
    path: /^\/prices\/historical\/(\d{1,12})\/([^/]+)$/,
    answer: ({ captures }) => spot(captures[1] ?? '', Number(captures[0])),
  },
  { path: /^\/chart\/([^/]+)$/, answer: chart },
  { path: /^\/v2\/chains$/, answer: () => ({ body: chains }) },
  { path: /^\/protocols$/, answer: () => ({ body: protocols() }) },
  { path: /^\/tvl\/([^/]+)$/, answer: tvl },
  { path: /^\/stablecoins$/, answer: stablecoins },
]
