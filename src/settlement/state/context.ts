import type { Address } from 'viem'
import type { Ledger } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { WriteEvent } from '../../log'
import type * as Network from '../../protocol/Network'
import type { Outcome, Underway } from '../send/Outcome'
import type { Ceilings } from '../upto/ceilings'
import type { Credit } from '../upto/credit'
import type { Events } from './events'
import type { Metrics } from './metrics'
import type { Payers } from './payers'
import type { ChainState } from './state'

/** The parts of settlement. Each stage names the parts that it uses. */
export type Context = Readonly<{
  ledger: Ledger
  chains: ReadonlyMap<Network.Id, ChainState>
  payers: Payers
  ceilings: Ceilings
  credit: Credit
  progress: Progress
  policy: Policy
  events: {
    /** Emits the id of a payment whose state has changed. */
    payments: Events
    /** Emits the id of a job whose state or newest transaction has changed. */
    jobs: Events
  }
  metrics: Metrics
  /** Unix ms. */
  now: () => number
  /** A clock in ms that never decreases; it shows that `now` was set. */
  monotonic: () => number
  log: WriteEvent
}>

/** Work that is running. The promises never reject. */
export type Progress = {
  /** Payments that are being driven, by id. */
  running: Map<string, Promise<Outcome>>
  /** Authorizations whose charge is being settled, by id. */
  charging: Map<string, Promise<Outcome>>
  /** Slots that are being driven. */
  driving: Set<Promise<unknown>>
  /**
   * Reads of balances, until what they allow is reserved: they may be older than what is included
   * meanwhile.
   */
  reading: Set<Promise<unknown>>
  /** No new work is accepted. */
  isStopping: boolean
  /** Ends the waits. Unfinished payments stay in the database and continue after a restart. */
  signal: AbortSignal
}

/** Settings of the operator. */
export type Policy = Readonly<{
  jobProofMs: number
  resendMs: number
  clockSkewMaxMs: number
  /** Atomic amount; undefined: one node is enough for every payment. */
  confirmTwiceAbove: () => bigint | undefined
  /** Longest time of one attempt to settle a charge, ms. */
  chargeAttemptMs: number
  /** Atomic amount: most ceilings of one payer that are not settled. */
  unsettledMax: () => bigint
  /** Whether an operator has paused the sales on a network. */
  isPaused: (network: Network.Id) => boolean
  payoutExclusive: () => boolean
  isOwnPayee: (payee: Address) => boolean
}>

/** The state of a network. Throws for one that is not configured. */
export function chainOf({ chains }: Pick<Context, 'chains'>, id: Network.Id): ChainState {
  const chain = chains.get(id)
  if (!chain) throw new Error(`${id} is not a configured network`)
  return chain
}

/** Log fields of one payment. */
export function about({ id, requestId }: { id: string; requestId?: string | undefined }) {
  return requestId === undefined ? { payment: id } : { payment: id, requestId }
}

/** A payment without a request that waits for it. */
export function unattended(payment: Payment): Underway {
  return { payment, requestId: undefined, deliverOnConfirm: undefined }
}
