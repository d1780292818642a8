import type { Config, NetworkConfig, Stock } from '../config/Config'
import type { Asset } from '../protocol/Asset'
import { createExplorer } from './explorer'
import { createHistory, type History } from './history'
import { createIssuer } from './issuer'
import { createMarket, type Market, type MarketOptions } from './market'
import { createMarketData, type MarketData } from './market-data'

/** The parts of `[stock]` that the products share. */
export type OpenMarket = {
  market: Market
  /** For requests with a credential, which do not wait behind free requests. */
  paidMarket: Market
  /** For paid orders: any client can sign credentials without money, which would fill the queue. */
  deskMarket: Market
  data: MarketData
  /** Prices of the last day, from reads of the list. */
  history: History
  stock: Stock
  network: NetworkConfig
  asset: Asset
}

/** The market of a configuration with its sources; undefined without `[stock]`. */
export function openMarket(
  { stock, networks, service }: Pick<Config, 'stock' | 'networks' | 'service'>,
  { read, now, timeoutMs }: Pick<MarketOptions, 'read' | 'now' | 'timeoutMs'>,
): OpenMarket | undefined {
  const network = networks.find(({ id }) => id === stock?.network)
  if (stock === undefined || network === undefined) return undefined
  const { asset, chainId } = network
  const { issuerUrl, explorerUrl } = stock
  const common = {
    userAgent: service.contact === undefined ? 'Turnpike/1.0' : `Turnpike/1.0 (${service.contact})`,
    now,
  }
  const issuer = issuerUrl ? createIssuer({ ...common, url: issuerUrl, chainId }) : undefined
  const explorer = explorerUrl ? createExplorer({ ...common, url: explorerUrl }) : undefined
  const options = {
    ...{ stock, asset, read, now, timeoutMs },
    ...(issuer && { isHalted: issuer.isHalted }),
  }
  const history = createHistory(now)
  const market = createMarket({ ...options, history })
  const data = createMarketData({ market, asset, issuer, explorer, now })
  const [paidMarket, deskMarket] = [createMarket(options), createMarket(options)]
  return { market, paidMarket, deskMarket, data, history, stock, network, asset }
}
