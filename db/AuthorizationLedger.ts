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
  /** Whether a settlement of this payer has failed since a time (unix ms). */
  hasFailedSince(payer: Address, at: number): Promise<boolean>
  /**
   * Writes an authorization. `known`: its money was authorized or paid before; nothing is written. A
   * power loss may undo one that is `authorized` for up to 100 ms.
   */
  insert(authorization: Authorization): Promise<'stored' | 'known'>
  /** `authorized` to `metered`, with the charge, and with what the buyer has already. */
  meter(id: string, charge: Charge, delivered: Delivered | undefined): Promise<boolean>
  /** `authorized` to `void`. */
  void(id: string, charge: Charge, delivered: Delivered | undefined): Promise<boolean>
  /** `metered` to `failed`. */
  fail(id: string): Promise<boolean>
  /** A settlement failed by the payer's doing (unix ms). The state stays. */
  markFailed(id: string, at: number): Promise<void>
}
