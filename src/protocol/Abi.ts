import type { Address, Hex } from 'viem'
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

/** A value of bytes or of an array: it stands behind all words, at an offset. */
export type Dynamic = { tail: string }

/** An integer, an address, words as hex with prefix, or what `bytes` and `list` make. */
export type Argument = Hex | bigint | number | Dynamic

export function bytes(value: string): Dynamic {
  return { tail: dynamicBytes(value) }
}

/** An array of bytes, or of tuples that have some: each entry is its encoding. */
export function list(entries: readonly string[]): Dynamic {
  return { tail: uint(entries.length) + encode(...entries.map((tail) => ({ tail }))) }
}

/** The arguments of a call, or the members of a tuple. */
export function encode(...values: readonly Argument[]): string {
  const parts = values.map((value) => (typeof value === 'object' ? value : wordsOf(value)))
  let offset = parts.reduce(
    (sum, part) => sum + (typeof part === 'string' ? part.length / 2 : 32),
    0,
  )
  let heads = ''
  let tails = ''
  for (const part of parts) {
    if (typeof part === 'string') {
      heads += part
      continue
    }
    heads += uint(offset)
    tails += part.tail
    offset += part.tail.length / 2
  }
  return heads + tails
}

const addressLength = 42

function wordsOf(value: Exclude<Argument, Dynamic>): string {
  if (typeof value !== 'string') return uint(value)
  return value.length === addressLength ? address(value) : value.slice(2)
}

/** A function of contracts by its signature: makes calls of a contract. */
export function method<Args extends readonly Argument[] = []>(signature: string) {
  const start = selector(signature)
  return (to: Address, ...args: Args): { to: Address; data: Hex } => {
    return { to, data: `0x${start}${encode(...args)}` }
  }
}

/** Word of the keccak256 of words. */
export function hash(words: string): string {
  return keccak256(words).toHex()
}

const domainType = hashOf('EIP712Domain(string name,uint256 chainId,address verifyingContract)')
const versionedType = hashOf(
  'EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)',
)

/**
 * Every payment needs a domain. Requests to the facilitator choose some, so the cache is emptied when it
 * grows. That does not change any result.
 */
const domains = new Map<string, string>()
const domainsMax = 1024
const domainKeyMax = 256

/** EIP-712 domain separator of a contract, 64 hex digits. */
export function domainSeparator(
  chainId: number,
  contract: Address,
  { name, version }: { name: string; version?: string },
): string {
  // The length separates version and name, so that no two contracts share a key.
  const key = `${chainId}/${contract}/${version?.length}/${version}/${name}`
  const known = domains.get(key)
  if (known !== undefined) return known
  const type = version === undefined ? domainType : versionedType
  const names = hashOf(name) + (version === undefined ? '' : hashOf(version))
  const separator = hash(type + names + uint(chainId) + address(contract))
  if (key.length > domainKeyMax) return separator
  if (domains.size >= domainsMax) domains.clear()
  domains.set(key, separator)
  return separator
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

// What stands at an offset in bytes. NaN, which no comparison accepts, means that a value is missing.

/** A word as a number, below the length of the data. */
export function numberAt(data: string, offset: number): number {
  const value = Number(`0x${sliceAt(data, offset, 32)}`)
  return value <= data.length ? value : Number.NaN
}

/** Undefined where it extends past the end. */
export function sliceAt(data: string, offset: number, size: number): string | undefined {
  const content = data.slice(offset * 2, (offset + size) * 2)
  return content.length === size * 2 && offset >= 0 ? content : undefined
}

/** Dynamic bytes with their length in front; undefined when they extend past the end. */
export function bytesAt(data: string, offset: number): Hex | undefined {
  const content = sliceAt(data, offset + 32, numberAt(data, offset))
  return content === undefined ? undefined : `0x${content}`
}
