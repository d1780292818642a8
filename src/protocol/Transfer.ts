import type { Address, Hex } from 'viem'
import type { TransferMethod } from './Asset'
import type * as Network from './Network'

/**
 * A signed stablecoin transfer, from payer to payee, whichever protocol carried it:
 * EIP-3009 `transferWithAuthorization` or a Permit2 witness transfer through the
 * x402ExactPermit2Proxy. Addresses are EIP-55 checksummed.
 */
export type Transfer = {
  method: TransferMethod
  network: Network.Id
  chainId: number
  asset: Address
  payer: Address
  payee: Address
  amountAtomic: bigint
  /** 32 bytes, lower-case hex; a Permit2 nonce is padded to 32 bytes. */
  nonce: Hex
  /** Unix seconds. */
  validAfter: bigint
  /** Unix seconds: EIP-3009 `validBefore`, Permit2 `deadline`. */
  validBefore: bigint
  /** As received, after the static length check; not unique for a payment (malleable). */
  signature: Hex
}

/**
 * The identity of the money: one of these settles at most once. Never the signature, whose bytes
 * can be changed without invalidating it.
 */
export type Money = Pick<Transfer, 'network' | 'asset' | 'payer' | 'nonce'>

/** Key of the money for maps. */
export function moneyKey(money: Money): string {
  return `${money.network}/${money.asset}/${money.payer}/${money.nonce}`
}
