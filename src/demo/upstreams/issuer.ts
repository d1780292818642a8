import { type Ask, hex, number, type Reply, type Route, today } from './reply'
import { stocks } from './stocks'

function deployments(contractAddress: string) {
  return [{ contractAddress, chainId: 4663, networkName: 'Robinhood Chain' }]
}

function assets(): Reply {
  const rows = stocks.map(([symbol, address]) => ({
    id: hex(`asset|${symbol}`, 16),
    tokenSymbol: symbol,
    tokenName: `${symbol} • Robinhood Token`,
    deployments: deployments(address),
    currentMultiplier: '1.000000000000000000',
    pendingMultiplier: null,
    logoUrl: `https://cdn.robinhood.com/${symbol.toLowerCase()}.png`,
    tradingCapabilities: ['BUY', 'SELL'],
    status: 'ASSET_STATUS_ACTIVE',
    tokenDecimals: 18,
    isin: `JE00${hex(symbol, 4).toUpperCase()}`,
  }))
  return { body: { assets: rows } }
}

function prices({ captures }: Ask): Reply {
  const found = stocks.find(([symbol]) => symbol === captures[0]?.toUpperCase())
  if (!found) return { status: 404, body: { message: 'asset not found' } }
  const [tokenSymbol, address, price] = found
  return {
    body: {
      quotes: [
        {
          tokenSymbol,
          deployments: deployments(address),
          bid: (price * 0.9995).toFixed(4),
          ask: (price * 1.0005).toFixed(4),
          currency: 'USD',
          dailyTradingVolume: String(number(`volume|${tokenSymbol}`, 100_000, 9_000_000)),
          isTradingHalt: false,
          generatedAt: `${today}T12:00:00Z`,
        },
      ],
    },
  }
}

/** Assets and prices of the stock tokens' issuer. */
export const routes: readonly Route[] = [
  { path: /^\/rhj\/assets$/, answer: assets },
  { path: /^\/rhj\/prices\/([^/]+)$/, answer: prices },
]
