import { resolve } from 'node:path'
// The package's own wrapper reads this file from a path that does not exist in the executable.
import file from '../../node_modules/tiny-secp256k1/lib/secp256k1.wasm' with { type: 'file' }

/**
 * libsecp256k1 as `tiny-secp256k1` compiles it, with only what the service needs. Its tables are part
 * of the file. Signing takes three quarters of the time of older builds, and one receipt is signed for
 * each payment.
 */

/** The functions that are called here. Their input and output stand at fixed places of the memory. */
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

/**
 * Uncompressed public key (65 bytes) that signed a 32-byte digest; undefined when there is none.
 * `compact` is r and s, 64 bytes. Does not check whether s is low.
 */
export function recover(
  compact: Uint8Array,
  recoveryId: 0 | 1,
  digest: Uint8Array,
): Uint8Array | undefined {
  compactPart.set(compact)
  digestPart.set(digest)
  return wasm.recover(pointPart.length, recoveryId) === 1 ? pointPart.slice() : undefined
}

/** r and s (64 bytes, s low) over a 32-byte digest, RFC 6979; undefined for an invalid key. */
export function sign(
  digest: Uint8Array,
  privateKey: Uint8Array,
): { compact: Uint8Array; recoveryId: 0 | 1 } | undefined {
  digestPart.set(digest)
  return withKey(privateKey, () => {
    const recoveryId = wasm.signRecoverable(0) === 0 ? 0 : 1
    return { compact: compactPart.slice(), recoveryId }
  })
}

/** Uncompressed public key (65 bytes) of a private key; undefined for an invalid key. */
export function publicKey(privateKey: Uint8Array): Uint8Array | undefined {
  return withKey(privateKey, () =>
    wasm.pointFromScalar(pointPart.length) === 1 ? pointPart.slice() : undefined,
  )
}

/** Overwrites the private key in the shared memory after use. Undefined for an invalid key. */
function withKey<T>(privateKey: Uint8Array, use: () => T): T | undefined {
  const isValid =
    privateKey.length === 32 &&
    Buffer.compare(privateKey, order) < 0 &&
    privateKey.some((byte) => byte !== 0)
  if (!isValid) return undefined
  keyPart.set(privateKey)
  try {
    return use()
  } finally {
    keyPart.fill(0)
  }
}
