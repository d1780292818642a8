import type { Presented } from './extract'

/** RFC 9530 digest of a body, `sha-256=:base64:`; undefined for an empty one. */
export function bodyDigest(body: Uint8Array): string | undefined {
  if (body.byteLength === 0) return undefined
  return `sha-256=:${new Bun.CryptoHasher('sha256').update(body).digest('base64')}:`
}

/**
 * sha256 (hex) of an x402 credential as it was sent. The chain publishes the signed values, but not
 * these bytes. Undefined for MPP, whose challenge id is not on the chain.
 */
export function credentialHash(presented: Presented): string | undefined {
  if (presented.kind !== 'x402') return undefined
  return new Bun.CryptoHasher('sha256').update(presented.value).digest('hex')
}

/**
 * Identifies what a payment was made for: sha256 (hex) over method, canonical path, query, body
 * digest, and of a charge by use the headers that select its answer. The parts before the headers
 * cannot contain a line feed, so the joined text is unambiguous.
 */
export function fingerprint(
  method: string,
  path: string,
  search: string,
  { digest = '', headers }: { digest?: string | undefined; headers?: string | undefined },
): string {
  const parts = [method, path, search, digest, ...(headers === undefined ? [] : [headers])]
  return new Bun.CryptoHasher('sha256').update(parts.join('\n')).digest('hex')
}
