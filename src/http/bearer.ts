import * as Crypto from '../protocol/Crypto'

/**
 * Whether a request has a token as `Authorization: Bearer`. The comparison's time shows nothing
 * about the token.
 */
export function hasBearer(request: Request, token: string): boolean {
  const authorization = request.headers.get('authorization') ?? ''
  return isToken(/^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '', token)
}

/** Whether two tokens are equal. Hashes have the same length for all of them. */
export function isToken(presented: string, token: string): boolean {
  return Crypto.equal(Crypto.sha256(presented), Crypto.sha256(token))
}
