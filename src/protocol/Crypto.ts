import { resolve } from 'node:path'
import { createKeccak } from 'hash-wasm'
import type { Address, Hex } from 'viem'
// The package's own wrapper reads this file from a path that does not exist in the executable.
import file from '../../node_modules/tiny-secp256k1/lib/secp256k1.wasm' with { type: 'file' }

const hasher = await createKeccak(256)

/**
 * libsecp256k1 as `tiny-secp256k1` compiles it, with only the functions that are called here. Its
 * tables are part of the file. Signing takes three quarters of the time of older builds, and one
 * receipt is signed for each payment. Input and output stand at fixed places of the memory.
 */
type Exports = {
  memory: WebAssembly.Memory
  PRIVATE_INPUT: WebAssembly.Global
  PUBLIC_KEY_INPUT: WebAssembly.Global
  HASH_INPUT: WebAssembly.Global
  SIGNATURE_INPUT: WebAssembly.Global
  /** 1, or 0 for an invalid key. */
  pointFromScalar(length: number): number
  /** Recovery id. Ends the instance by a trap for an invalid key. `withExtra`: 0 for RFC 6979 alone. */
  signRecoverable(withExtra: 0 | 1): number
  /** 1, or 0 for a signature of no key. */
  recover(length: number, recoveryId: number): number
}

// The path is absolute, except in a bundle that is no executable: there it is relative to the bundle.
const code = await Bun.file(resolve(import.meta.dir, file)).arrayBuffer()
const { instance } = await WebAssembly.instantiate(code, {
  // The seed of the blinding of private keys. It is fixed, because this module takes no randomness.
  // libsecp256k1 takes the same time for every key also without blinding.
  './rand.js': { generateInt32: () => 0 },
  // Without an error `recover` returns 0 for r or s out of range.
  './validate_error.js': { throwError: () => undefined },
})
const wasm = instance.exports as Exports

// Calls are synchronous and one at a time, so they can share their memory, which never grows.
const part = ({ value }: WebAssembly.Global, length: number) =>
  new Uint8Array(wasm.memory.buffer, value, length)
const keyPart = part(wasm.PRIVATE_INPUT, 32)
const pointPart = part(wasm.PUBLIC_KEY_INPUT, 65)
const digestPart = part(wasm.HASH_INPUT, 32)
const compactPart = part(wasm.SIGNATURE_INPUT, 64)

/** Order of the group. A private key is above zero and below it. */
const order = Buffer.from('fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141', 'hex')

/** Half of the secp256k1 group order: a canonical `s` is not above it (EIP-2). */
const halfOrder = '7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0'

const signaturePattern = /^0x[0-9a-fA-F]{130}$/

/** keccak256 of bytes, or of the UTF-8 bytes of a text. 32 bytes. */
export function keccak256(data: Uint8Array | string): Uint8Array {
  return hasher.init().update(data).digest('binary')
}

/** sha256 in hex digits, without `0x`. */
export function sha256(data: string | Uint8Array): string {
  return new Bun.CryptoHasher('sha256').update(data).digest('hex')
}

/** `0x` and lower-case hex of bytes. */
export function hex(data: Uint8Array): Hex {
  return `0x${data.toHex()}`
}

/**
 * Bytes of hex, with or without `0x`. Throws a SyntaxError for anything else: text from outside must
 * have been checked before. A fifth of the time that Buffer takes.
 */
export function bytes(text: string): Uint8Array {
  return Uint8Array.fromHex(text.startsWith('0x') ? text.slice(2) : text)
}

/** EIP-191 digest of a message that a wallet signs: 32 bytes. */
export function messageDigest(message: string): Uint8Array {
  return keccak256(`\x19Ethereum Signed Message:\n${Buffer.byteLength(message)}${message}`)
}

/** Strangers choose them, so they are emptied when they grow. */
const checksums = new Map<string, Address>()
const checksumsMax = 8_192

/** EIP-55 checksummed address of 40 lower-case hex digits without prefix. */
export function checksum(digits: string): Address {
  const known = checksums.get(digits)
  if (known !== undefined) return known
  const hash = keccak256(digits)
  let text = ''
  for (let index = 0; index < 40; index += 2) {
    const byte = hash[index >> 1] ?? 0
    const high = digits[index] ?? ''
    const low = digits[index + 1] ?? ''
    text += byte >= 0x80 ? high.toUpperCase() : high
    text += (byte & 0x0f) >= 8 ? low.toUpperCase() : low
  }
  const address: Address = `0x${text}`
  if (checksums.size >= checksumsMax) checksums.clear()
  // Not `digits`, which may be a part of a long text and keep that in memory.
  checksums.set(text.toLowerCase(), address)
  return address
}

/**
 * Signer of a 32-byte digest; undefined for anything but a canonical 65-byte ECDSA signature (r, s
 * not above half the order, v 27/28 or 0/1). libsecp256k1 also recovers from a high s. Tokens and
 * Permit2 implementations differ there, so a high s is refused. Never throws.
 */
export function recover(digest: Uint8Array, signature: string): Address | undefined {
  if (digest.length !== 32 || !signaturePattern.test(signature)) return undefined
  const v = Number.parseInt(signature.slice(130), 16)
  const recoveryId = v === 27 || v === 0 ? 0 : v === 28 || v === 1 ? 1 : undefined
  if (recoveryId === undefined) return undefined
  const lower = signature.toLowerCase()
  if (lower.slice(66, 130) > halfOrder) return undefined
  compactPart.set(Uint8Array.fromHex(lower.slice(2, 130)))
  digestPart.set(digest)
  if (wasm.recover(pointPart.length, recoveryId) !== 1) return undefined
  return addressOfPoint()
}

/** Whether a signature has the one form that `recover`, tokens and Permit2 all accept. */
export function isCanonical(signature: string): boolean {
  if (!signaturePattern.test(signature)) return false
  const v = signature.slice(130).toLowerCase()
  return (v === '1b' || v === '1c') && signature.slice(66, 130).toLowerCase() <= halfOrder
}

/**
 * Signs a 32-byte digest: 65 bytes r, s (low), v = 27 or 28. RFC 6979, deterministic.
 * Throws when the key is not a valid scalar.
 */
export function sign(digest: Uint8Array, privateKey: Uint8Array): Hex {
  if (digest.length !== 32) throw new Error('a digest has 32 bytes')
  digestPart.set(digest)
  const recoveryId = withKey(privateKey, () => wasm.signRecoverable(0))
  return `0x${compactPart.toHex()}${recoveryId === 0 ? '1b' : '1c'}`
}

/** Addresses by key. Every part of the service asks for the same few. */
const addresses = new WeakMap<Uint8Array, Address>()

/**
 * Checksummed address of a private key, which must not change later. Throws when the key is not a
 * valid scalar.
 */
export function addressOf(privateKey: Uint8Array): Address {
  const known = addresses.get(privateKey)
  if (known !== undefined) return known
  withKey(privateKey, () => wasm.pointFromScalar(pointPart.length))
  const address = addressOfPoint()
  addresses.set(privateKey, address)
  return address
}

/**
 * The same EOA signature with v = 27/28. Permit2 and most tokens pass v to ecrecover unchanged, so
 * a signature with v = 0/1 recovers here and fails there. Only for signatures that `recover`
 * accepted: the last byte of a contract wallet's signature has its own meaning.
 */
export function withCanonicalV(signature: Hex): Hex {
  const v = signature.slice(-2)
  if (signature.length !== 132 || (v !== '00' && v !== '01')) return signature
  return `${signature.slice(0, 130)}${v === '00' ? '1b' : '1c'}` as Hex
}

/** Whether two texts are equal, in time that depends on their lengths only. */
export function equal(left: string, right: string): boolean {
  if (left.length !== right.length) return false
  let difference = 0
  for (let index = 0; index < left.length; index++) {
    difference |= left.charCodeAt(index) ^ right.charCodeAt(index)
  }
  return difference === 0
}

/** Address of the public key that is in the shared memory, 65 bytes. */
function addressOfPoint(): Address {
  return checksum(keccak256(pointPart.subarray(1)).subarray(12).toHex())
}

/** Overwrites the private key in the shared memory after use. Throws for an invalid key. */
function withKey(privateKey: Uint8Array, use: () => number): number {
  const isValid =
    privateKey.length === 32 &&
    Buffer.compare(privateKey, order) < 0 &&
    privateKey.some((byte) => byte !== 0)
  if (!isValid) throw new Error('not a secp256k1 private key')
  keyPart.set(privateKey)
  try {
    return use()
  } finally {
    keyPart.fill(0)
  }
}
