import type { Address } from 'viem'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import type { Registry } from '../http/metrics'
import type { Asset } from '../protocol/Asset'
import { createDesk, type Desk, type DeskOptions } from './desk'
import {
  createHistory,
  createMarket,
  type History,
  type Market,
  type MarketOptions,
} from './market'
import { createMarketData, type MarketData } from './market-data'
import { createExplorer, createIssuer } from './public-sources'
import { createOrderShop, type OrderShop, type OrderShopOptions } from './purchase'

/** The parts that take orders. They are kept over a reload, because they have open orders. */
export type StartedStock = { desk: Desk; purchase: OrderShop }

type StartOptions = Omit<OrderShopOptions, keyof OpenMarket | 'desk' | 'own'> &
  Pick<DeskOptions, 'orders' | 'laterMs'> & {
    exchange: OpenMarket
    relayers: readonly Address[]
    meter: Pick<Registry, 'gauge' | 'onRender'>
  }

/** Creates the desk and its routes; nothing is driven before `desk.recover`. */
export function startStock(options: StartOptions): StartedStock {
  const { exchange, relayers } = options
  const desk = createDesk({ ...options, ...exchange, market: exchange.deskMarket })
  const own = [...relayers, desk.address]
  const purchase = createOrderShop({ ...options, ...exchange, desk, own })
  const gauge = options.meter.gauge('stock_orders', 'Stock orders that are at no end.', ['state'])
  options.meter.onRender(async () => {
    for (const [state, count] of await desk.counts()) gauge.set(count, { state })
  })
  return { desk, purchase }
}

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
  const contact = service.contact === undefined ? '' : ` (${service.contact})`
  const common = { userAgent: `Turnpike/1.0${contact}`, now }
  const issuer = issuerUrl ? createIssuer({ ...common, url: issuerUrl, chainId }) : undefined
  const explorer = explorerUrl ? createExplorer({ ...common, url: explorerUrl }) : undefined
  const options = { stock, asset, read, now, timeoutMs, isHalted: issuer?.isHalted }
  const history = createHistory(now)
  const market = createMarket({ ...options, history })
  const data = createMarketData({ market, asset, issuer, explorer, now })
  const [paidMarket, deskMarket] = [createMarket(options), createMarket(options)]
  return { market, paidMarket, deskMarket, data, history, stock, network, asset }
}
