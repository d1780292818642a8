import type { Address } from 'viem'

/** How a payer's signature moves a stablecoin (x402 `assetTransferMethod`). */
export type TransferMethod = 'eip3009' | 'permit2'

/** How the money of a payment moves: by a transfer, or by a claim of a payment channel. */
export type PaymentMethod = TransferMethod | 'channel'

/** A stablecoin in which a network settles. */
export type Asset = {
  symbol: string
  /** EIP-55 checksummed contract address. */
  address: Address
  decimals: number
  /** Accepted transfer methods, the preferred one first. */
  transfer: readonly TransferMethod[]
  /** EIP-712 domain name and version of the token contract. */
  eip712: { name: string; version: string }
  /** False for tokens that only emit a log when an EIP-3009 nonce is used again. */
  revertsOnUsedNonce: boolean
  /** Whether the token has EIP-2612 `permit`. */
  eip2612: boolean
}
