import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'

/**
 * Calls of tokenized stocks as their issuer documents them, of its registry, and of Chainlink's
 * price feeds.
 */

/** ERC-20. */
export const decimals = Abi.method('decimals()')

/** ERC-20. */
export const totalSupply = Abi.method('totalSupply()')

/** Whether transfers are paused, of this token or of all tokens of the issuer. */
export const paused = Abi.method('paused()')

/** Whether this token alone was paused. */
export const tokenPaused = Abi.method('tokenPaused()')

/** Whether the price feed is paused, as around a split. Its price is not valid then. */
export const oraclePaused = Abi.method('oraclePaused()')

/** ERC-8056: shares per token times 1e18, for display only. */
export const uiMultiplier = Abi.method('uiMultiplier()')

/** Whether the registry forbids an address to send and to receive. */
export const isBlocked = Abi.method<[account: Address]>('isBlocked(address)')

/** The latest answer of a feed, see `parseRound`. */
export const latestRoundData = Abi.method('latestRoundData()')

/** `answer` has the feed's own decimals; `updatedAt` is unix ms. */
type Round = { answer: bigint; updatedAt: number }

/** Undefined for anything but a positive answer with a time. */
export function parseRound(data: Hex | undefined): Round | undefined {
  if (data === undefined) return undefined
  const words = data.slice(2)
  const [answer, updatedAt] = [Abi.uintAt(words, 1), Abi.uintAt(words, 3)]
  // The answer is signed: the upper half is negative.
  if (!answer || answer >> 255n !== 0n || !updatedAt || updatedAt >> 40n !== 0n) return undefined
  return { answer, updatedAt: Number(updatedAt) * 1000 }
}

/** Undefined for anything but one of the two words of a boolean. */
export function parseFlag(data: Hex | undefined): boolean | undefined {
  const word = parseUint(data)
  return word === 0n || word === 1n ? word === 1n : undefined
}

/** The first word; undefined when there is none. */
export function parseUint(data: Hex | undefined): bigint | undefined {
  return data === undefined ? undefined : Abi.uintAt(data.slice(2))
}
