import { createPrivateKey, type KeyObject, scryptSync, sign } from 'node:crypto'

/** Signatures and keys of minisign: https://jedisct1.github.io/minisign/ */

/** A key that signs releases. */
export type SigningKey = {
  id: Buffer
  key: KeyObject
  /** As `minisign -P` takes it. */
  publicKey: string
}

/** Why a file cannot sign. */
export class SigningKeyError extends Error {
  override readonly name = 'SigningKeyError'
}

const keyBytes = 158
/** A key of `minisign -G` needs 1 GiB. */
const memoryMaxBytes = 2 ** 30

/**
 * Reads a secret key of `minisign -G`. Only a key with a password needs one. Throws
 * SigningKeyError.
 */
export function readSigningKey(text: string, password: string | undefined): SigningKey {
  const bytes = Buffer.from(text.split(/\r?\n/)[1] ?? '', 'base64')
  const kind = bytes.toString('latin1', 0, 6)
  const isEncrypted = kind === 'EdScB2'
  if (bytes.length !== keyBytes || (!isEncrypted && kind !== 'Ed\0\0B2'))
    throw new SigningKeyError('it is not a secret key of minisign')
  const content = bytes.subarray(54)
  if (isEncrypted) {
    const stream = streamOf(bytes, password)
    for (const [index, byte] of stream.entries()) content[index] = (content[index] ?? 0) ^ byte
  }
  const [id, seed, publicPart] = [
    content.subarray(0, 8),
    content.subarray(8, 40),
    content.subarray(40, 72),
  ]
  const hasher = new Bun.CryptoHasher('blake2b256').update('Ed').update(content.subarray(0, 72))
  // A key without a password has no checksum.
  if (isEncrypted && !hasher.digest().equals(content.subarray(72)))
    throw new SigningKeyError('MINISIGN_PASSWORD is not its password')
  // PKCS #8 of Ed25519: RFC 8410.
  const der = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed])
  const key = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  const publicKey = Buffer.concat([Buffer.from('Ed'), id, publicPart]).toString('base64')
  return { id, key, publicKey }
}

/** What hides an encrypted key. Its costs are those of libsodium's crypto_pwhash_scryptsalsa208sha256. */
function streamOf(bytes: Buffer, password: string | undefined): Buffer {
  if (password === undefined)
    throw new SigningKeyError('it has a password: put that into MINISIGN_PASSWORD')
  const [operations, memory] = [bytes.readBigUInt64LE(38), bytes.readBigUInt64LE(46)].map(Number)
  if (memory === undefined || operations === undefined || memory > memoryMaxBytes)
    throw new SigningKeyError('its password needs too much memory')
  const rounds = Math.max(operations, 32_768) / 32
  const N = 2 ** Math.floor(Math.log2(Math.min(rounds, memory / 1024)))
  const costs = { N, r: 8, p: Math.max(1, Math.floor(rounds / N)), maxmem: 2 * memoryMaxBytes }
  return scryptSync(password, bytes.subarray(6, 38), keyBytes - 54, costs)
}

/**
 * The text of a .minisig file. The signature covers the comment, which says what the file is of. It
 * has no time, so that the same file gives the same text.
 */
export function signatureOf(file: Uint8Array, comment: string, { id, key }: SigningKey): string {
  const digest = new Bun.CryptoHasher('blake2b512').update(file).digest()
  const signature = sign(null, digest, key)
  const global = sign(null, Buffer.concat([signature, Buffer.from(comment)]), key)
  return `untrusted comment: signature of a turnpike release
${Buffer.concat([Buffer.from('ED'), id, signature]).toString('base64')}
trusted comment: ${comment}
${global.toString('base64')}
`
}
