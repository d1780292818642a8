// Not from the package's root, which would load and run all of the package.

import { secp256k1Base64Bytes } from '@bitauth/libauth/build/lib/bin/secp256k1/secp256k1.base64.js'
import {
  CompressionFlag,
  ContextFlag,
  instantiateSecp256k1WasmBytes,
} from '@bitauth/libauth/build/lib/bin/secp256k1/secp256k1-wasm.js'

/**
 * libsecp256k1 with only what the service needs. The package's own wrapper computes the tables for
 * recovery when it is loaded, which is the longest step of a cold start. Here the first recovery
 * computes them, or `warm`.
 */

const wasm = await instantiateSecp256k1WasmBytes(
  new Uint8Array(Buffer.from(secp256k1Base64Bytes, 'base64')).buffer,
)
const signing = wasm.contextCreate(ContextFlag.SIGN)
let recovering: number | undefined

// Calls are synchronous and one at a time, so they can share their memory.
const compactPtr = wasm.malloc(64)
const digestPtr = wasm.malloc(32)
const keyPtr = wasm.malloc(32)
const recoverablePtr = wasm.malloc(65)
const pointPtr = wasm.malloc(64)
const serializedPtr = wasm.malloc(65)
const recoveryIdPtr = wasm.malloc(4)
const lengthPtr = wasm.malloc(4)

/** Computes the tables for recovery, about ten milliseconds, unless they exist. */
export function warm(): void {
  recovering ??= wasm.contextCreate(ContextFlag.VERIFY)
}

/**
 * Uncompressed public key (65 bytes) that signed a 32-byte digest; undefined when there is none.
 * `compact` is r and s, 64 bytes. Does not check whether s is low.
 */
export function recover(
  compact: Uint8Array,
  recoveryId: 0 | 1,
  digest: Uint8Array,
): Uint8Array | undefined {
  recovering ??= wasm.contextCreate(ContextFlag.VERIFY)
  wasm.heapU8.set(compact, compactPtr)
  wasm.heapU8.set(digest, digestPtr)
  const parsed = wasm.recoverableSignatureParse(recovering, recoverablePtr, compactPtr, recoveryId)
  if (parsed !== 1) return undefined
  if (wasm.recover(recovering, pointPtr, recoverablePtr, digestPtr) !== 1) return undefined
  return serialized()
}

/** r and s (64 bytes, s low) over a 32-byte digest, RFC 6979; undefined for an invalid key. */
export function sign(
  digest: Uint8Array,
  privateKey: Uint8Array,
): { compact: Uint8Array; recoveryId: 0 | 1 } | undefined {
  wasm.heapU8.set(digest, digestPtr)
  const isSigned = withKey(
    privateKey,
    () => wasm.signRecoverable(signing, recoverablePtr, digestPtr, keyPtr) === 1,
  )
  if (!isSigned) return undefined
  wasm.recoverableSignatureSerialize(signing, compactPtr, recoveryIdPtr, recoverablePtr)
  const recoveryId = wasm.heapU32[recoveryIdPtr >> 2] === 0 ? 0 : 1
  return { compact: wasm.heapU8.slice(compactPtr, compactPtr + 64), recoveryId }
}

/** Uncompressed public key (65 bytes) of a private key; undefined for an invalid key. */
export function publicKey(privateKey: Uint8Array): Uint8Array | undefined {
  const isValid = withKey(
    privateKey,
    () =>
      wasm.seckeyVerify(signing, keyPtr) === 1 &&
      wasm.pubkeyCreate(signing, pointPtr, keyPtr) === 1,
  )
  return isValid ? serialized() : undefined
}

/** Overwrites the private key in the shared memory after use. */
function withKey(privateKey: Uint8Array, use: () => boolean): boolean {
  if (privateKey.length !== 32) return false
  wasm.heapU8.set(privateKey, keyPtr)
  try {
    return use()
  } finally {
    wasm.heapU8.fill(0, keyPtr, keyPtr + 32)
  }
}

function serialized(): Uint8Array {
  wasm.heapU32[lengthPtr >> 2] = 65
  const { UNCOMPRESSED } = CompressionFlag
  wasm.pubkeySerialize(signing, serializedPtr, lengthPtr, pointPtr, UNCOMPRESSED)
  return wasm.heapU8.slice(serializedPtr, serializedPtr + 65)
}
