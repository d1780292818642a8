import type { Address } from 'viem'
import * as Crypto from './Crypto'

/** Words of the contract ABI as 64 lower-case hex digits, without prefix. */

/** First four bytes of the hash of a function signature, 8 hex digits. */
export function selector(signature: string): string {
  return Crypto.keccak256(signature).toHex().slice(0, 8)
}

/** Word of the hash of a text: EIP-712 type hashes and string members. */
export function hashOf(text: string): string {
  return Crypto.keccak256(text).toHex()
}

/** Word of an unsigned integer below 2^256. */
export function uint(value: bigint | number): string {
  return value.toString(16).padStart(64, '0')
}

/** Word of an address. */
export function address(value: Address): string {
  return `000000000000000000000000${value.slice(2).toLowerCase()}`
}

/** Length word and padded content of dynamic bytes given as hex with prefix. */
export function dynamicBytes(value: string): string {
  const digits = value.slice(2).toLowerCase()
  const size = digits.length / 2
  return uint(size) + digits.padEnd(Math.ceil(size / 32) * 64, '0')
}

/** Word of the keccak256 of words. */
export function hash(words: string): string {
  return keccak256(words).toHex()
}

/** EIP-712 digest of a domain separator and the words of a struct. */
export function typedDigest(domainSeparator: string, words: string): Uint8Array {
  return keccak256(`1901${domainSeparator}${keccak256(words).toHex()}`)
}

function keccak256(words: string): Uint8Array {
  return Crypto.keccak256(Uint8Array.fromHex(words))
}

// Data without prefix and selector. Its words are counted from 0; undefined past the end.

/** The word at an index. */
export function wordAt(data: string, index: number): string | undefined {
  const word = data.slice(index * 64, index * 64 + 64)
  return word.length === 64 ? word : undefined
}

/**
 * Address at an index; undefined when the upper twelve bytes are not zero, which contracts refuse.
 */
export function addressAt(data: string, index = 0): Address | undefined {
  const word = data.slice(index * 64, index * 64 + 64)
  const isAddress = word.length === 64 && word.startsWith('000000000000000000000000')
  return isAddress ? Crypto.checksum(word.slice(24)) : undefined
}

/** Integer at an index. */
export function uintAt(data: string, index = 0): bigint | undefined {
  const word = data.slice(index * 64, index * 64 + 64)
  return word.length === 64 ? BigInt(`0x${word}`) : undefined
}
