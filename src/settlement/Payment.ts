import type { Hex } from 'viem'
import type { Transfer } from '../protocol/Transfer'

/**
 * Settlement state. `broadcast`: a transaction may have been sent. `confirmed`: exactly one Transfer
 * log is assigned. `reverted`: our transaction failed, the authorization may still pay. `expired`: the
 * chain proves that it did not pay and no longer can.
 */
export type State = 'broadcast' | 'confirmed' | 'reverted' | 'expired'

export const transitions: Readonly<Record<State, readonly State[]>> = {
  broadcast: ['confirmed', 'reverted', 'expired'],
  // A reorganisation took the receipt away.
  confirmed: ['broadcast'],
  reverted: ['broadcast', 'confirmed', 'expired'],
  expired: [],
}

/** Delivery state, beside the settlement state. */
export type Delivery = 'none' | 'delivering' | 'delivered'

export type Product = 'gateway' | 'facilitator' | 'desk'
export type Protocol = 'mpp' | 'x402'

/** What the money is for. Stored with the payment and compared when the credential comes back. */
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
   * The buyer's `Idempotency-Key` (or x402 payment-identifier), stored in the same insert as the
   * payment and indexed with (merchant, route, payer), so that a repeat after a crash finds it.
   */
  idempotencyKey: string | undefined
  /** Id of the MPP challenge that the credential answers. */
  challengeId: string | undefined
  /**
   * sha256 (hex) of the x402 credential as it was sent. The chain publishes what was signed, so only
   * the same bytes continue the payment. Undefined for MPP, whose challenge id is not published, and
   * for payments that are older than this field.
   */
  credentialHash?: string | undefined
  /** The credential can only be meant for us: an MPP challenge of ours, or the mppx route-bound nonce. */
  bound: boolean
}

/** A payment as stored. Times are unix ms. */
export type Payment = {
  id: string
  transfer: Transfer
  purpose: Purpose
  state: State
  /** Of an expired one: its nonce was used or cancelled, not only its time over. */
  nonceUsed: boolean
  /** The settling transaction once confirmed; before, the newest one sent. */
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

/**
 * How `settle` ends. Only `refused` and `dead` may be answered with a new challenge: in every other
 * case money moved or may still move.
 */
export type Outcome =
  /** `deliveryStarted`: in the commit of the confirmation, for this caller. */
  | { kind: 'confirmed'; payment: Payment; deliveryStarted?: true }
  /** Not confirmed in time; the work goes on. */
  | { kind: 'pending'; payment: Payment }
  /** Our transaction failed but the authorization may still pay: try again with the same credential. */
  | { kind: 'reverted'; payment: Payment; reason: Reason }
  /** Simulation failed; nothing was written or sent. */
  | { kind: 'refused'; reason: Reason; detail: string }
  /** The chain proves that this authorization did not and cannot pay. */
  | { kind: 'dead'; payment: Payment | undefined; reason: Reason; detail: string }
  /** The network cannot settle now; the credential is unspent. */
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/** A payment on its way through the stages, with what its request wants. */
export type Underway = {
  payment: Payment
  /** For the log. */
  requestId: string | undefined
  deliverOnConfirm: DeliverOnConfirm | undefined
}

/** A request of the caller to start its delivery in the commit of the confirmation. */
export type DeliverOnConfirm = {
  /** Asked when the money has arrived, before it is written. */
  isWanted: () => boolean
  /** The caller still waits. */
  isOpen: boolean
  /** It was done, for this caller. */
  isStarted: boolean
}

/** What the last stage makes of a payment that was sent. */
export type Ending =
  | Outcome
  /** Another payment of its batch, or another program with the relayer's key, may be to blame: send it alone. */
  | { kind: 'resend'; member: Underway }

/** x402 reason codes of the `exact` scheme that settlement itself can find. */
export type Reason =
  | 'invalid_exact_evm_signature'
  | 'invalid_exact_evm_nonce_already_used'
  | 'invalid_exact_evm_insufficient_balance'
  | 'invalid_exact_evm_payload_authorization_valid_before'
  | 'invalid_exact_evm_payload_authorization_valid_after'
  | 'invalid_exact_evm_transaction_simulation_failed'
  | 'invalid_exact_evm_transaction_failed'
  | 'invalid_exact_evm_transfer_event_mismatch'
  | 'invalid_exact_evm_eip3009_not_supported'
  | 'invalid_exact_evm_token_name_mismatch'
  | 'invalid_exact_evm_token_version_mismatch'
  | 'eip6492_factory_not_allowed'
  | 'invalid_permit2_signature'
  | 'permit2_invalid_nonce'
  | 'permit2_deadline_expired'
  | 'permit2_not_yet_valid'
  | 'permit2_insufficient_balance'
  | 'permit2_allowance_required'
  | 'permit2_proxy_not_deployed'
  | 'permit2_simulation_failed'
  /** Why a signed approve is not sponsored. */
  | `erc20_approval_${string}`
