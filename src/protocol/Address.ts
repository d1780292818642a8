import type { Address } from 'viem'
import * as Crypto from './Crypto'

const pattern = /^0x[0-9a-fA-F]{40}$/

/** The zero address. */
export const zero: Address = '0x0000000000000000000000000000000000000000'

/**
 * Assets and payees come again and again, and a checksum is a hash. By our own text, which holds nothing
 * of what it was cut from. Strangers choose what is in it, so it is emptied when it grows.
 */
const checksummed = new Map<string, Address>()
const checksummedMax = 4096

/** Checksummed address of `0x` and 40 hex digits in any case; undefined for anything else. */
export function parse(value: unknown): Address | undefined {
  if (typeof value !== 'string') return undefined
  const known = checksummed.get(value)
  if (known !== undefined) return known
  if (!pattern.test(value)) return undefined
  const address = Crypto.checksum(value.slice(2).toLowerCase())
  if (checksummed.size >= checksummedMax) checksummed.clear()
  checksummed.set(address, address)
  return address
}

/**
 * Like `parse`, but a mixed-case address must carry its EIP-55 checksum: people type these, and the
 * checksum is what catches the typo.
 */
export function parseStrict(value: unknown): Address | undefined {
  const address = parse(value)
  if (address === undefined || address === value) return address
  const digits = (value as string).slice(2)
  const isOneCase = digits === digits.toLowerCase() || digits === digits.toUpperCase()
  return isOneCase ? address : undefined
}

/** Whether two well-formed addresses are the same twenty bytes. */
export function equal(left: string, right: string): boolean {
  return left === right || left.toLowerCase() === right.toLowerCase()
}
