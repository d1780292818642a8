import type { Hex } from 'viem'
import type { Purpose } from '../../db/Payment'
import type { Transfer } from '../protocol/Transfer'
import type { Authorized, AuthorizeOptions } from './authorizations'
import type { Outcome, Reason } from './Outcome'
import { refuse } from './refusals'
import type { Settlement, SettleOptions } from './settlement'

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
   * confirmed. The transfer must pass every check except the allowance. Safe to repeat.
   */
  approve(
    transfer: Transfer,
    signedTransaction: Hex,
    options: { waitMs: number },
  ): Promise<{ kind: 'approved'; transaction: Hex } | ApprovalRefusal>
}

export type Sponsoring = {
  settlement: Pick<Settlement, 'settle' | 'authorizations' | 'createId'>
  /** Undefined when this service sends no approves. */
  sponsor: ApprovalSponsor | undefined
  now: () => number
}

/**
 * Calls `Settlement.settle`. When only the allowance is missing and the payer has signed an
 * approve, sponsors that first. Nothing is written before, because the simulation refuses. `waitMs`
 * bounds both.
 */
export async function settleSponsored(
  { settlement, sponsor, now }: Sponsoring,
  transfer: Transfer,
  purpose: Purpose,
  { approval, ...options }: SettleOptions & { approval: Hex | undefined },
): Promise<Outcome> {
  const deadline = now() + options.waitMs
  const outcome = await settlement.settle(transfer, purpose, options)
  if (approval === undefined || sponsor === undefined || !lacksAllowance(outcome)) return outcome
  const refusal = await approve(sponsor, transfer, approval, deadline - now())
  if (refusal) return refusal
  return settlement.settle(transfer, purpose, {
    ...options,
    isUnknown: false,
    findKnown: undefined,
    waitMs: Math.max(0, deadline - now()),
  })
}

/** The same for a ceiling: calls `authorize`. */
export async function authorizeSponsored(
  { settlement, sponsor, now }: Sponsoring,
  transfer: Transfer,
  purpose: Purpose,
  {
    approval,
    waitMs,
    ...rest
  }: Pick<AuthorizeOptions, 'validUntil' | 'onAsked'> & {
    approval: Hex | undefined
    waitMs: number
  },
): Promise<Outcome | Authorized> {
  const deadline = now() + waitMs
  const attempt = () => {
    const options = { id: settlement.createId(), receivedAt: now(), ...rest }
    return settlement.authorizations.authorize(transfer, purpose, options)
  }
  const outcome = await attempt()
  if (approval === undefined || sponsor === undefined || !lacksAllowance(outcome)) return outcome
  const refusal = await approve(sponsor, transfer, approval, deadline - now())
  return refusal ?? attempt()
}

/** Sends the payer's approve; the outcome when it is not sent. */
async function approve(
  sponsor: ApprovalSponsor,
  transfer: Transfer,
  approval: Hex,
  leftMs: number,
): Promise<Outcome | undefined> {
  const approved = await sponsor.approve(transfer, approval, { waitMs: Math.max(0, leftMs) })
  if (approved.kind === 'unavailable') return approved
  if (approved.kind === 'refused') return refuse(reasonOf(approved.code), approved.detail)
  return undefined
}

/** Whether only the allowance is missing. */
export function lacksAllowance(outcome: { kind?: string; reason?: string }): boolean {
  return outcome.kind === 'refused' && outcome.reason === 'permit2_allowance_required'
}

/** The code of a sponsor's refusal; any other code is a fault of the payment itself. */
export function reasonOf(code: string): Reason {
  return isApprovalCode(code) ? code : 'permit2_allowance_required'
}

function isApprovalCode(code: string): code is `erc20_approval_${string}` {
  return code.startsWith('erc20_approval_')
}
