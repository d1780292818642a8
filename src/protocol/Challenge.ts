import type { Hex } from 'viem'
import * as Crypto from './Crypto'
import { base64url, decodeJson } from './Header'
import * as Json from './Json'
import type { Offer } from './Offer'
import * as Permit from './Permit'
import { type Fault, fault } from './Problem'

/**
 * MPP challenge of method `evm`, intent `charge`. It is stateless: its `id` is an HMAC over the
 * seven slots of draft-httpauth-payment-00 section "Challenge Binding".
 */

/**
 * How many members a challenge has. `short` omits those with defaults in the draft: the canonical
 * Permit2 and six decimals. `bare` also omits Permit2 where the asset has EIP-3009.
 */
export type Detail = 'bare' | 'short' | 'full'

/** The constant parts of the challenges of one route. */
export type Compiled = ReturnType<typeof compile>

/** Challenge parameters as a credential echoes them; nothing about them is proven yet. */
export type Echo = {
  id: string
  realm: string
  method: string
  intent: string
  request: string
  expires: string | undefined
  digest: string | undefined
  opaque: string | undefined
}

/** Terms of a decoded `request`. */
export type ChargeRequest = ReturnType<typeof parseRequest>

/**
 * Precomputes the challenges of an item, one per offer, in order. No two offers may be equal.
 * `routeId` binds the credential to the item. Throws when the realm cannot be quoted.
 */
export function compile(input: {
  realm: string
  offers: readonly Offer[]
  routeId: string
  secret: Uint8Array
  detail?: Detail
}) {
  const { realm, offers, routeId, secret, detail = 'full' } = input
  if (!/^[\x21\x23-\x5b\x5d-\x7b\x7d\x7e]+$/.test(realm)) throw new Error(`bad realm: ${realm}`)
  const tag = routeTag(routeId)
  return {
    /** One per offer. */
    terms: offers.map((offer) => {
      const encoded = base64url(Json.canonicalize(request(offer, detail)))
      /** Keyed HMAC that has absorbed the first four slots. */
      const hmac = new Bun.CryptoHasher('sha256', secret)
      hmac.update(`${realm}|evm|charge|${encoded}|`)
      /** `", realm=".."` to `request=".."`. */
      const params = `", realm="${realm}", method="evm", intent="charge", request="${encoded}"`
      return { hmac, params }
    }),
    /** base64url of the opaque JSON before and after the salt. */
    opaquePrefix: base64url('{"n":"'),
    opaqueSuffix: base64url(`","route":${JSON.stringify(tag)}}`),
  }
}

const tagLength = 24

/**
 * The short form of a route's id in challenges, which repeat it for each network: the id, or its
 * sha256 where that is shorter. 144 bits prevent collisions, because buyers choose parts of stock
 * desk ids.
 */
export function routeTag(routeId: string): string {
  if (routeId.length <= tagLength) return routeId
  const hash = new Bun.CryptoHasher('sha256').update(routeId).digest('base64url')
  return hash.slice(0, tagLength)
}

/**
 * The value of WWW-Authenticate: one `Payment id="..", ..` per offer. `expires` is RFC 3339 in UTC.
 * `salt` is the base64 of a text that is never repeated: of letters, digits, `-` and `_`, a multiple
 * of three. `digest` is that of the request body (RFC 9530). The challenges share the salt and
 * still have different ids, because their requests differ. This is the hot path of the unpaid
 * answer: one HMAC per offer and concatenation.
 */
export function issue(
  compiled: Compiled,
  input: { expires: string; salt: string; digest?: string | undefined },
): string {
  const { expires, salt, digest } = input
  // The base64 of those characters has none of the two characters that differ in base64url.
  const opaque = compiled.opaquePrefix + salt + compiled.opaqueSuffix
  const slots = `${expires}|${digest ?? ''}|${opaque}`
  const bodyParam = digest === undefined ? '' : `, digest="${digest}"`
  const freshParams = `${bodyParam}, expires="${expires}", opaque="${opaque}"`
  let value = ''
  for (const { hmac, params } of compiled.terms) {
    const id = hmac.copy().update(slots).digest('base64url')
    value += (value === '' ? 'Payment id="' : ', Payment id="') + id + params + freshParams
  }
  return value
}

/**
 * Proves that this service issued an echoed challenge. An expired one passes, because a stored
 * payment is looked up by it, too. See `checkExpiry`.
 */
export function verify(echo: Echo, options: { secrets: readonly Uint8Array[]; realm: string }) {
  if (echo.method !== 'evm' || echo.intent !== 'charge') {
    return fault('method-unsupported', 'Only method "evm" with intent "charge" is accepted here.')
  }
  if (echo.realm !== options.realm) return unknownChallenge()
  const slots = [echo.realm, echo.method, echo.intent, echo.request]
  const input = [...slots, echo.expires ?? '', echo.digest ?? '', echo.opaque ?? ''].join('|')
  let isOurs = false
  for (const secret of options.secrets) {
    const id = new Bun.CryptoHasher('sha256', secret).update(input).digest('base64url')
    // Every secret is tried, so that the time does not show which one matched.
    isOurs = Crypto.equal(id, echo.id) || isOurs
  }
  if (!isOurs || echo.expires === undefined || echo.opaque === undefined) return unknownChallenge()
  try {
    return {
      id: echo.id,
      request: parseRequest(echo.request),
      /** Unix ms. */
      expiresAt: Date.parse(echo.expires),
      /** RFC 9530 digest of the body the challenge was issued for. */
      digest: echo.digest,
      /**
       * `routeTag` of the item for which the challenge was issued; older challenges have the whole id.
       */
      route: Json.read(decodeJson(echo.opaque, 'base64url'), 'route', 'text'),
    }
  } catch (error) {
    if (error instanceof Json.JsonError) return unknownChallenge()
    throw error
  }
}

/** Whether a challenge may still be paid. */
export function checkExpiry(challenge: { expiresAt: number }, now: number): Fault | undefined {
  // NaN is not above `now`, so it counts as expired.
  if (challenge.expiresAt > now) return undefined
  return fault('payment-expired', 'The challenge has expired.')
}

const paramPattern =
  /\s*(?:([A-Za-z][\w-]*)\s+)?([A-Za-z][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)/y

/**
 * Parameters of each `Payment` challenge in a WWW-Authenticate value. Other schemes are omitted.
 */
export function parseHeader(value: string): Record<string, string>[] {
  const found: Record<string, string>[] = []
  let current: Record<string, string> | undefined
  const pattern = new RegExp(paramPattern)
  for (let match = pattern.exec(value); match !== null; match = pattern.exec(value)) {
    const [, scheme, name = '', quoted, token = ''] = match
    if (scheme !== undefined) {
      current = scheme.toLowerCase() === 'payment' ? {} : undefined
      if (current !== undefined) found.push(current)
    }
    if (current === undefined || name === '__proto__') continue
    current[name] = quoted === undefined ? token : quoted.replaceAll(/\\(.)/g, '$1')
  }
  return found
}

/** Decodes the `request` parameter. Throws a JsonError. */
export function parseRequest(encoded: string) {
  const json = decodeJson(encoded, 'base64url')
  const details = Json.read(json, 'methodDetails', 'object')
  const types = Json.member(details, 'credentialTypes')
  return {
    amountAtomic: Json.read(json, 'amount', 'uint'),
    currency: Json.read(json, 'currency', 'address'),
    recipient: Json.read(json, 'recipient', 'address'),
    chainId: Number(Json.read(details, 'chainId', 'uint')),
    credentialTypes: Array.isArray(types) ? types.filter((type) => typeof type === 'string') : [],
    permit2: Json.member(details, 'spender') === Permit.proxyAddress,
  }
}

/** keccak256 of id and realm concatenated: the nonce of a credential for this challenge. */
export function nonceOf(challenge: Pick<Echo, 'id' | 'realm'>): Hex {
  return Crypto.hex(Crypto.keccak256(challenge.id + challenge.realm))
}

const defaultDecimals = 6

function request(offer: Offer, detail: Detail): Json.JsonObject {
  const { asset, chainId } = offer.network
  const isBare = detail === 'bare' && asset.transfer.includes('eip3009')
  const methods = isBare ? (['eip3009'] as const) : asset.transfer
  const permit2 = methods.some((method) => method === 'permit2')
  const types: readonly string[] = methods.map((method) =>
    method === 'eip3009' ? 'authorization' : 'permit2',
  )
  const isFull = detail === 'full'
  return {
    amount: offer.amountAtomic.toString(),
    currency: asset.address,
    recipient: offer.payTo,
    methodDetails: {
      chainId,
      credentialTypes: types,
      ...(isFull || asset.decimals !== defaultDecimals ? { decimals: asset.decimals } : {}),
      ...(isFull && permit2 ? { permit2Address: Permit.permit2Address } : {}),
      ...(permit2 ? { spender: Permit.proxyAddress } : {}),
    },
  }
}

function unknownChallenge(): Fault {
  return fault('invalid-challenge', 'The challenge was not issued by this service.')
}
