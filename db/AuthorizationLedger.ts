import type { Address } from 'viem'
import type { Money } from '../src/protocol/Transfer'
import type { Authorization, Charge, Delivered } from './Authorization'
import type { KeyScope } from './Payment'

/**
 * Authorizations of the scheme `upto`. Money is authorized or paid once: the database refuses an
 * authorization of money that a payment has, and a payment of money that another one has authorized.
 * Every change is a compare-and-swap: false when the state was another one.
 */
export type AuthorizationLedger = {
  find(money: Money): Promise<Authorization | undefined>
  findById(id: string): Promise<Authorization | undefined>
  /** Newest one of the key that is `authorized` or `metered`. */
  findByIdempotencyKey(scope: KeyScope): Promise<Authorization | undefined>
  /** Newest one of the key that is `void`. */
  findVoid(scope: KeyScope): Promise<Authorization | undefined>
  /** Those that are `metered`, and those `authorized` that no other living process works on. */
  open(): Promise<readonly Authorization[]>
  /** Whether a settlement of this payer has failed since a time (unix ms), and was not paid after all. */
  hasFailedSince(payer: Address, at: number): Promise<boolean>
  /** What merchants have lost since a time (unix ms). */
  lossesSince(at: number): Promise<readonly Loss[]>
  /** What a payer has paid to a merchant, and what that merchant has ever lost to it. */
  standingOf(buyer: Buyer): Promise<Standing>
  /**
   * Writes an authorization. `known`: its money was authorized or paid before; nothing is written. A
   * power loss may undo one that is `authorized` for up to 100 ms. `limits` hold over all processes;
   * one process that has the ledger alone checks them itself.
   */
  insert(authorization: Authorization, limits?: CeilingLimits): Promise<Inserted>
  /** `authorized` to `metered`, with the charge, and with what the buyer has already. */
  meter(id: string, charge: Charge, delivered: Delivered | undefined): Promise<boolean>
  /** `authorized` to `void`. `lostAt` (unix ms): a forwarded request ended and costs nothing. */
  void(
    id: string,
    charge: Charge,
    delivered: Delivered | undefined,
    lostAt?: number,
  ): Promise<boolean>
  /** `metered` to `failed`. */
  fail(id: string): Promise<boolean>
  /** A settlement failed by the payer's doing (unix ms). The state stays. */
  markFailed(id: string, at: number): Promise<void>
}

/** A payer of one asset, at one merchant. */
export type Buyer = Pick<Money, 'network' | 'asset' | 'payer'> & { merchant: string }

/**
 * A request that was forwarded and never paid for: its whole ceiling where nothing was charged, else the
 * charge that was not settled.
 */
export type Loss = { id: string; merchant: string; payer: Address; atomic: bigint; at: number }

/** At least this much was paid: the payments that are summed are limited. */
type Standing = { paidAtomic: bigint; lostAtomic: bigint }

/** Payments and losses that one read of a standing sums at most. */
export const standingRowsMax = 500

export type Inserted = 'stored' | 'known' | { refused: CeilingRefusal }

/** Why a new ceiling was not written although its money is free. */
export type CeilingRefusal =
  /** Another payment or ceiling has the buyer's own key. A process alone finds that earlier. */
  | 'key-used'
  /** Over all processes, the payer has more under way than its funds or its limits cover. */
  | 'payer-under-way'
  /** The relayer has more ceilings to settle than it could before they expire. */
  | 'relayer-busy'

/** The most that may be open together with a new ceiling. */
export type CeilingLimits = {
  /** Most that is open on the payer's ceilings on all networks, atomic. */
  unsettledAtomic: bigint
  /**
   * Most that is open on the payer's ceilings and payments of the asset, atomic: its balance and
   * allowance.
   */
  fundsAtomic: bigint
  /** Most open ceilings that name one relayer of a network: those of a facilitator, or all others. */
  relayerMax: number
  /** Of these, most of the payer. */
  payerMax: number
}
