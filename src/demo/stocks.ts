import type { Stock, StockToken } from '../config/Config'
import { samplePrice } from './exchange'

/** Facts of the stock tokens that are not on the chain, as the issuer and the explorer publish them. */
export function stockFacts(path: string, tokens: Stock['tokens']): unknown {
  if (path === '/rhj/assets') return { assets: tokens.map(assetOf) }
  const [, kind, id = ''] = /^\/(rhj\/prices|api\/v2\/tokens)\/([^/]+)$/.exec(path) ?? []
  const token = tokens.find(({ symbol, address }) =>
    kind === 'rhj/prices' ? symbol === id : address.toLowerCase() === id.toLowerCase(),
  )
  if (token === undefined) return undefined
  return kind === 'rhj/prices' ? { quotes: [quoteOf(token)] } : rowOf(token)
}

function assetOf({ symbol, address }: StockToken) {
  return {
    tokenSymbol: symbol,
    tokenName: `${symbol} • Robinhood Token`,
    deployments: [{ contractAddress: address, chainId: 4663, networkName: 'Robinhood Chain' }],
    currentMultiplier: '1.000000000000000000',
    logoUrl: `https://cdn.robinhood.com/${symbol.toLowerCase()}.png`,
    tradingCapabilities: ['BUY', 'SELL'],
    status: 'ASSET_STATUS_ACTIVE',
    tokenDecimals: 18,
    isin: `JE00${address.slice(-8).toUpperCase()}`,
  }
}

function quoteOf({ symbol, address }: StockToken) {
  const price = samplePrice(symbol)
  return {
    tokenSymbol: symbol,
    deployments: [{ contractAddress: address, chainId: 4663, networkName: 'Robinhood Chain' }],
    bid: (price * 0.9995).toFixed(4),
    ask: (price * 1.0005).toFixed(4),
    currency: 'USD',
    dailyTradingVolume: '4100000',
    isTradingHalt: false,
    generatedAt: '2026-11-19T12:00:00Z',
  }
}

function rowOf({ symbol, address }: StockToken) {
  return {
    address_hash: address,
    name: `${symbol} • Robinhood Token`,
    symbol,
    decimals: '18',
    type: 'ERC-20',
    holders_count: '1200',
    exchange_rate: String(samplePrice(symbol)),
    circulating_market_cap: String(samplePrice(symbol) * 250_000),
    volume_24h: '5000000',
    reputation: 'ok',
  }
}
