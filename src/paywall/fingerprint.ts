/** RFC 9530 digest of a body, `sha-256=:base64:`; undefined for an empty one. */
export function bodyDigest(body: Uint8Array): string | undefined {
  if (body.byteLength === 0) return undefined
  return `sha-256=:${new Bun.CryptoHasher('sha256').update(body).digest('base64')}:`
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
