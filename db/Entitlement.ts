import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'
import { dayOf } from '../src/protocol/Time'
import type { Payment } from './Payment'

/**
 * What a wallet may have at a route without a further payment. `again`: an answer that it paid for.
 * `pass`: a number of requests for a time. `trial`: free requests, once ever.
 */
export type Entitlement = {
  id: string
  kind: Kind
  merchant: string
  /** The route that it opens. */
  route: string
  wallet: Address
  /** That of its payment; of a trial the one that its wallet signed for first. */
  network: Network.Id | undefined
  uses: number
  /** Of a trial as it was when it was used last. */
  usesMax: number
  /** Begun uses, failed ones too. */
  attempts: number
  /** Unix ms. Undefined for a trial, and while its payment is not confirmed or is refunded. */
  until: number | undefined
  payment: Payment | undefined
}

export type Kind = Exclude<(typeof kinds)[number], 'day'>

/** `day`: not of a wallet, but the trials of all wallets at a route on one UTC day. */
export const kinds = ['again', 'pass', 'trial', 'day'] as const

/** Written with its payment, from which it has its id, wallet and network. */
export type NewEntitlement = {
  kind: 'again' | 'pass'
  merchant: string
  /** The route that it opens. */
  route: string
  /** Of the request that `again` repeats; undefined for a pass. */
  fingerprint: string | undefined
  usesMax: number
  /** From the confirmation of the payment. */
  periodMs: number
}

/** Requests for free, of one wallet at one route. */
export type Trial = {
  merchant: string
  route: string
  wallet: Address
  network: Network.Id
  usesMax: number
}

export const useStates = ['running', 'delivered', 'failed'] as const

/** A use to be counted. Times are unix ms. */
export type NewUse = {
  /** Used once ever, as long as it is kept. */
  id: string
  entitlement: { id: string } | { trial: Trial }
  /** The trials of all wallets on this day, with the most of them. Only with a trial. */
  day?: { id: string; max: number } | undefined
  /** Most attempts for each use, on average. */
  attemptsMax: number
  now: number
}

/**
 * `spent`: no use, or no attempt, is left. `over`: its time is over, or its payment is not confirmed or
 * was refunded. Nothing is counted but for `used`.
 */
export type Used = 'used' | 'id-used' | 'spent' | 'day-spent' | 'over'

export type EntitlementLedger = {
  /**
   * Those of a wallet at a route, spent ones too, the best first: `again` of this fingerprint, passes
   * by their end, the trial. Only such whose payment is confirmed, not refunded and in time.
   */
  find(of: {
    merchant: string
    route: string
    wallet: Address
    fingerprint: string
    now: number
  }): Promise<readonly Entitlement[]>
  /** That of a payment in any state. */
  findByPayment(paymentId: string): Promise<Entitlement | undefined>
  /** Counts a use and keeps its id, in one commit that checks everything again. */
  use(use: NewUse): Promise<Used>
  /**
   * Ends a running use; a failed one is given back. False when it was not running. A power loss may
   * undo it for up to 100 ms: then it is given back.
   */
  end(id: string, isDelivered: boolean): Promise<boolean>
  /** Deletes ended uses, and what has been of no use, since before `before` (unix ms). */
  sweep(before: number): Promise<void>
}

export function idOf(kind: 'again' | 'pass', paymentId: string): string {
  return `${kind}|${paymentId}`
}

export function trialId({ merchant, route, wallet }: Omit<Trial, 'network' | 'usesMax'>): string {
  return `trial|${merchant}|${route}|${wallet.toLowerCase()}`
}

/** The id of the trials at a route on the UTC day of a time (unix ms). */
export function dayId({ merchant, route }: Pick<Trial, 'merchant' | 'route'>, at: number): string {
  return `day|${merchant}|${route}|${dayOf(at)}`
}
