import type { Hex } from 'viem'
import type { Transfer } from '../protocol/Transfer'
import { refuse } from './read/refusals'
import type { Outcome, Reason } from './send/Outcome'

/** Why a payer's signed approve is not sponsored; `code` is an x402 reason code. */
export type ApprovalRefusal =
  | { kind: 'refused'; code: string; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/**
 * Sponsors the approve of Permit2 that a payer signed (`erc20ApprovalGasSponsoring`): once ever per
 * payer and token, within the budget, in one ledger with the grants.
 */
export type ApprovalSponsor = {
  /** Checks every field of the signed transaction, and the ledger; nothing is written or sent. */
  check(transfer: Transfer, signedTransaction: Hex): Promise<{ kind: 'good' } | ApprovalRefusal>
  /**
   * Funds the payer with exactly the cost of the transaction, broadcasts it and waits until it is
   * confirmed. The transfer must pass every check except the allowance. Safe to repeat. `client`: its
   * address, for the limits.
   */
  approve(
    transfer: Transfer,
    signedTransaction: Hex,
    options: { waitMs: number; client: string | undefined },
  ): Promise<{ kind: 'approved'; transaction: Hex } | ApprovalRefusal>
}

/**
 * Calls `attempt` for a payer that has signed an approve. When only the allowance is missing, sponsors
 * that, and calls it again. Nothing is written before, because the simulation refuses. `attempt` gets
 * the time that is left, ms, and whether it is the second call. `approval`: the signed transaction.
 * `client`: address of the client that presents it. `waitMs` bounds all of it.
 */
export async function withApproval<T extends { kind: string }>(
  { sponsor, now }: { sponsor: ApprovalSponsor | undefined; now: () => number },
  {
    transfer,
    approval,
    client,
    waitMs,
  }: { transfer: Transfer; approval: Hex; client: string | undefined; waitMs: number },
  attempt: (leftMs: number, isSecond: boolean) => Promise<T | Outcome>,
): Promise<T | Outcome> {
  const deadline = now() + waitMs
  const leftMs = () => Math.max(0, deadline - now())
  const outcome = await attempt(waitMs, false)
  if (sponsor === undefined || !lacksAllowance(outcome)) return outcome
  const approved = await sponsor.approve(transfer, approval, { waitMs: leftMs(), client })
  if (approved.kind === 'unavailable') return approved
  if (approved.kind === 'refused') return refuse(refusalReasonOf(approved.code), approved.detail)
  return attempt(leftMs(), true)
}

/** Whether only the allowance is missing. */
export function lacksAllowance(outcome: { kind?: string; reason?: string }): boolean {
  return outcome.kind === 'refused' && outcome.reason === 'permit2_allowance_required'
}

/** The code of a sponsor's refusal; any other code is a fault of the payment itself. */
export function refusalReasonOf(code: string): Reason {
  const [, own] = /^erc20_approval_(.*)$/s.exec(code) ?? []
  return own === undefined ? 'permit2_allowance_required' : `erc20_approval_${own}`
}
