import type { Hex } from 'viem'
import type { Transfer } from '../protocol/Transfer'
import type { Outcome, Purpose, Reason } from './Payment'
import type { ApprovalSponsor } from './Sponsorship'
import type { Settlement } from './settle'
import * as Verify from './verify'

type Options = Parameters<Settlement['settle']>[2]

export type Sponsoring = {
  settlement: Pick<Settlement, 'settle'>
  /** Undefined when nobody here sends approves. */
  sponsor: ApprovalSponsor | undefined
  now: () => number
}

/**
 * `Settlement.settle`; when only the allowance is missing and the payer has signed an approve, that is
 * sponsored first. Nothing is written before, because the simulation refuses. `waitMs` is for both.
 */
export async function settleSponsored(
  { settlement, sponsor, now }: Sponsoring,
  transfer: Transfer,
  approval: Hex | undefined,
  purpose: Purpose,
  options: Options,
): Promise<Outcome> {
  const deadline = now() + options.waitMs
  const outcome = await settlement.settle(transfer, purpose, options)
  if (approval === undefined || sponsor === undefined || !lacksAllowance(outcome)) return outcome
  const left = () => Math.max(0, deadline - now())
  const approved = await sponsor.approve(transfer, approval, { waitMs: left() })
  if (approved.kind === 'unavailable') return approved
  if (approved.kind === 'refused') return Verify.refuse(reasonOf(approved.code), approved.detail)
  return settlement.settle(transfer, purpose, { ...options, waitMs: left() })
}

/** Everything but the allowance is as it must be. */
export function lacksAllowance(outcome: { kind?: string; reason?: string }): boolean {
  return outcome.kind === 'refused' && outcome.reason === 'permit2_allowance_required'
}

/** The code of a sponsor's refusal; codes of others are a fault of the payment itself. */
export function reasonOf(code: string): Reason {
  return isApprovalCode(code) ? code : 'permit2_allowance_required'
}

function isApprovalCode(code: string): code is `erc20_approval_${string}` {
  return code.startsWith('erc20_approval_')
}
