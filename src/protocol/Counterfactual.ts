import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import { zero } from './Address'

/**
 * ERC-6492: a signature of a wallet that may not be deployed yet, with the call that would deploy
 * it. https://eips.ethereum.org/EIPS/eip-6492
 */
export type Counterfactual = { factory: Address; data: Hex; signature: Hex }

const magic = '6492'.repeat(16)

/**
 * Unwraps a signature. Undefined for one without the wrapper, and for one that names no factory.
 */
export function parse(signature: Hex): Counterfactual | undefined {
  const digits = signature.slice(2).toLowerCase()
  if (!digits.endsWith(magic)) return undefined
  const body = digits.slice(0, -magic.length)
  const factory = Abi.addressAt(body, 0)
  const data = bytesAt(body, Abi.wordAt(body, 1))
  const inner = bytesAt(body, Abi.wordAt(body, 2))
  if (factory === undefined || factory === zero) return undefined
  if (data === undefined || inner === undefined || inner === '0x') return undefined
  return { factory, data, signature: inner }
}

/** The signature that the wallet itself verifies. */
export function innerOf(signature: Hex): Hex {
  return parse(signature)?.signature ?? signature
}

/** Dynamic bytes at an offset word; undefined when they extend past the end. */
function bytesAt(body: string, offset: string | undefined): Hex | undefined {
  const start = smallOf(offset, body) * 2
  const size = smallOf(body.slice(start, start + 64), body) * 2
  const content = body.slice(start + 64, start + 64 + size)
  return content.length === size ? `0x${content}` : undefined
}

/** A word as a number below the length of the text; else NaN, which yields an empty slice. */
function smallOf(word: string | undefined, body: string): number {
  const value = word?.length === 64 ? Number(`0x${word}`) : Number.NaN
  return value < body.length ? value : Number.NaN
}
