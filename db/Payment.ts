import type { Address, Hex } from 'viem'
import type * as Client from '../src/protocol/Client'
import type { Transfer } from '../src/protocol/Transfer'

/**
 * Settlement state. `broadcast`: a transaction may have been sent. `confirmed`: exactly one
 * Transfer log is assigned. `reverted`: our transaction failed, the authorization may still pay.
 * `expired`: the chain proves that it did not pay and no longer can, unless a reorganisation is deeper
 * than `reorg_depth`. Then what we have sent may still be mined.
 */
export type State = 'broadcast' | 'confirmed' | 'reverted' | 'expired'

export const transitions: Readonly<Record<State, readonly State[]>> = {
  broadcast: ['confirmed', 'reverted', 'expired'],
  // A reorganisation removed the receipt.
  confirmed: ['broadcast'],
  reverted: ['broadcast', 'confirmed', 'expired'],
  // A transaction of ours was mined after all: the payee has the money.
  expired: ['confirmed'],
}

/** Delivery state, beside the settlement state. */
type Delivery = 'none' | 'delivering' | 'delivered'

export type Product = 'gateway' | 'facilitator' | 'desk'
export type Protocol = 'mpp' | 'x402'

/** What the money pays for. Stored with the payment and compared when the credential returns. */
export type Purpose = {
  product: Product
  protocol: Protocol
  /** Merchant slug; empty for products without one. */
  merchant: string
  /** Route path below the merchant. */
  route: string
  /** sha256 over method, canonical path, query and body digest, hex. */
  fingerprint: string
  /** Absolute URL of the resource, for receipts. */
  resource: string
  /**
   * The buyer's `Idempotency-Key` (or x402 payment-identifier). Stored in the insert of the payment
   * and indexed with (merchant, route, payer), so that a repeat after a crash finds it.
   */
  idempotencyKey: string | undefined
  /** Id of the MPP challenge that the credential answers. */
  challengeId: string | undefined
  /**
   * sha256 (hex) of the x402 credential as it was sent. The chain publishes what was signed, so
   * only the same bytes continue the payment. Undefined for MPP, whose challenge id is not
   * published, and for payments that are older than this field.
   */
  credentialHash?: string | undefined
  /** Kind of the client that paid, for figures. Undefined for the facilitator. */
  client?: Client.Kind | undefined
  /**
   * The credential is bound to this service: an MPP challenge of ours, or the mppx route-bound
   * nonce.
   */
  bound: boolean
}

/** A buyer's own key is unique only within these. */
export type KeyScope = { merchant: string; route: string; payer: Address; key: string }

/** Where the money of a payment has moved: in a transaction, or in a channel, which is claimed later. */
export function placeOf({
  transfer,
  transaction,
}: Payment): { transaction: Hex } | { channel: Hex } {
  return transfer.method === 'channel' ? { channel: transaction } : { transaction }
}

/** The scheme of a payment in our words. */
export function schemeOf({ transfer: { method, upto } }: Pick<Payment, 'transfer'>): Scheme {
  return method === 'channel' ? 'channel' : upto === undefined ? 'exact' : 'upto'
}

type Scheme = 'exact' | 'channel' | 'upto'

/** A payment as stored. Times are unix ms. */
export type Payment = {
  id: string
  transfer: Transfer
  purpose: Purpose
  state: State
  /**
   * True when an expired payment has a used or cancelled nonce; false when only its time is over.
   */
  nonceUsed: boolean
  /**
   * The settling transaction once confirmed; before, the newest one sent. Of the method `channel` the
   * id of the channel.
   */
  transaction: Hex
  logIndex: number | undefined
  blockNumber: bigint | undefined
  delivery: Delivery
  attempts: number
  upstreamStatus: number | undefined
  truncated: boolean
  /** Whether a request for this payment was ever answered, with any status. */
  answered: boolean
  redeemTokenHash: string | undefined
  redeemUntil: number | undefined
  createdAt: number
  confirmedAt: number | undefined
  deliveredAt: number | undefined
}
