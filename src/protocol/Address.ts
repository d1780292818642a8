import type { Address } from 'viem'
import * as Crypto from './Crypto'

const pattern = /^0x[0-9a-fA-F]{40}$/

/** The zero address. */
export const zero: Address = '0x0000000000000000000000000000000000000000'

/**
 * Checksummed addresses by lower-case text. The same assets and payees repeat, and each checksum
 * costs a hash. The key is a new string, because a slice would keep the text that it was cut from
 * in memory. Clients choose the addresses, so the map is emptied when it grows.
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
 * Like `parse`, but a mixed-case address must have the right EIP-55 checksum: users type these
 * addresses, and the checksum detects typing errors.
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
