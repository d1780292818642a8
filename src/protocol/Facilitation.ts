import { Type } from '@sinclair/typebox'
import { scheme as channelScheme } from './Channel'
import * as Crypto from './Crypto'
import * as Json from './Json'
import { isCaip2, ofV1Name, v1NameOf } from './Network'
import { type Fault, isFault } from './Problem'
import type { Transfer } from './Transfer'
import * as X402 from './X402'
import * as X402V1 from './X402V1'

/**
 * The request of a resource server to an x402 facilitator, for `/verify` and `/settle` alike, in version
 * 1 or 2. PaymentTerms.ts has the checks that need no chain. x402-specification-v2.md section 7.
 */

/** What the request asks for. The amount of the scheme `upto` has another meaning in each. */
export type Operation = 'verify' | 'settle'

/** A request about a payment channel, whose payload and requirements are not read yet. */
export type OfChannel = { payload: Json.JsonObject; terms: Json.JsonObject }

/** Payment terms of a resource server. */
type Requirements = ReturnType<typeof readRequirements>

/**
 * Only the members that are needed later: requests wait for a chain, and clients choose their size.
 */
export type FacilitatorRequest = {
  /** Whether it is of x402 version 1, and so is its answer. */
  isV1: boolean
  parsed: Pick<X402.Parsed, 'method' | 'signed'>
  accepted: Accepted
  requirements: Requirements
  /** As it was sent, because callers compare it as text. */
  payer: string
  /**
   * sha256 (hex) of the canonical payment payload, independent of the order of its members. A
   * repeated call must have the same. The signed part becomes public when it is sent; the rest is
   * known only to the buyer. Version 1 has only that part, so `call` is in the hash.
   */
  credentialHash: string
  /** URL of what is sold, according to the resource server; may be ''. */
  resource: string
}

const defaultTimeoutSeconds = 60

const amountSchema = [
  Type.String({ pattern: '^(?:0|[1-9][0-9]{0,77})$' }),
  Type.Integer({ minimum: 0 }),
]

/** Terms in a request, for documents; `readRequirements` reads them. */
const requirementsSchema = Type.Object({
  extra: Type.Optional(Type.Object({}, { description: 'EIP-712 domain and more.' })),
  network: Type.String({ description: 'CAIP-2 id; in version 1 its name, such as "base".' }),
  asset: Type.String({ pattern: '^0x[0-9a-fA-F]{40}$' }),
  payTo: Type.String({ pattern: '^0x[0-9a-fA-F]{40}$' }),
  amount: Type.Optional(
    Type.Union(amountSchema, {
      description:
        'Atomic units, at most 2^256 - 1. Of upto: the ceiling for /verify; for /settle the charge, ' +
        'which may be 0. Version 2 needs it.',
    }),
  ),
  maxAmountRequired: Type.Optional(
    Type.Union(amountSchema, { description: 'The amount in version 1, which needs it.' }),
  ),
  maxTimeoutSeconds: Type.Optional(Type.Unknown({ type: 'number', minimum: 0 })),
  scheme: Type.Union([
    Type.Literal('exact'),
    Type.Literal('upto'),
    Type.Literal(channelScheme, { description: 'In version 2 only.' }),
  ]),
})

/** Body of `/verify` and `/settle`. */
export const bodySchema = Type.Object({
  x402Version: Type.Union([Type.Literal(1), Type.Literal(2)]),
  paymentPayload: Type.Object(
    {},
    { description: 'The payment, as its buyer sent it (protocol/X402V1.ts reads it).' },
  ),
  paymentRequirements: requirementsSchema,
})
const resourceMax = 2048

/**
 * Reads a request body, with `version1` also one of version 1, whose calls `call` tells apart. The
 * payment's extensions are separate. ChannelFacilitation.ts reads what is about a channel. Faults, which
 * no other payment can correct: `invalid_payload`, `invalid_x402_version`, `unsupported_scheme`,
 * `invalid_network`, `invalid_payment_requirements`.
 */
export function parse(
  body: Uint8Array,
  version1?: { call: string },
):
  | { request: FacilitatorRequest; extensions: Json.JsonObject | undefined }
  | { channel: OfChannel }
  | Fault {
  const read = Json.wellFormed('invalid_payload', 'The request', () => {
    const json = Json.parse(body)
    return { json, payload: Json.read(json, 'paymentPayload', 'object') }
  })
  if (isFault(read)) return read
  const { json, payload } = read
  const asked = Json.member(json, 'paymentRequirements')
  if (Json.isObject(asked) && Json.member(asked, 'scheme') === channelScheme) {
    return { channel: { payload, terms: asked } }
  }
  const parsed = X402V1.parsePayload(payload)
  if (isFault(parsed)) return parsed
  const { network } = parsed
  const isV1 = network !== undefined
  if (isV1 && version1 === undefined) {
    return { code: 'invalid_x402_version', detail: 'x402Version must be 2.' }
  }
  const accepted = isV1 ? { scheme: 'exact', network } : parsed.accepted
  if (accepted === undefined) {
    return { code: 'invalid_payload', detail: 'The payment payload has no accepted.' }
  }
  return Json.wellFormed('invalid_payment_requirements', 'paymentRequirements', () => {
    const terms = Json.read(json, 'paymentRequirements', 'object')
    const scheme = Json.member(terms, 'scheme')
    if ((scheme !== 'exact' && scheme !== 'upto') || parsed.channel !== undefined) {
      const detail = `paymentRequirements.scheme must be "exact", "upto" or "${channelScheme}".`
      return { code: 'unsupported_scheme', detail }
    }
    const { method, signed, extensions } = parsed
    const resource = isV1 ? { url: Json.member(terms, 'resource') ?? null } : parsed.resource
    const request = {
      isV1,
      parsed: { method, signed },
      accepted: readAccepted(accepted),
      requirements: readRequirements(scheme, isV1 ? ofV1(terms) : terms),
      payer: payerOf(payload),
      credentialHash: hash(isV1 ? { payload, ...version1 } : payload),
      resource: (Json.text(resource ?? {}, 'url') ?? '').slice(0, resourceMax),
    }
    return { request, extensions }
  })
}

/** Requirements of version 1 in the members of version 2. */
function ofV1(terms: Json.JsonObject): Json.JsonObject {
  const network = ofV1Name(Json.read(terms, 'network', 'text'))
  if (network === undefined) throw new Json.JsonError('network is none of x402 version 1')
  return { ...terms, network, amount: String(Json.read(terms, 'maxAmountRequired', 'uint')) }
}

/** The name of a network in the version of a request. */
export function networkNameIn({ isV1 }: FacilitatorRequest, id: string): string {
  return (isV1 ? v1NameOf(id) : undefined) ?? id
}

/**
 * Network of a request, even of a malformed one: that of its requirements, else that of its
 * payload. Undefined when it names none.
 */
export function networkNamed(body: Uint8Array): string | undefined {
  return Json.readable(() => {
    const json = Json.parse(body)
    const accepted = Json.child(Json.child(json, 'paymentPayload'), 'accepted')
    return [Json.child(json, 'paymentRequirements'), accepted]
      .map((terms) => Json.member(terms, 'network'))
      .find(isCaip2)
  })
}

/** What a payment payload says of its offer. It is compared, so another type is not refused. */
type Accepted = ReturnType<typeof readAccepted>

export function readAccepted(accepted: Json.JsonObject) {
  return { scheme: Json.text(accepted, 'scheme'), network: Json.text(accepted, 'network') }
}

export function readRequirements(scheme: 'exact' | 'upto', terms: Json.JsonObject) {
  const extra = Json.optional(terms, 'extra', 'object') ?? {}
  const network = Json.read(terms, 'network', 'text')
  const asset = Json.read(terms, 'asset', 'address')
  const payTo = Json.read(terms, 'payTo', 'address')
  const amountAtomic = Json.read(terms, 'amount', 'uint')
  const fixed = { network, asset, payTo, extra }
  const uptoTerms = scheme === 'upto' ? hash({ scheme, ...fixed }) : undefined
  return {
    scheme,
    network,
    asset,
    payTo,
    /** For `upto`: the ceiling for `/verify`, the charge for `/settle`. */
    amountAtomic,
    /** Longest time that the resource server waits for a settlement. */
    maxTimeoutSeconds: readTimeout(terms),
    /** EIP-712 domain of the token, which EIP-3009 signatures need. */
    name: Json.optional(extra, 'name', 'text') || undefined,
    version: Json.optional(extra, 'version', 'text') || undefined,
    /**
     * sha256 (hex) over the terms of payment, `extra` included: a repeated call must have the same.
     */
    fingerprint:
      uptoTerms === undefined
        ? hash({ ...fixed, amount: String(amountAtomic) })
        : hashOfCharge(uptoTerms, amountAtomic),
    /**
     * For `upto`: sha256 (hex) over the terms without the amount, which differs between the calls.
     */
    terms: uptoTerms,
  }
}

/** The fingerprint of the same terms with the charge of a stored payment. */
export function fingerprintAt({ fingerprint, terms }: Requirements, chargeAtomic: bigint): string {
  return terms === undefined ? fingerprint : hashOfCharge(terms, chargeAtomic)
}

function hashOfCharge(terms: string, chargeAtomic: bigint): string {
  return hash({ terms, amount: String(chargeAtomic) })
}

function hash(value: Json.JsonObject): string {
  return Crypto.sha256(Json.canonicalize(value))
}

function readTimeout(terms: Json.JsonObject): number {
  const seconds = Json.member(terms, 'maxTimeoutSeconds')
  if (seconds === undefined) return defaultTimeoutSeconds
  if (typeof seconds !== 'number' || !(seconds >= 0)) {
    throw new Json.JsonError('maxTimeoutSeconds is not a number of seconds')
  }
  return seconds
}

/** Call it after `X402.parsePayload`, which has checked that the payer is an address. */
function payerOf(payload: Json.JsonObject): string {
  const inner = Json.read(payload, 'payload', 'object')
  const authorization = Json.optional(inner, 'authorization', 'object')
  const signed = authorization ?? Json.read(inner, 'permit2Authorization', 'object')
  return Json.read(signed, 'from', 'text')
}

/**
 * The signed transfer, on the chain and in the asset of the requirements. A Permit2 signature names
 * its token, and that token counts. With the scheme `upto` the amount is the ceiling for `/verify`,
 * and the charge for `/settle`, which `PaymentTerms.exceeds` compares with the ceiling.
 */
export function transferOf(
  { parsed, requirements }: FacilitatorRequest,
  chainId: number,
  operation: Operation,
): Transfer {
  const { scheme, asset, amountAtomic } = requirements
  const network = { id: `eip155:${chainId}`, chainId } as const
  const transfer = X402.transferOf({ scheme, ...parsed }, network, parsed.signed.asset ?? asset)
  return transfer.upto && operation === 'settle' ? { ...transfer, amountAtomic } : transfer
}
