import type { Transfer } from '../src/protocol/Transfer'
import type { Purpose } from './Payment'

/**
 * State of an authorization of the scheme `upto`. `authorized`: the request may be forwarded, and its
 * charge is not known. `metered`: the charge is written and must be settled. `sent`: a payment with the
 * same id settles it. `void`: nothing is charged, and it is never settled. `failed`: its charge could
 * not be settled, and never will be.
 */
export type State = 'authorized' | 'metered' | 'sent' | 'void' | 'failed'

export const transitions: Readonly<Record<State, readonly State[]>> = {
  authorized: ['metered', 'void'],
  metered: ['sent', 'failed'],
  sent: [],
  void: [],
  failed: [],
}

/** States from which the table of transitions permits this one. */
export function sourcesOf(target: State): State[] {
  const states = Object.keys(transitions) as State[]
  return states.filter((state) => transitions[state].includes(target))
}

/** What an answer costs: atomic amount, and what was counted by unit. */
export type Charge = { amountAtomic: bigint; units: Readonly<Record<string, number>> }

/** How an answer was delivered before its charge was settled. */
export type Delivered = { upstreamStatus: number; truncated: boolean }

/** A signed ceiling as stored. Times are unix ms. */
export type Authorization = {
  /** Also the id of the payment that settles it. */
  id: string
  /** `amountAtomic` is the ceiling; `upto` is set. */
  transfer: Transfer
  purpose: Purpose
  state: State
  /** Undefined while it is `authorized`. */
  charge?: Charge | undefined
  /** Undefined when the buyer has nothing yet. */
  delivered?: Delivered | undefined
  /** When a settlement failed by the payer's doing; of a void one, when its forwarded request failed. */
  failedAt?: number | undefined
  /** When the request arrived whose simulation passed, and the newest block known before. */
  receivedAt: number
  knownBlock: bigint
  createdAt: number
}
