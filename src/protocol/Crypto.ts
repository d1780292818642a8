import { createKeccak } from 'hash-wasm'
import type { Address, Hex } from 'viem'
import * as Secp256k1 from './Secp256k1'

const hasher = await createKeccak(256)

/** Half of the secp256k1 group order: a canonical `s` is not above it (EIP-2). */
const halfOrder = '7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0'

const signaturePattern = /^0x[0-9a-fA-F]{130}$/

/** keccak256 of bytes, or of the UTF-8 bytes of a text. 32 bytes. */
export function keccak256(data: Uint8Array | string): Uint8Array {
  return hasher.init().update(data).digest('binary')
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

/** EIP-55 checksummed address of 40 lower-case hex digits without prefix. */
export function checksum(digits: string): Address {
  const hash = keccak256(digits)
  let text = ''
  for (let index = 0; index < 40; index += 2) {
    const byte = hash[index >> 1] ?? 0
    const high = digits[index] ?? ''
    const low = digits[index + 1] ?? ''
    text += byte >= 0x80 ? high.toUpperCase() : high
    text += (byte & 0x0f) >= 8 ? low.toUpperCase() : low
  }
  return `0x${text}`
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
  const compact = bytes(lower.slice(2, 130))
  const publicKey = Secp256k1.recover(compact, recoveryId, digest)
  return publicKey === undefined ? undefined : addressOfPublicKey(publicKey)
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
  const result = Secp256k1.sign(digest, privateKey)
  if (result === undefined) throw new Error('not a secp256k1 private key')
  return `${hex(result.compact)}${result.recoveryId === 0 ? '1b' : '1c'}`
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
  const publicKey = Secp256k1.publicKey(privateKey)
  if (publicKey === undefined) throw new Error('not a secp256k1 private key')
  const address = addressOfPublicKey(publicKey)
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

function addressOfPublicKey(publicKey: Uint8Array): Address {
  return checksum(keccak256(publicKey.subarray(1)).subarray(12).toHex())
}
