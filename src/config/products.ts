import type { Facilitator, NetworkConfig, Stock, StockToken } from './Config'
import * as keys from './keys'
import { readKeys } from './kinds'
import { keyOf } from './lines'
import { assetsOf, readNetworkId } from './networks'
import {
  at,
  child,
  children,
  field,
  isEmptyList,
  list,
  open,
  optional,
  type Read,
  report,
  type Table,
} from './reader'
import * as V from './values'

/** Reads `[facilitator]`; every key has a default. */
export function readFacilitator(root: Table, networks: readonly NetworkConfig[]): Facilitator {
  const table = child(root, 'facilitator') ?? open(root.source, ['facilitator'], {})
  const facilitator = readKeys(table, keys.facilitator, { payTo: () => readPayTo(table) })
  facilitator.assets.forEach((asset, i) => {
    if (assetsOf(networks).includes(asset)) return
    const message = 'assets may only name the asset of a listed network; [] means all of them'
    report(table.source, [...table.path, 'assets', i], message)
  })
  const isLimited = facilitator.minAmountAtomic > 0n || facilitator.apiKeyHashes.length > 0
  if (facilitator.payTo === 'any' && !isLimited) {
    const message = 'pay_to = "any" spends gas for any payee: set api_keys or min_amount too'
    report(table.source, at(table, 'pay_to'), message)
  }
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
  const stock = readKeys(table, keys.stock, {
    network: (key) => readNetworkId(table, key, networks, 'eip155:4663'),
    issuerUrl: (key) => readSource(table, key, mapUpstream),
    explorerUrl: (key) => readSource(table, key, mapUpstream),
    tokens: () => readTokens(table),
  })
  if (stock.minAtomic > stock.maxAtomic) {
    report(table.source, at(table, 'min'), 'min must not exceed max')
  }
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
  const tokens = tables.map((table) => readKeys(table, keys.token, {}))
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
