import type { Hex } from 'viem'
import type { Transfer } from '../protocol/Transfer'

/** Why a payer's signed approve is not sponsored; `code` is an x402 reason code. */
export type Refusal =
  | { kind: 'refused'; code: string; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/**
 * Sponsors the approve of Permit2 that a payer signed itself (`erc20ApprovalGasSponsoring`): once per
 * payer and token for ever, within the budget, in one ledger with the grants.
 */
export type ApprovalSponsor = {
  /** Checks every field of the signed transaction, and the ledger; nothing is written or sent. */
  check(transfer: Transfer, signedTransaction: Hex): Promise<{ kind: 'good' } | Refusal>
  /**
   * Funds the payer with exactly what the transaction costs, broadcasts it and waits until it is
   * confirmed. The transfer must have passed everything but the allowance. Safe to repeat.
   */
  approve(
    transfer: Transfer,
    signedTransaction: Hex,
    options: { waitMs: number },
  ): Promise<{ kind: 'approved'; transaction: Hex } | Refusal>
}
