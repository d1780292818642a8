import { createHash, createPublicKey, type KeyObject, sign } from 'node:crypto'

/** A public key on P-256 as JSON. RFC 7518 section 6.2. */
type Jwk = { crv: string; kty: string; x: string; y: string }

type Message = {
  /** Private key of the account, on P-256. */
  key: KeyObject
  url: string
  nonce: string
  /** URL of the account; undefined while it is not known: the message then has the public key. */
  account: string | undefined
  /** Undefined reads a resource: RFC 8555 section 6.3 (POST-as-GET). */
  payload: object | undefined
}

/** The public key of a private key. The members are in the order of the thumbprint. */
export function jwkOf(key: KeyObject): Jwk {
  const { crv, kty, x, y } = createPublicKey(key).export({ format: 'jwk' })
  if (crv !== 'P-256' || kty !== 'EC' || x === undefined || y === undefined)
    throw new TypeError('not a key on P-256')
  return { crv, kty, x, y }
}

/** Signs a request of an account. RFC 8555 section 6.2. */
export function serialize({ key, url, nonce, account, payload }: Message): string {
  const signer = account === undefined ? { jwk: jwkOf(key) } : { kid: account }
  const head = encode(JSON.stringify({ alg: 'ES256', nonce, url, ...signer }))
  const body = payload === undefined ? '' : encode(JSON.stringify(payload))
  const signature = sign('sha256', Buffer.from(`${head}.${body}`), {
    key,
    dsaEncoding: 'ieee-p1363',
  })
  return JSON.stringify({
    protected: head,
    payload: body,
    signature: signature.toString('base64url'),
  })
}

/** The answer at the address of a challenge. RFC 8555 section 8.1, RFC 7638. */
export function authorize(token: string, key: KeyObject): string {
  const digest = createHash('sha256')
    .update(JSON.stringify(jwkOf(key)))
    .digest('base64url')
  return `${token}.${digest}`
}

function encode(text: string): string {
  return Buffer.from(text).toString('base64url')
}
