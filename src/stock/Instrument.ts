import type { Address } from 'viem'
import type { Stock, StockToken } from '../config/Config'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Permit from '../protocol/Permit'
import * as Problem from '../protocol/Problem'

/** Decimals of every official stock token; shares are told with all of them. */
export const shareDecimals = 18

/** The listed token of a symbol, in any case. */
export function find(stock: Pick<Stock, 'tokens'>, symbol: string): StockToken | undefined {
  const wanted = symbol.toUpperCase()
  return stock.tokens.find((token) => token.symbol === wanted)
}

/** What the buyer pays for a swap of `usdgAtomic`: fees come on top and round up. */
export function totalOf(stock: Pick<Stock, 'feeBps'>, usdgAtomic: bigint): bigint {
  return usdgAtomic + (usdgAtomic * BigInt(stock.feeBps) + 9_999n) / 10_000n
}

/**
 * Shares below which nothing is delivered: the quote less the token's slippage, or what the buyer
 * insists on if that is more. At least one unit.
 */
export function floorOf(
  token: Pick<StockToken, 'slippageBps'>,
  quotedAtomic: bigint,
  minimumAtomic = 0n,
): bigint {
  const tolerated = (quotedAtomic * BigInt(10_000 - token.slippageBps)) / 10_000n
  return [tolerated, minimumAtomic, 1n].reduce((most, each) => (each > most ? each : most))
}

/** What a buyer asks for. `recipient` undefined: the payer. */
export type Terms = {
  token: StockToken
  usdgAtomic: bigint
  recipient: Address | undefined
  minimumAtomic: bigint | undefined
}

export type Wrong = { name: string; reason: string }

export type ParsedTerms =
  | { kind: 'terms'; terms: Terms }
  | { kind: 'invalid'; wrong: readonly Wrong[] }
  | { kind: 'unknown-symbol'; symbol: string }

const names = ['symbol', 'usdg', 'recipient', 'minimumShares'] as const
type Name = (typeof names)[number]

/**
 * Reads the query of a quote or a purchase. Strict, because money follows it: a misspelt `recipient`
 * must not deliver to somebody else. Names everything that is wrong; a symbol that is well formed and
 * not listed is told apart.
 */
export function parseTerms(
  query: URLSearchParams,
  stock: Pick<Stock, 'tokens' | 'minAtomic' | 'maxAtomic'>,
  asset: Pick<Asset, 'decimals'>,
  allowed: readonly Name[] = names,
): ParsedTerms {
  const wrong: Wrong[] = []
  const refuse = (name: string, reason: string) => void wrong.push({ name, reason })
  for (const name of new Set(query.keys())) {
    if (!allowed.some((known) => known === name)) refuse(name, 'is not a parameter of this route')
    else if (query.getAll(name).length > 1) refuse(name, 'is given more than once')
  }
  const symbol = query.get('symbol')
  const isSymbol = symbol !== null && /^[A-Za-z0-9.]{1,12}$/.test(symbol)
  if (symbol === null) refuse('symbol', 'is required')
  else if (!isSymbol) refuse('symbol', 'must be a ticker such as NVDA')
  const usdgAtomic = readUsdg(query.get('usdg'), stock, asset.decimals, refuse)
  const recipient = readRecipient(query.get('recipient'), refuse)
  const minimumAtomic = readShares(query.get('minimumShares'), refuse)
  if (wrong.length > 0 || !isSymbol || usdgAtomic === undefined) return { kind: 'invalid', wrong }
  const token = find(stock, symbol)
  if (token === undefined) return { kind: 'unknown-symbol', symbol: symbol.toUpperCase() }
  return { kind: 'terms', terms: { token, usdgAtomic, recipient, minimumAtomic } }
}

/** The terms. Throws ProblemError, 400 with everything that is wrong or 404. */
export function assertTerms(parsed: ParsedTerms): Terms {
  switch (parsed.kind) {
    case 'terms':
      return parsed.terms
    case 'unknown-symbol':
      throw Problem.of('not-found', `${parsed.symbol} is not listed.`)
    case 'invalid': {
      const names = [...new Set(parsed.wrong.map(({ name }) => name))].join(', ')
      throw Problem.of('invalid-parameter', `Invalid: ${names}.`, {
        members: { invalidParams: parsed.wrong.map((wrong) => ({ ...wrong, in: 'query' })) },
      })
    }
  }
}

type Refuse = (name: string, reason: string) => void

function readUsdg(
  text: string | null,
  { minAtomic, maxAtomic }: Pick<Stock, 'minAtomic' | 'maxAtomic'>,
  decimals: number,
  refuse: Refuse,
): bigint | undefined {
  if (text === null) return void refuse('usdg', 'is required')
  const atomic = readDecimal(text, decimals)
  if (atomic === undefined)
    return void refuse('usdg', `must be a decimal with at most ${decimals} places, such as 25.5`)
  if (atomic < minAtomic || atomic > maxAtomic) {
    const [min, max] = [minAtomic, maxAtomic].map((limit) => Amount.toDecimal(limit, decimals))
    return void refuse('usdg', `must be from ${min} to ${max}`)
  }
  return atomic
}

function readRecipient(text: string | null, refuse: Refuse): Address | undefined {
  if (text === null) return undefined
  const address = AddressText.parseStrict(text)
  if (address === undefined) refuse('recipient', 'must be an address with a valid checksum')
  return address
}

function readShares(text: string | null, refuse: Refuse): bigint | undefined {
  if (text === null) return undefined
  const atomic = readDecimal(text, shareDecimals)
  if (atomic === undefined || atomic === 0n || atomic >= 2n ** 128n)
    return void refuse('minimumShares', 'must be a positive decimal with at most 18 places')
  return atomic
}

function readDecimal(text: string, decimals: number): bigint | undefined {
  if (text.length > 60) return undefined
  try {
    return Amount.fromDecimal(text, decimals)
  } catch (error) {
    if (error instanceof RangeError) return undefined
    throw error
  }
}

/** Who may not receive shares: contracts that would keep them, and ourselves. */
export type Forbidden = { stock: Stock; asset: Pick<Asset, 'address'>; own: readonly Address[] }

const multicall3: Address = '0xcA11bde05977b3631167028862bE2a173976CA11'

/**
 * Why an address cannot receive shares; undefined when it can. SwapRouter02 takes the recipients 1 and
 * 2 for the caller and itself, and precompiles live below 2^16.
 */
export function refusalOf(
  recipient: Address,
  { stock, asset, own }: Forbidden,
): string | undefined {
  if (BigInt(recipient) < 65_536n) return 'is a reserved address'
  const is = (address: Address) => AddressText.equal(address, recipient)
  if (own.some(is)) return 'is an account of this service'
  const contracts = [
    stock.router,
    stock.factory,
    stock.quoter,
    stock.registry,
    Permit.permit2Address,
    Permit.proxyAddress,
    multicall3,
    asset.address,
    ...stock.tokens.flatMap(({ address, pool }) => [address, pool]),
  ]
  return contracts.some(is) ? 'is a contract that would keep the shares' : undefined
}
