import type { Address, Hex } from 'viem'
import { base64url, decodeJson, encodeJson } from './Header'
import * as Json from './Json'
import { artifactOf } from './Offer'
import type { Fault } from './Problem'
import { infoOf } from './X402'

/** Signed receipts: `x402 receipt` of the offer-receipt extension, sent by both protocols. */

export type Fields = {
  /** CAIP-2 id. */
  network: string
  /** Of `urlOf`. */
  resourceUrl: string
  payer: string
  /** Unix seconds. */
  issuedAt: number
  transaction: string
}

export type Signed = { format: 'eip712'; payload: Fields & { version: 1 }; signature: Hex }

const artifact = artifactOf<Signed['payload']>(
  'x402 receipt',
  'Receipt(uint256 version,string network,string resourceUrl,string payer,' +
    'uint256 issuedAt,string transaction)',
)

/** What was paid for. The type of the extension has no members for it. */
type Purchase = {
  /** sha256 (hex) of the request. */
  request: string
  /** Atomic amount, decimal. */
  amount: string
  /** Id of an order of the stock desk. */
  order?: string | undefined
}

/** The signed URL of a receipt: its fragment has the purchase. */
export function urlOf(url: string, { request, amount, order }: Purchase): string {
  const named = order === undefined ? '' : `&order=${order}`
  return `${url}#request=${request}&amount=${amount}${named}`
}

/** The members of the purchase that the URL of a receipt has in their form. */
export function purchaseOf({ payload }: Pick<Signed, 'payload'>): {
  [Name in keyof Purchase]-?: string | undefined
} {
  const at = payload.resourceUrl.indexOf('#')
  const bound = new URLSearchParams(at < 0 ? '' : payload.resourceUrl.slice(at + 1))
  const member = (name: string, form: RegExp) => {
    const value = bound.get(name)
    return value !== null && form.test(value) ? value : undefined
  }
  return {
    request: member('request', /^[0-9a-f]{64}$/),
    amount: member('amount', /^[0-9]{1,78}$/),
    order: member('order', /^ord_[0-9a-f]{32}$/),
  }
}

/** Minimal JSON Schema of the extension's `info`. */
const schema = { type: 'object', required: ['receipt'] }

/** Signs a receipt with the receipt key. */
export function sign(fields: Fields, privateKey: Uint8Array): Signed {
  return artifact.sign({ version: 1, ...fields }, privateKey)
}

/** Signer of a receipt; undefined when the signature is not canonical. */
export const verify = artifact.verify

/** `Payment-Receipt` value: base64url of the MPP receipt with the same signature. */
export function mpp(
  receipt: Signed,
  options: { issuer: Address; challengeId?: string | undefined },
): string {
  const { network, resourceUrl, payer, issuedAt, transaction } = receipt.payload
  return base64url(
    JSON.stringify({
      status: 'success',
      method: 'evm',
      timestamp: new Date(issuedAt * 1000).toISOString().replace('.000Z', 'Z'),
      reference: transaction,
      ...(options.challengeId === undefined ? {} : { challengeId: options.challengeId }),
      chainId: Number(network.slice('eip155:'.length)),
      network,
      payer,
      resource: resourceUrl,
      issuer: options.issuer,
      signature: receipt.signature,
    }),
  )
}

/** The x402 result of a settlement. */
type Settlement = {
  success: boolean
  /** Hash of the transaction; empty when nothing was sent. */
  transaction: Hex | ''
  /** CAIP-2 id. Never empty, because clients refuse that. */
  network: string
  payer?: Address | undefined
  amount?: string | undefined
  errorReason?: string | undefined
  /** What the scheme of a channel adds. */
  extra?: object
  receipt?: Signed
  /** Further extensions. */
  extensions?: Readonly<Record<string, unknown>>
}

/** `PAYMENT-RESPONSE` value. Undefined members are omitted. */
export function x402({ receipt, ...settled }: Settlement): string {
  const { success, errorReason, transaction, network, payer, amount, extra } = settled
  const extensions = receipt && {
    'offer-receipt': { info: { receipt }, schema },
    ...settled.extensions,
  }
  const terms = { success, errorReason, transaction, network, payer, amount, extra }
  return encodeJson({ ...terms, extensions })
}

/**
 * Reads a receipt in any of its forms: the value of Payment-Receipt or PAYMENT-RESPONSE, the JSON
 * of either, or the signed receipt alone. It does not check the signature.
 */
export function parse(text: string): Signed | Fault {
  return Json.wellFormed('malformed-receipt', 'The receipt', () => {
    const trimmed = text.trim()
    const json = trimmed.startsWith('{') ? Json.parse(trimmed) : decodeJson(trimmed, 'either')
    if (Json.member(json, 'status') !== undefined) return ofMpp(json)
    const info = infoOf(Json.optional(json, 'extensions', 'object'), 'offer-receipt')
    return ofX402(info === undefined ? json : Json.read(info, 'receipt', 'object'))
  })
}

function ofMpp(json: Json.JsonObject): Signed {
  const issuedAtMs = Date.parse(Json.read(json, 'timestamp', 'text'))
  if (!Number.isInteger(issuedAtMs / 1000)) throw new Json.JsonError('timestamp is not in seconds')
  const payload = {
    version: 1 as const,
    network: Json.read(json, 'network', 'text'),
    resourceUrl: Json.read(json, 'resource', 'text'),
    payer: Json.read(json, 'payer', 'text'),
    issuedAt: issuedAtMs / 1000,
    transaction: Json.read(json, 'reference', 'text'),
  }
  return { format: 'eip712', payload, signature: Json.read(json, 'signature', 'signature') }
}

/** The last second that a Date can have. */
const issuedAtMax = 8_640_000_000_000n

function ofX402(json: Json.JsonObject): Signed {
  if (Json.read(json, 'format', 'text') !== 'eip712')
    throw new Json.JsonError('format is not eip712')
  const fields = Json.read(json, 'payload', 'object')
  if (Json.read(fields, 'version', 'uint') !== 1n) throw new Json.JsonError('version is not 1')
  const issuedAt = Json.read(fields, 'issuedAt', 'uint')
  if (issuedAt > issuedAtMax) throw new Json.JsonError('issuedAt is no time')
  const payload = {
    version: 1 as const,
    network: Json.read(fields, 'network', 'text'),
    resourceUrl: Json.read(fields, 'resourceUrl', 'text'),
    payer: Json.read(fields, 'payer', 'text'),
    issuedAt: Number(issuedAt),
    transaction: Json.optional(fields, 'transaction', 'text') ?? '',
  }
  return { format: 'eip712', payload, signature: Json.read(json, 'signature', 'signature') }
}
