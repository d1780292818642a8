import type { Address } from 'viem'
import type { Authorization, Charge } from '../../../db/Authorization'
import type { AuthorizationLedger } from '../../../db/AuthorizationLedger'
import type { Payment, Purpose } from '../../../db/Payment'
import type * as Network from '../../protocol/Network'
import type { Transfer } from '../../protocol/Transfer'
import type { Intake } from '../send/intake'
import type { Outcome } from '../send/Outcome'
import { makesRoom, pausedBy } from '../send/relayer'
import { settleByHolder } from '../state/by-holder'
import type { ChainState, PaymentRequest } from '../state/state'
import { type Authorized, type AuthorizeOptions, authorize, isServed } from './authorize'
import {
  type ChargeOptions,
  type Forwarded,
  followEnds,
  followOthers,
  isOfAnother,
  settleCharge,
  writeCharge,
} from './charges'
import { type Voided, type VoidOptions, writeVoid } from './voids'

/*
 * The scheme `upto`: authorize (the ceiling is checked, reserved and written), then the request is
 * forwarded and metered, `charge` writes what it costs, and `settleCharge` settles that as a payment
 * of the same id, by the relayer that the payer signed.
 */

export type Authorizations = Pick<
  AuthorizationLedger,
  'find' | 'findById' | 'findByIdempotencyKey' | 'findVoid'
> & {
  /**
   * Relayers that may settle `upto` on a network now; none where the chain lacks the contracts. No
   * I/O.
   */
  facilitators(network: Network.Id, ceilingAtomic: bigint): readonly Address[]
  /**
   * Checks and writes a signed ceiling (`amountAtomic`, with `upto`). The caller has the claim on the
   * money, and ends with `charge`. Rejects with RowsRefusedError `key-used` when another process has
   * sold by the buyer's own key.
   */
  authorize(
    transfer: Transfer,
    purpose: Purpose,
    options: AuthorizeOptions,
  ): Promise<Authorized | Outcome>
  /**
   * Writes what the answer costs; an amount of 0 ends the authorization as `void`. Throws above the
   * ceiling, and when it was charged before.
   */
  charge(
    authorization: Authorization,
    charge: Charge,
    forwarded?: Forwarded,
  ): Promise<Authorization>
  /** Whether a stream to this payer waits for its charge, because it never paid to the merchant. No I/O. */
  holdsStream(authorization: Authorization): boolean
  /** Whether a payer may have this much beyond its charge; then it counts as lost to the payer. */
  lend(payment: Payment, atomic: bigint): Promise<boolean>
  /**
   * Writes a ceiling from which nothing will ever be charged. The caller has the claim on the
   * money, and has verified the ceiling.
   */
  void(transfer: Transfer, purpose: Purpose, options: VoidOptions): Promise<Voided>
  /**
   * Settles a metered charge, or waits for the settlement that is running. A charge whose answer the
   * buyer does not have is given up when it cannot be settled: then it never will be.
   */
  settleCharge(authorization: Authorization, options: ChargeOptions): Promise<Outcome>
  /** Whether a process can send for the relayer that the payer named, as far as this one knows. No I/O. */
  isServed(transfer: Transfer): boolean
  /** Whether the relayer that the payer named belongs to another process. No I/O. */
  isOfAnother(transfer: Transfer): boolean
  /**
   * Settles a known charge (`amountAtomic`, with `upto`) for another server by the process that has the
   * relayer, and waits. The caller has the claim on the money. Rejects with RowsRefusedError.
   */
  settleByHolder(request: PaymentRequest, waitMs: number): Promise<Outcome>
}

export function createAuthorizations(context: Intake): Authorizations {
  const { authorizations } = context.ledger
  followEnds(context)
  followOthers(context)
  return {
    find: authorizations.find,
    findById: authorizations.findById,
    findByIdempotencyKey: authorizations.findByIdempotencyKey,
    findVoid: authorizations.findVoid,
    facilitators(network, ceilingAtomic) {
      const chain = context.chains.get(network)
      if (!chain || ceilingAtomic > context.policy.unsettledMax()) return []
      return facilitatorsOf(chain)
    },
    authorize: (transfer, purpose, options) => authorize(context, transfer, purpose, options),
    charge: (authorization, charge, forwarded = {}) =>
      writeCharge(context, authorization, charge, forwarded),
    holdsStream: ({ transfer: { payer }, purpose: { merchant } }) =>
      context.credit.holdsStream({ payer, merchant }),
    async lend({ id, attempts, transfer, purpose: { merchant } }, atomic) {
      const { network, asset, payer } = transfer
      const debtor = { network, asset, payer, merchant, client: undefined }
      await context.credit.read(debtor, atomic)
      if (context.credit.refuse(debtor, atomic)) return false
      context.credit.lose(`${id} ${attempts}`, debtor, atomic)
      return true
    },
    void: (transfer, purpose, options) => writeVoid(context, transfer, purpose, options),
    settleCharge: (authorization, options) => settleCharge(context, authorization, options),
    isServed: (transfer) => isServed(context, transfer),
    isOfAnother: (transfer) => isOfAnother(context, transfer),
    settleByHolder: (request, waitMs) => settleByHolder(context, request, waitMs),
  }
}

function facilitatorsOf({ abilities, relayers }: ChainState): readonly Address[] {
  if (!abilities.hasUpto) return []
  return relayers.flatMap((relayer) => {
    const isPaused = pausedBy(relayer) !== undefined || makesRoom(relayer, relayers)
    return relayer.isReserved || isPaused ? [] : [relayer.address]
  })
}
