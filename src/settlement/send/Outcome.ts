import type { Channel } from '../../../db/Channel'
import type { RowsRefusal } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { Settled } from '../channels/state'

/**
 * The result of `settle`. Only `refused` and `dead` may be answered with a new challenge. In every
 * other case money moved or may still move.
 */
export type Outcome =
  /**
   * `deliveryStarted`: the commit of the confirmation started the delivery, for this caller. `settled`: by
   * a channel, for the headers of this answer.
   */
  | { kind: 'confirmed'; payment: Payment; deliveryStarted?: true; settled?: Settled }
  /** Not confirmed in time; settlement continues in the background. */
  | { kind: 'pending'; payment: Payment }
  /** Our transaction failed but the authorization may still pay: try again with the same credential. */
  | { kind: 'reverted'; payment: Payment; reason: Reason }
  /**
   * Simulation failed; nothing was written or sent. `channel`: the state by which a client corrects its
   * voucher; `isUnknown`: this ledger had lost it.
   */
  | { kind: 'refused'; reason: Reason; detail: string; channel?: Channel; isUnknown?: boolean }
  /** The newest block shows that this authorization did not and cannot pay. */
  | { kind: 'dead'; payment: Payment | undefined; reason: Reason; detail: string }
  /** The network cannot settle now; the credential is unspent. `limit`: its client waits. */
  | {
      kind: 'unavailable'
      detail: string
      retryAfterSeconds: number
      limit?: 'upto_often_unpaid'
    }

/** A payment between the stages, with the options of its request. */
export type Underway = {
  payment: Payment
  /** Id of the request that waits for it, for the log. */
  requestId?: string | undefined
  deliverOnConfirm?: DeliverOnConfirm | undefined
}

/** A request of the caller to start its delivery in the commit of the confirmation. */
export type DeliverOnConfirm = {
  /** Called when the money has arrived, before that is written. */
  isWanted: () => boolean
  /** Whether the caller still waits. */
  isOpen: boolean
  /**
   * The commit that starts the delivery. The caller waits for it, because the delivery may have
   * been started. Never rejects.
   */
  commit: Promise<void> | undefined
  /** Whether the delivery was started for this caller. */
  isStarted: boolean
}

/** x402 reason codes that settlement itself can find. */
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
  | 'upto_facilitator_mismatch'
  | 'unsupported_scheme'
  | 'upto_credit_exceeded'
  | 'upto_losses_spent'
  /** Of a payment channel. */
  | `invalid_batch_settlement_evm_${string}`
  /** Why a signed approve is not sponsored. */
  | `erc20_approval_${string}`

/** The rows of a product were refused: nothing was written or sent. */
export class RowsRefusedError extends Error {
  override readonly name = 'RowsRefusedError'
  readonly reason: RowsRefusal

  constructor(reason: RowsRefusal) {
    super(`the rows of the payment were refused: ${reason}`)
    this.reason = reason
  }
}

/** No delivery can start: another process has started or ended one since the payment was read. */
export class NotDeliverableError extends Error {
  override name = 'NotDeliverableError'
}
