import type { Address } from 'viem'
import type { Code } from '../protocol/Problem'
import { dayMs } from '../protocol/Time'
import * as Grant from './Grant'
import type { Judged } from './judge'
import type { Sponsored } from './ledger'

/** The problem of a refused grant. */
export type Refused = {
  code: Code
  detail: string
  members?: Readonly<Record<string, unknown>>
  retryAfterSeconds?: number
}

export type GrantRefusal = { kind: 'refused'; approve?: Grant.Approve } & Refused

export function refusedBy({
  code,
  detail,
  approve,
}: Extract<Judged, { kind: 'refused' }>): GrantRefusal {
  return { ...refuse(code, detail, approve && { approve }), ...(approve && { approve }) }
}

/** A refusal with a short Retry-After: it ends as soon as the earlier address has approved. */
export const unusedGrant: GrantRefusal = {
  ...refuse('rate-limited', 'An address that was sponsored for this client has not approved yet.'),
  retryAfterSeconds: 2,
}

export function unsigned(network: Sponsored, address: Address): GrantRefusal {
  const message = Grant.messageOf(network.id, address)
  const detail = 'Half of the budget is spent: the address must sign the message (EIP-191).'
  return refuse('signature-required', detail, { message })
}

export function spent(now: number): GrantRefusal {
  const detail = 'The sponsoring budget of today is spent; it starts again at 0:00 UTC.'
  return { ...refuse('budget-spent', detail), retryAfterSeconds: secondsLeft(now) }
}

export function tooMany(now: number): GrantRefusal {
  const detail = 'Enough addresses were sponsored for this client today; try again tomorrow (UTC).'
  return { ...refuse('rate-limited', detail), retryAfterSeconds: secondsLeft(now) }
}

export function notReady(detail: string, retryAfterSeconds = 5): GrantRefusal {
  return { ...refuse('not-ready', detail), retryAfterSeconds }
}

export function refuse(
  code: Code,
  detail: string,
  members?: Readonly<Record<string, unknown>>,
): GrantRefusal {
  return { kind: 'refused', code, detail, ...(members && { members }) }
}

/** Until the next UTC day. */
function secondsLeft(now: number): number {
  return Math.max(1, Math.ceil((Grant.dayOf(now) + dayMs - now) / 1000))
}
