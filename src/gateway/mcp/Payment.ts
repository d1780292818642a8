import * as Challenge from '../../protocol/Challenge'
import { base64url, decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'

/**
 * Payments in `_meta` of MCP messages: draft-payment-transport-mcp-00 and the x402 MCP transport.
 * They are the payment headers of HTTP as native JSON, and are converted to those headers.
 */

export const credentialKey = 'org.paymentauth/credential'
export const receiptKey = 'org.paymentauth/receipt'
export const x402PaymentKey = 'x402/payment'
export const x402ResponseKey = 'x402/payment-response'
/** mppx reads this member of tool results: the data of error -32042. */
export const requiredKey = 'org.paymentauth/payment-required'
/** Members of our own, for headers of our own over HTTP. */
export const redeemKey = 'turnpike/redeem'
export const idempotencyKey = 'turnpike/idempotency-key'
export const replayedKey = 'turnpike/idempotency-replayed'
export const truncatedKey = 'turnpike/truncated'
/** Of tools: what a wallet has without a payment over HTTP, and what a pass opens. */
export const entitlementsKey = 'turnpike/x-entitlements'
export const passKey = 'turnpike/x-pass'

/** How a call pays. */
export type Kind = 'none' | 'mpp' | 'x402' | 'redeem'

export type Presented = { kind: Kind; headers: Readonly<Record<string, string>> }

const visible = /^[\x21-\x7e]+$/

/** The payment of a call as the headers of a request. Throws a JsonError that names the member. */
export function fromMeta(meta: Json.JsonObject): Presented {
  const headers: Record<string, string> = {}
  const credential = Json.optional(meta, credentialKey, 'object')
  const payment = Json.optional(meta, x402PaymentKey, 'object')
  const redeem = Json.optional(meta, redeemKey, 'text')
  const key = Json.optional(meta, idempotencyKey, 'text')
  if (credential !== undefined) headers.authorization = authorization(credential)
  if (payment !== undefined) headers['payment-signature'] = signature(payment)
  if (redeem !== undefined) headers['payment-redeem'] = header(redeem, redeemKey)
  if (key !== undefined) headers['idempotency-key'] = header(key, idempotencyKey)
  // The gateway refuses several at once.
  const kind =
    payment !== undefined
      ? 'x402'
      : credential !== undefined
        ? 'mpp'
        : redeem !== undefined
          ? 'redeem'
          : 'none'
  return { kind, headers }
}

/**
 * Writes a value in one canonical form. Only the bytes that began a payment continue it, and
 * clients may change the order of members.
 */
function signature(payment: Json.JsonObject): string {
  return Buffer.from(Json.canonicalize(payment)).toString('base64')
}

function header(value: string, name: string): string {
  if (!visible.test(value)) throw new Json.JsonError(`${name} is not visible ASCII`)
  return value
}

/** Over HTTP the challenge's `request` and `opaque` are base64url; here they may be objects. */
function authorization(credential: Json.JsonObject): string {
  const challenge = Json.read(credential, 'challenge', 'object')
  const encoded: Record<string, Json.Json> = { ...challenge }
  for (const name of ['request', 'opaque']) {
    const value = Json.member(challenge, name)
    if (Json.isObject(value)) encoded[name] = base64url(Json.canonicalize(value))
  }
  return `Payment ${base64url(JSON.stringify({ ...credential, challenge: encoded }))}`
}

/**
 * Challenges of a 402 as objects whose `request` is native JSON. They come from the body where the
 * header had no room for all, else from WWW-Authenticate.
 */
export function challenges(
  authenticate: string | null,
  whole: Json.Json | undefined,
  description: string,
): Json.JsonObject[] {
  const params = Array.isArray(whole)
    ? whole.filter((each) => Json.isObject(each))
    : Challenge.parseHeader(authenticate ?? '')
  return params.map((each) => ({
    ...each,
    request: decodeJson(Json.read(each, 'request', 'text'), 'base64url'),
    ...(description === '' ? {} : { description }),
  }))
}

/** Extensions of the body with the header's `mppx` extension, whose salt clients echo. */
export function withSalt(extensions: Json.Json, header: Json.JsonObject | undefined): Json.Json {
  const fresh = header?.extensions
  if (!Json.isObject(extensions) || !Json.isObject(fresh) || fresh.mppx === undefined)
    return extensions
  return { ...extensions, mppx: fresh.mppx }
}

/** The JSON of a receipt header of ours; undefined when there is none. */
export function ofHeader(value: string | null): Json.JsonObject | undefined {
  return value === null ? undefined : decodeJson(value, 'either')
}
