import type { Address } from 'viem'
import { decodeJson, encodeJson } from './Header'
import * as Json from './Json'
import * as Network from './Network'
import type { Offer } from './Offer'
import type { Fault } from './Problem'
import { readAuthorization } from './Transfer'
import * as X402 from './X402'

/**
 * x402 version 1: the scheme `exact` by EIP-3009, on networks that it has names for. Offers are in the
 * body of the 402 only, payments in `X-PAYMENT`, and their answers in `X-PAYMENT-RESPONSE`.
 */

/** An `accepts` entry of version 1. Its clients need every member. */
export type Requirements = {
  scheme: 'exact'
  network: string
  maxAmountRequired: string
  /** Absolute URL. */
  resource: string
  description: string
  mimeType: string
  payTo: Address
  maxTimeoutSeconds: number
  asset: Address
  /** Signing domain of the asset. */
  extra: { name: string; version: string }
}

/**
 * The offers that version 1 can pay, in order, testnets last: a client without a chain pays the first.
 * Empty where there is none.
 */
export function accepts(
  offers: readonly Offer[],
  { url, description, mimeType }: { url: string; description: string; mimeType: string },
): readonly Requirements[] {
  return offers
    .toSorted((a, b) => Number(a.network.testnet) - Number(b.network.testnet))
    .flatMap(({ network: { id, asset }, amountAtomic, payTo }) => {
      const network = Network.v1NameOf(id)
      if (network === undefined || !asset.transfer.includes('eip3009')) return []
      const { name, version } = asset.eip712
      return {
        scheme: 'exact',
        network,
        maxAmountRequired: amountAtomic.toString(),
        resource: url,
        description,
        mimeType,
        payTo,
        maxTimeoutSeconds: X402.maxTimeoutSeconds,
        asset: asset.address,
        extra: { name, version },
      }
    })
}

/**
 * Decodes a payment payload of either version: the value of `X-PAYMENT`, or the JSON that facilitators
 * receive. Faults: those of `X402.parsePayload`, `unsupported_scheme`, `invalid_network`.
 */
export function parsePayload(given: string | Json.JsonObject): X402.Parsed | Fault {
  return Json.wellFormed('invalid_payload', 'The payment payload', () => {
    const json = typeof given === 'string' ? decodeJson(given, 'either') : given
    return Json.member(json, 'x402Version') === 1 ? parseObject(json) : X402.parsePayload(json)
  })
}

function parseObject(json: Json.JsonObject): X402.Parsed | Fault {
  if (Json.read(json, 'scheme', 'text') !== 'exact') {
    return { code: 'unsupported_scheme', detail: 'scheme must be "exact" in x402 version 1.' }
  }
  const network = Network.ofV1Name(Json.read(json, 'network', 'text'))
  if (network === undefined) {
    const detail = 'network is not an EVM network of x402 version 1, such as "base".'
    return { code: 'invalid_network', detail }
  }
  const payload = Json.read(json, 'payload', 'object')
  const signature = Json.read(payload, 'signature', 'signature')
  const signed = { ...readAuthorization(Json.read(payload, 'authorization', 'object')), signature }
  const unechoed = { accepted: undefined, resource: undefined, extensions: undefined }
  return { scheme: 'exact', method: 'eip3009', signed, network, ...unechoed, identifier: undefined }
}

/** The value of `X-PAYMENT-RESPONSE` in version 1, by that of a `PAYMENT-RESPONSE` of ours. */
export function responseOf(paymentResponse: string): string {
  const { success, errorReason, transaction, network, payer } = decodeJson(
    paymentResponse,
    'either',
  )
  const name = Network.v1NameOf(String(network)) ?? network
  return encodeJson({ success, errorReason, transaction, network: name, payer })
}
