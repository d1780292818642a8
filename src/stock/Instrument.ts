import { Type } from '@sinclair/typebox'
import type { Address } from 'viem'
import * as Multicall from '../chain/multicall'
import type { Stock, StockToken } from '../config/Config'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Permit from '../protocol/Permit'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import { shareDecimals } from './Order'

/** What the buyer pays for a swap of `usdgAtomic`: fees come on top and round up. */
export function totalOf(stock: Pick<Stock, 'feeBps'>, usdgAtomic: bigint): bigint {
  return usdgAtomic + (usdgAtomic * BigInt(stock.feeBps) + 9_999n) / 10_000n
}

/**
 * Shares below which nothing is delivered: the quote less the token's slippage, or the buyer's
 * minimum if that is more. At least one unit.
 */
export function floorOf(
  token: Pick<StockToken, 'slippageBps'>,
  quotedAtomic: bigint,
  minimumAtomic = 0n,
): bigint {
  const tolerated = (quotedAtomic * BigInt(10_000 - token.slippageBps)) / 10_000n
  return Amount.greatest(Amount.greatest(tolerated, minimumAtomic), 1n)
}

/** The terms that a buyer requests. `recipient` undefined: the payer. */
export type Terms = {
  token: StockToken
  usdgAtomic: bigint
  recipient: Address | undefined
  minimumAtomic: bigint | undefined
}

/** Query of a quote or a purchase, by the decimals of the asset that is paid with. */
export function termsQuery(decimals: number) {
  const known = termsQueries.get(decimals)
  if (known !== undefined) return known
  const made = makeTermsQuery(decimals)
  termsQueries.set(decimals, made)
  return made
}

/** Parameters that affect the price; a quote ignores the others. */
export const quoteNames = ['symbol', 'usdg'] as const

const termsQueries = new Map<number, ReturnType<typeof makeTermsQuery>>()

function makeTermsQuery(decimals: number) {
  return Type.Object({
    symbol: Type.String({
      description: 'Ticker of the token, in any case.',
      pattern: '^[A-Za-z0-9.]{1,12}$',
      fault: 'must be a ticker such as NVDA',
    }),
    usdg: Type.String({
      description: 'What is swapped; the fee comes on top.',
      pattern: decimalPattern(decimals),
      maxLength: decimalMaxLength,
      fault: decimalFault(decimals),
    }),
    recipient: Type.Optional(
      Type.String({
        description: 'Receives the tokens; the payer by default. Mixed case needs its checksum.',
        pattern: '^0x[0-9a-fA-F]{40}$',
        fault: recipientFault,
      }),
    ),
    minimumShares: Type.Optional(
      Type.String({
        description: 'Fewer tokens are not delivered: the whole amount goes back.',
        pattern: decimalPattern(shareDecimals),
        maxLength: decimalMaxLength,
        fault: sharesFault,
      }),
    ),
  })
}

const decimalMaxLength = 60
const recipientFault = 'must be an address with a valid checksum'
const sharesFault = 'must be a positive decimal with at most 18 places'

function decimalFault(decimals: number): string {
  return `must be a decimal with at most ${decimals} places, such as 25.5`
}

/** The pattern of `Amount.fromDecimal`. */
function decimalPattern(decimals: number): string {
  return `^(?:0|[1-9][0-9]*)${decimals === 0 ? '' : `(?:\\.[0-9]{1,${decimals}})?`}$`
}

/**
 * Reads the query of a quote or a purchase. Strict, because it moves money: a misspelt `recipient`
 * must not deliver to another account. Throws ProblemError: 400 with all faults, or 404 for a symbol
 * that is not listed.
 */
export function readTerms(
  query: URLSearchParams,
  stock: Pick<Stock, 'tokens' | 'minAtomic' | 'maxAtomic'>,
  { decimals }: Pick<Asset, 'decimals'>,
): Terms {
  const { values, wrong } = Schema.readQuery(termsQuery(decimals), query, {
    unknown: 'is not a parameter of this route',
    checks: {
      usdg: (text) => rangeFault(readDecimal(text, decimals), stock, decimals),
      recipient: (text) =>
        AddressText.parseStrict(text) === undefined ? recipientFault : undefined,
      minimumShares: (text) => (readShares(text) === undefined ? sharesFault : undefined),
    },
  })
  const { usdg, recipient, minimumShares } = values
  const symbol = values.symbol?.toUpperCase()
  if (wrong.length > 0 || symbol === undefined || usdg === undefined) throw invalidQuery(wrong)
  const token = stock.tokens.find((each) => each.symbol === symbol)
  if (token === undefined) {
    throw Problem.of('not-found', `${symbol} is not listed; /api/stock/list has all symbols.`)
  }
  return {
    token,
    usdgAtomic: Amount.fromDecimal(usdg, decimals),
    recipient: AddressText.parseStrict(recipient),
    minimumAtomic: minimumShares === undefined ? undefined : readShares(minimumShares),
  }
}

/** The 400 that names all faults of a query. */
export function invalidQuery(wrong: readonly Schema.Wrong[]): Problem.ProblemError {
  const names = [...new Set(wrong.map(({ name }) => name))].join(', ')
  const invalidParams = wrong.map((each) => ({ ...each, in: 'query' }))
  return Problem.of('invalid-parameter', `Invalid: ${names}.`, { members: { invalidParams } })
}

function rangeFault(
  atomic: bigint | undefined,
  { minAtomic, maxAtomic }: Pick<Stock, 'minAtomic' | 'maxAtomic'>,
  decimals: number,
): string | undefined {
  if (atomic === undefined) return decimalFault(decimals)
  if (atomic >= minAtomic && atomic <= maxAtomic) return undefined
  const [min, max] = [minAtomic, maxAtomic].map((limit) => Amount.toDecimal(limit, decimals))
  return `must be from ${min} to ${max}`
}

/** Undefined for none and for more than there can be. */
function readShares(text: string): bigint | undefined {
  const atomic = readDecimal(text, shareDecimals)
  return atomic === undefined || atomic === 0n || atomic >= 2n ** 128n ? undefined : atomic
}

/** Undefined for what is above 2^256. */
function readDecimal(text: string, decimals: number): bigint | undefined {
  try {
    return Amount.fromDecimal(text, decimals)
  } catch (error) {
    if (error instanceof RangeError) return undefined
    throw error
  }
}

/**
 * Why an address cannot receive shares: it is one of the service, or of a contract that would keep
 * them. Undefined when it can. SwapRouter02 takes the recipients 1 and 2 for the caller and itself,
 * and precompiles live below 2^16.
 */
export function refusalOf(
  recipient: Address,
  { stock, asset, own }: { stock: Stock; asset: Pick<Asset, 'address'>; own: readonly Address[] },
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
    Multicall.multicallAddress,
    asset.address,
    ...stock.tokens.flatMap(({ address, pool }) => [address, pool]),
  ]
  return contracts.some(is) ? 'is a contract that would keep the shares' : undefined
}
