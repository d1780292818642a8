import type { Address } from 'viem'
import type { Facilitator, NetworkConfig, Stock, StockToken } from './Config'
import { keyOf } from './lines'
import { assetsOf, readNetworkId } from './networks'
import {
  at,
  child,
  children,
  close,
  field,
  isEmptyList,
  list,
  open,
  optional,
  type Read,
  report,
  required,
  type Table,
} from './reader'
import * as V from './values'

/** Reads `[facilitator]`; every key has a default. */
export function readFacilitator(root: Table, networks: readonly NetworkConfig[]): Facilitator {
  const table = child(root, 'facilitator') ?? open(root.source, ['facilitator'], {})
  const assets = list(table, 'assets', V.address) ?? []
  assets.forEach((asset, i) => {
    if (assetsOf(networks).includes(asset)) return
    const message = 'assets may only name the asset of a listed network; [] means all of them'
    report(table.source, [...table.path, 'assets', i], message)
  })
  const facilitator: Facilitator = {
    verifyPerMinute: field(table, 'verify_per_minute', V.integer(1, 1_000_000), 120),
    settlePerMinute: field(table, 'settle_per_minute', V.integer(1, 1_000_000), 120),
    settleWaitSeconds: field(table, 'settle_wait_seconds', V.integer(1, 300), 60),
    payTo: readPayTo(table),
    assets,
    minAmountAtomic: field(table, 'min_amount', V.amount, 0n),
    apiKeyHashes: list(table, 'api_keys', V.sha256) ?? [],
    uptoWithoutKeys: field(table, 'upto_without_keys', V.flag, false),
  }
  const isLimited = facilitator.minAmountAtomic > 0n || facilitator.apiKeyHashes.length > 0
  if (facilitator.payTo === 'any' && !isLimited) {
    const message = 'pay_to = "any" spends gas for any payee: set api_keys or min_amount too'
    report(table.source, at(table, 'pay_to'), message)
  }
  close(table)
  return facilitator
}

const payToWord: Read<'own' | 'any'> = (value) =>
  value === 'own' || value === 'any'
    ? value
    : { wrong: 'must be "own", "any" or an array of addresses' }

function readPayTo(table: Table): Facilitator['payTo'] {
  const value = table.raw.pay_to
  if (!Array.isArray(value)) {
    return field(table, 'pay_to', payToWord, 'own')
  }
  if (isEmptyList(table, 'pay_to')) {
    report(table.source, at(table, 'pay_to'), 'pay_to has no address: write "own" or a list')
  }
  return list(table, 'pay_to', V.address) ?? []
}

/** Reads `[stock]`; undefined when the file has none. */
export function readStock(
  root: Table,
  networks: readonly NetworkConfig[],
  mapUpstream?: (url: URL) => URL,
): Stock | undefined {
  const table = child(root, 'stock')
  if (!table) return undefined
  const contract = (key: string): Address =>
    required(table, key, V.address, '"0x..."') ?? V.zeroAddress
  const stock: Stock = {
    network: readNetworkId(table, 'network', networks, 'eip155:4663'),
    minAtomic: field(table, 'min', V.price, 1_000_000n),
    maxAtomic: field(table, 'max', V.price, 1_000_000_000n),
    feeBps: field(table, 'fee_bps', V.integer(0, 1000), 0),
    feedDistanceBps: field(table, 'feed_distance_bps', V.integer(1, 10_000), 300),
    feedMaxAgeSeconds: field(table, 'feed_max_age_seconds', V.integer(1, 31_536_000), 93_600),
    factory: contract('factory'),
    router: contract('router'),
    quoter: contract('quoter'),
    registry: contract('registry'),
    issuerUrl: readSource(table, 'issuer_url', mapUpstream),
    explorerUrl: readSource(table, 'explorer_url', mapUpstream),
    tokens: readTokens(table),
  }
  if (stock.minAtomic > stock.maxAtomic) {
    report(table.source, at(table, 'min'), 'min must not exceed max')
  }
  close(table)
  return stock
}

/**
 * Reads the URL of a source outside of the chain. It must be https, except where an override names
 * this machine.
 */
function readSource(
  table: Table,
  key: string,
  map: ((url: URL) => URL) | undefined,
): string | undefined {
  const written = optional(table, key, V.url('http', 'https'))
  const url = written && map ? map(written) : written
  if (url === undefined) return undefined
  const isOurs = map !== undefined && V.isLoopback(url)
  if (!isOurs && (url.protocol !== 'https:' || V.isPrivate(url))) {
    report(table.source, at(table, key), `${key} must be a public https URL`)
  }
  return url.href.replace(/\/+$/, '')
}

function readTokens(stock: Table): readonly StockToken[] {
  const tables = children(stock, 'tokens')
  if (tables.length === 0) {
    report(stock.source, at(stock, 'tokens'), 'no token is listed; write [[stock.tokens]]')
  }
  const tokens = tables.map(readToken)
  tables.forEach((table, i) => {
    for (const key of ['symbol', 'address', 'pool'] as const) {
      const first = tokens.findIndex((token) => token[key] === tokens[i]?.[key])
      if (first === i) continue
      const line = stock.source.lines.get(keyOf([...stock.path, 'tokens', first, key]))
      const message = `${key} is already that of the token on line ${line ?? '?'}`
      report(table.source, at(table, key), message)
    }
  })
  return tokens
}

function readToken(table: Table): StockToken {
  const token: StockToken = {
    symbol: required(table, 'symbol', symbol, '"NVDA"') ?? '',
    name: required(table, 'name', V.filled, '"NVIDIA"') ?? '',
    address: required(table, 'address', V.address, '"0x..."') ?? V.zeroAddress,
    pool: required(table, 'pool', V.address, '"0x..."') ?? V.zeroAddress,
    // Uniswap V3 fee tiers are hundredths of a basis point, below 1,000,000.
    fee: required(table, 'fee', V.integer(1, 999_999), '500') ?? 0,
    slippageBps: field(table, 'slippage_bps', V.integer(1, 5000), 100),
    feed: optional(table, 'feed', V.address),
  }
  close(table)
  return token
}

const symbol: Read<string> = (value) =>
  typeof value === 'string' && /^[A-Z0-9.]{1,12}$/.test(value)
    ? value
    : { wrong: 'must be a ticker of capital letters, digits and dots, such as "NVDA"' }
