/** RFC 9530 digest of a body, `sha-256=:base64:`; undefined for an empty one. */
export function bodyDigest(body: Uint8Array): string | undefined {
  if (body.byteLength === 0) return undefined
  return `sha-256=:${new Bun.CryptoHasher('sha256').update(body).digest('base64')}:`
}

/**
 * What a payment was made for: sha256 (hex) over method, canonical path, query and body digest. The
 * parts cannot contain a line feed, so the joined text is unambiguous.
 */
export function fingerprint(
  method: string,
  path: string,
  search: string,
  digest: string | undefined,
): string {
  return new Bun.CryptoHasher('sha256')
    .update(`${method}\n${path}\n${search}\n${digest ?? ''}`)
    .digest('hex')
}
