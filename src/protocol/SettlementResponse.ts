import type { Address, Hex } from 'viem'
import { encodeJson } from './Header'

/** What x402 says of a settlement: the value of `PAYMENT-RESPONSE`. */
export type SettlementResponse = {
  success: boolean
  /** Hash of the transaction; empty when nothing was sent. */
  transaction: Hex | ''
  /** CAIP-2 id. Never empty: clients refuse that. */
  network: string
  payer?: Address | undefined
  amount?: string | undefined
  errorReason?: string | undefined
  extensions?: Readonly<Record<string, unknown>> | undefined
}

/** `PAYMENT-RESPONSE` value. Undefined members are left out. */
export function serialize(settled: SettlementResponse): string {
  const { success, errorReason, transaction, network, payer, amount, extensions } = settled
  return encodeJson({ success, errorReason, transaction, network, payer, amount, extensions })
}
