import type { Facilitator, NetworkConfig, Stock, StockToken } from './Config'
import * as keys from './keys'
import { readKeys } from './kinds'
import { readNetworkId } from './networks'
import {
  child,
  children,
  field,
  isEmptyList,
  openTable,
  optional,
  type Read,
  readList,
  reportKey,
  reportRepeats,
  type Table,
} from './reader'
import * as V from './values'

/** Reads `[facilitator]`; every key has a default. */
export function readFacilitator(root: Table, networks: readonly NetworkConfig[]): Facilitator {
  const table = child(root, 'facilitator') ?? openTable(root.source, ['facilitator'], {})
  const facilitator = readKeys(table, keys.facilitator, { payTo: () => readPayTo(table) })
  const known = networks.map(({ asset }) => asset.address)
  facilitator.assets.forEach((asset, i) => {
    const message = 'assets may only name the asset of a listed network; [] means all of them'
    if (!known.includes(asset)) reportKey(table, ['assets', i], message)
  })
  const isLimited = facilitator.minAmountAtomic > 0n || facilitator.apiKeyHashes.length > 0
  if (facilitator.payTo === 'any' && !isLimited) {
    const message = 'pay_to = "any" spends gas for any payee: set api_keys or min_amount too'
    reportKey(table, 'pay_to', message)
  }
  return facilitator
}

const payToWord: Read<'own' | 'any'> = (value) =>
  value === 'own' || value === 'any'
    ? value
    : { wrong: 'must be "own", "any" or an array of addresses' }

function readPayTo(table: Table): Facilitator['payTo'] {
  const value = table.raw.pay_to
  if (!Array.isArray(value)) return field(table, 'pay_to', payToWord, 'own')
  if (isEmptyList(table, 'pay_to'))
    reportKey(table, 'pay_to', 'pay_to has no address: write "own" or a list')
  return readList(table, 'pay_to', V.address) ?? []
}

/** Reads `[stock]`; undefined when the file has none. */
export function readStock(
  root: Table,
  networks: readonly NetworkConfig[],
  mapUpstream?: (url: URL) => URL,
): Stock | undefined {
  const table = child(root, 'stock')
  if (!table) return undefined
  const stock = readKeys(table, keys.stock, {
    network: (key) => readNetworkId(table, key, networks),
    issuerUrl: (key) => readSource(table, key, mapUpstream),
    explorerUrl: (key) => readSource(table, key, mapUpstream),
    tokens: () => readTokens(table),
  })
  if (stock.minAtomic > stock.maxAtomic) reportKey(table, 'min', 'min must not exceed max')
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
  if (!isOurs && (url.protocol !== 'https:' || V.isPrivate(url)))
    reportKey(table, key, `${key} must be a public https URL`)
  return url.href.replace(/\/+$/, '')
}

function readTokens(stock: Table): readonly StockToken[] {
  const tables = children(stock, 'tokens')
  if (tables.length === 0) reportKey(stock, 'tokens', 'no token is listed; write [[stock.tokens]]')
  const tokens = tables.map((table) => readKeys(table, keys.token, {}))
  for (const key of ['symbol', 'address', 'pool'] as const) {
    const values = tokens.map((token) => token[key])
    reportRepeats(tables, key, values, (line) => {
      return `${key} is already that of the token on line ${line}`
    })
  }
  return tokens
}
