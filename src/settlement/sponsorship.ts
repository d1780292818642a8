import type { Hex } from 'viem'
import type { Purpose } from '../../db/Payment'
import type { Transfer } from '../protocol/Transfer'
import { refuse } from './read/refusals'
import type { Outcome, Reason } from './send/Outcome'
import type { Settlement, SettleOptions } from './settlement'
import type { HolderOptions } from './state/by-holder'
import type { Authorized, AuthorizeOptions } from './upto/authorize'

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

export type Sponsoring = {
  settlement: Pick<Settlement, 'settle' | 'authorizations' | 'createId'>
  /** Undefined when this service sends no approves. */
  sponsor: ApprovalSponsor | undefined
  now: () => number
}

/**
 * Calls `attempt`. When only the allowance is missing and the payer has signed an approve, sponsors
 * that, and calls it again. Nothing is written before, because the simulation refuses. `attempt` gets
 * the time that is left, ms, and whether it is the second call.
 */
export async function withApproval<T extends { kind: string }>(
  { sponsor, now }: Pick<Sponsoring, 'sponsor' | 'now'>,
  transfer: Transfer,
  { approval, client, waitMs }: Approval,
  attempt: (leftMs: number, isSecond: boolean) => Promise<T | Outcome>,
): Promise<T | Outcome> {
  const deadline = now() + waitMs
  const outcome = await attempt(waitMs, false)
  if (approval === undefined || sponsor === undefined || !lacksAllowance(outcome)) return outcome
  const options = { waitMs: Math.max(0, deadline - now()), client }
  const refusal = await approve(sponsor, transfer, approval, options)
  return refusal ?? attempt(Math.max(0, deadline - now()), true)
}

type Approval = {
  /** The signed transaction. */
  approval: Hex | undefined
  /** Address of the client that presents it. */
  client: string | undefined
  /** Bounds all of it, ms. */
  waitMs: number
}

/** Calls `Settlement.settle`, with the payer's approve. */
export function settleSponsored(
  { settlement, ...sponsoring }: Sponsoring,
  transfer: Transfer,
  purpose: Purpose,
  { approval, client, waitMs, ...options }: SettleOptions & Approval,
): Promise<Outcome> {
  const signed = { approval, client, waitMs }
  return withApproval<Outcome>(sponsoring, transfer, signed, (leftMs, isSecond) =>
    settlement.settle(transfer, purpose, {
      ...options,
      ...(isSecond && { isUnknown: false, findKnown: undefined }),
      waitMs: leftMs,
    }),
  )
}

/** Calls `authorize`, with the payer's approve. */
export function authorizeSponsored(
  { settlement, ...sponsoring }: Sponsoring,
  transfer: Transfer,
  purpose: Purpose,
  {
    approval,
    client,
    waitMs,
    ...rest
  }: Pick<AuthorizeOptions, 'validUntil' | 'onAsked'> & Approval,
): Promise<Outcome | Authorized> {
  return withApproval<Authorized>(sponsoring, transfer, { approval, client, waitMs }, () => {
    const options = { id: settlement.createId(), receivedAt: sponsoring.now(), client, ...rest }
    return settlement.authorizations.authorize(transfer, purpose, options)
  })
}

/** Calls `settleByHolder`, with the payer's approve. */
export function settleByHolderSponsored(
  { settlement, ...sponsoring }: Sponsoring,
  transfer: Transfer,
  purpose: Purpose,
  { approval, client, waitMs, ...rest }: Pick<HolderOptions, 'receivedAt' | 'requestId'> & Approval,
): Promise<Outcome> {
  return withApproval<Outcome>(sponsoring, transfer, { approval, client, waitMs }, (leftMs) => {
    const options = { id: settlement.createId(), waitMs: leftMs, ...rest }
    return settlement.authorizations.settleByHolder(transfer, purpose, options)
  })
}

/** Sends the payer's approve; the outcome when it is not sent. */
async function approve(
  sponsor: ApprovalSponsor,
  transfer: Transfer,
  approval: Hex,
  options: { waitMs: number; client: string | undefined },
): Promise<Outcome | undefined> {
  const approved = await sponsor.approve(transfer, approval, options)
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
