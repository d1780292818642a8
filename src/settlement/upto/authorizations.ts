import type { Address } from 'viem'
import type { Authorization, Charge } from '../../../db/Authorization'
import type { Payment, Purpose } from '../../../db/Payment'
import type * as Network from '../../protocol/Network'
import { atCeiling, type Transfer } from '../../protocol/Transfer'
import { type ChargedAuthorization, isPresented } from '../channels/state'
import * as Vouchers from '../channels/voucher'
import * as Refusals from '../read/refusals'
import type { Outcome } from '../send/Outcome'
import { canGive, pausedBy } from '../send/relayer'
import * as Gas from '../state/gas-budget'
import { type Context, chainOf, type PaymentRequest } from '../state/state'
import {
  type AuthorizeOptions,
  authorize,
  checkPayer,
  isServed,
  refuseUnserved,
  writeCeiling,
} from './authorize'
import { limitsOf } from './ceilings'
import {
  type ChargeOptions,
  type Forwarded,
  followPayments,
  isRelayerOfAnother,
  settleCharge,
  writeCharge,
} from './charges'

/*
 * The scheme `upto`: authorize (the ceiling is checked, reserved and written), then the request is
 * forwarded and metered, `charge` writes what it costs, and `settleCharge` settles that as a payment
 * of the same id, by the relayer that the payer signed.
 */

/** The functions of the scheme `upto`. */
export type Authorizations = ReturnType<typeof createUptoAuthorizations>

export function createUptoAuthorizations(context: Context) {
  const { find, findById, findByIdempotencyKey, findVoid } = context.ledger.authorizations
  followPayments(context)
  return {
    find,
    findById,
    findByIdempotencyKey,
    findVoid,
    /**
     * Relayers that may settle `upto` on a network now; none where the chain lacks the contracts. No
     * I/O.
     */
    facilitators(network: Network.Id, ceilingAtomic: bigint): readonly Address[] {
      const chain = context.chains.get(network)
      if (!chain?.abilities.hasUpto || ceilingAtomic > context.policy.unsettledMax()) return []
      const { relayers } = chain
      return relayers.flatMap((relayer) => {
        const isPaused = pausedBy(relayer) !== undefined || (relayer.isLeaving && canGive(relayers))
        return relayer.isReserved || isPaused ? [] : [relayer.address]
      })
    },
    /**
     * Checks and writes a signed ceiling (`amountAtomic`, with `upto`). The caller has the claim on the
     * money, and ends with `charge`. Rejects with RowsRefusedError `key-used` when another process has
     * sold by the buyer's own key.
     */
    authorize: (transfer: Transfer, purpose: Purpose, options: AuthorizeOptions) =>
      isPresented(transfer)
        ? Vouchers.authorize(context, transfer, purpose, options)
        : authorize(context, transfer, purpose, options),
    /**
     * Writes what the answer costs; an amount of 0 ends the authorization as `void`. Throws above the
     * ceiling, and when it was charged before.
     */
    charge: (
      authorization: Authorization,
      charge: Charge,
      forwarded: Forwarded = {},
    ): Promise<ChargedAuthorization> =>
      isPresented(authorization.transfer)
        ? Vouchers.charge(context, authorization, charge, forwarded)
        : writeCharge(context, authorization, charge, forwarded),
    /**
     * Whether a stream to this payer waits for its charge, because it never paid to the merchant. The money
     * of a channel is there. No I/O.
     */
    holdsStream: ({ transfer: { payer, method }, purpose: { merchant } }: Authorization): boolean =>
      method !== 'channel' && context.credit.holdsStream({ payer, merchant }),
    /**
     * Whether a payer may have this much beyond its charge; then it counts as lost to the payer. By a channel
     * its signer borrows, because a signer may have named any payer.
     */
    async lend(
      { id, attempts, transaction, transfer, purpose }: Payment,
      atomic: bigint,
    ): Promise<boolean> {
      const { network, asset, method } = transfer
      const channel = method === 'channel' && (await Vouchers.findChannel(context, transaction))
      const payer = channel ? channel.config.payerAuthorizer : transfer.payer
      const debtor = { network, asset, payer, merchant: purpose.merchant, client: undefined }
      await context.credit.read(debtor, atomic)
      if (context.credit.refuse(debtor, atomic)) return false
      context.credit.lose(`${id} ${attempts}`, debtor, atomic)
      return true
    },
    /**
     * Writes a signed ceiling (`amountAtomic`, with `upto`) from which nothing will ever be charged, in one
     * commit. The chain would still take the signature, but only our relayer may settle it, and the ledger
     * refuses its money from now on. The caller has the claim on the money, and has verified the ceiling. A
     * refusal: nothing was written.
     */
    async void(asked: Asked): Promise<{ kind: 'void' } | Refusals.PaymentRefusal> {
      const { ledger, progress, now } = context
      if (progress.isStopping) return Refusals.unavailable(undefined)
      if (ledger.fault() !== undefined) return Refusals.unrecordable
      const knownBlock = chainOf(context, asked.transfer.network).head.number
      const charge = { amountAtomic: 0n, units: {} }
      const ceiling = { ...asked, state: 'void' as const, charge, knownBlock, createdAt: now() }
      const written = await writeCeiling(context, ceiling)
      return written === 'stored' ? { kind: 'void' } : written
    },
    /**
     * Settles a metered charge, or waits for the settlement that is running. A charge whose answer the
     * buyer does not have is given up when it cannot be settled: then it never will be.
     */
    settleCharge: async (
      authorization: ChargedAuthorization,
      options: ChargeOptions,
    ): Promise<Outcome> =>
      isPresented(authorization.transfer)
        ? Vouchers.outcomeOf(context, authorization)
        : settleCharge(context, authorization, options),
    /** Whether a process can send for the relayer that the payer named, as far as this one knows. No I/O. */
    isServed: (transfer: Transfer) => isServed(context, transfer),
    /** Whether the relayer that the payer named belongs to another process. No I/O. */
    isOfAnother: (transfer: Transfer) => isRelayerOfAnother(context, transfer),
    /**
     * The facilitator's settlement of a known charge (`amountAtomic`, with `upto`) by a relayer that another
     * process has. Only that relayer may settle what the payer signed, so the ceiling is written with its
     * charge, and the process that has the relayer settles it like the charge of an answer. Checks a charge as
     * `settle` does, writes it as metered, and waits for that process. The caller has the claim on the money.
     * `unavailable` after the time: the charge may be settled later. Rejects with RowsRefusedError.
     */
    async settleByHolder(
      { id = context.createId(), transfer, purpose, receivedAt, requestId }: PaymentRequest,
      waitMs: number,
    ): Promise<Outcome> {
      const { now } = context
      const until = now() + waitMs
      const chain = chainOf(context, transfer.network)
      const knownBlock = chain.head.number
      const refused =
        refuseUnserved(context, chain, transfer) ?? Gas.refuseBudget(context, chain, purpose)
      if (refused) return refused
      const checked = await checkPayer(context, chain, { transfer, purpose, onAsked: undefined })
      if ('kind' in checked) return checked
      const authorization: Authorization = {
        ...{ id, transfer: atCeiling(checked.transfer), purpose, receivedAt, knownBlock },
        charge: { amountAtomic: transfer.amountAtomic, units: {} },
        ...{ state: 'metered', createdAt: now() },
      }
      // Nothing is given before the payment, so the payer needs no credit. But its balance must cover all that
      // is written: a charge that it does not cover takes the room of its relayer until it expires.
      const limits = {
        ...limitsOf(context, chain, { transfer: checked.transfer, purpose }, checked.simulation),
        unsettledAtomic: unlimited,
        fundsAtomic: checked.simulation.balanceAtomic,
      }
      const written = await writeCeiling(context, authorization, limits)
      if (written !== 'stored') return written
      context.metrics.charged(transfer.network, 'metered')
      return settleCharge(context, authorization, { waitMs: Math.max(0, until - now()), requestId })
    },
  }
}

type Asked = Pick<Authorization, 'id' | 'transfer' | 'purpose' | 'receivedAt'>

/** As much as any payer can have. */
const unlimited = 2n ** 256n
