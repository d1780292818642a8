import type { Address, Hex } from 'viem'
import { decodeJson, encodeJson } from './Header'
import * as Json from './Json'
import { isCaip2 } from './Network'

/** The x402 result of a settlement: the value of `PAYMENT-RESPONSE`. */
export type SettlementResponse = {
  success: boolean
  /** Hash of the transaction; empty when nothing was sent. */
  transaction: Hex | ''
  /** CAIP-2 id. Never empty, because clients refuse that. */
  network: string
  payer?: Address | undefined
  amount?: string | undefined
  errorReason?: string | undefined
  extensions?: Readonly<Record<string, unknown>> | undefined
}

/** `PAYMENT-RESPONSE` value. Undefined members are omitted. */
export function serialize(settled: SettlementResponse): string {
  const { success, errorReason, transaction, network, payer, amount, extensions } = settled
  return encodeJson({ success, errorReason, transaction, network, payer, amount, extensions })
}

/** Network that a payload names, even in a malformed one; undefined when there is none. */
export function acceptedNetwork(value: string): string | undefined {
  try {
    const accepted = Json.optional(decodeJson(value, 'either'), 'accepted', 'object')
    const network = accepted && Json.member(accepted, 'network')
    return isCaip2(network) ? network : undefined
  } catch (error) {
    if (error instanceof Json.JsonError) return undefined
    throw error
  }
}
