import type { Address } from 'viem'
import type { CeilingLimits } from '../../../db/authorizations'
import type { Purpose } from '../../../db/Payment'
import * as Amount from '../../protocol/Amount'
import type { Transfer } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import { facilitatorMax, openMax } from '../send/relayer'
import { type ChainState, type Context, endReservation } from '../state/state'

/*
 * Signed ceilings of the scheme `upto` that are not settled, and how many of them may be open. One process
 * checks that in memory. Where processes share a ledger, the database checks the same limits (`limitsOf`)
 * over all of them.
 */

type Ceilings = Context['ceilings']

/**
 * Time that a charge has to be settled, ms. Streams are cut this long before their authorization
 * ends, and an authorization that outlives the slowest answer by less is refused.
 */
export const chargeMs = 30_000

/** Time between two rounds of transactions, on chains whose blocks are faster, ms. */
const roundMinMs = 1_000

/** Places of a relayer for a payer that has not paid to the merchant. */
const newPayerMax = 8

/** A payer that has paid may take one place in this many. */
const payerParts = 4

/** Ceilings that one relayer is to settle, of all payers or of one. */
export function countOf(
  ceilings: Ceilings,
  { network }: Pick<Transfer, 'network'>,
  facilitator: Address,
  payer?: Address,
): number {
  let count = 0
  for (const { transfer } of ceilings.values()) {
    if (transfer.network !== network || transfer.upto?.facilitator !== facilitator) continue
    if (payer === undefined || transfer.payer === payer) count++
  }
  return count
}

/** The authorization of a ceiling has ended. May be called again. */
export function releaseCeiling(context: Context, id: string): void {
  const ceiling = context.ceilings.get(id)
  if (!ceiling) return
  endReservation(context, ceiling)
  ceiling.close()
  context.ceilings.delete(id)
}

/**
 * Refuses what the relayer could not settle in time when all that it has open ended now. Otherwise
 * buyers could end more streams at once than it can settle before they expire, and keep the rest for
 * nothing: a charge that expires is no fault of its payer.
 */
export function refuseFull(
  context: Pick<Context, 'ceilings' | 'credit'>,
  chain: ChainState,
  signed: Signed,
): Refusals.PaymentRefusal | undefined {
  const { ceilings } = context
  const { transfer } = signed
  const { upto, payer } = transfer
  if (upto === undefined) return undefined
  // After a restart charges wait that have no ceiling in memory.
  const waiting = waitingFor(chain, signed).filter(({ request: { id } }) => !ceilings.has(id))
  const taken = countOf(ceilings, transfer, upto.facilitator) + waiting.length
  const own = countOf(ceilings, transfer, upto.facilitator, payer)
  return refuseTaken(taken, own, placesOf(context, chain, signed))
}

type Signed = { transfer: Transfer; purpose: Purpose }

/** Refuses a charge for another server that the relayer cannot settle in time behind those that wait. */
export function refuseBehind(
  context: Pick<Context, 'credit' | 'now'>,
  chain: ChainState,
  signed: Signed,
): Refusals.PaymentRefusal | undefined {
  const { transfer, purpose } = signed
  const { upto, payer, validBefore } = transfer
  if (upto === undefined || purpose.product !== 'facilitator') return undefined
  const waiting = waitingFor(chain, signed)
  const own = waiting.filter(({ transfer }) => transfer.payer === payer)
  const leftMs = Number(validBefore) * 1000 - context.now()
  return refuseTaken(waiting.length, own.length, placesOf(context, chain, signed, leftMs))
}

function refuseTaken(taken: number, own: number, { relayerMax, payerMax }: Places) {
  if (taken >= relayerMax) return Refusals.busy
  return own >= payerMax ? Refusals.underWay : undefined
}

/** Charges that wait for the relayer of a transfer: our own, or those for other servers. */
function waitingFor({ queue }: ChainState, { transfer: { upto }, purpose }: Signed) {
  const isOfOthers = purpose.product === 'facilitator'
  return queue.named.filter(({ transfer, request: { purpose } }) => {
    const isNamed = transfer.upto?.facilitator === upto?.facilitator
    return isNamed && (purpose.product === 'facilitator') === isOfOthers
  })
}

type Places = Pick<CeilingLimits, 'relayerMax' | 'payerMax'>

/**
 * Charges that a relayer settles in time: our own, beside what it has open for others, or those of others. One
 * payer may take a part of these places, so that others can buy beside it.
 */
function placesOf(
  { credit }: Pick<Context, 'credit'>,
  { head }: ChainState,
  { transfer: { payer }, purpose: { product, merchant } }: Signed,
  leftMs: number = chargeMs,
): Places {
  const isOfOthers = product === 'facilitator'
  const ms = Math.min(leftMs, chargeMs)
  const rounds = Math.max(1, Math.floor(ms / Math.max(head.blockTimeMs, roundMinMs)))
  const relayerMax = isOfOthers ? rounds * facilitatorMax : rounds * openMax - facilitatorMax
  const share = Math.ceil(relayerMax / payerParts)
  // What is settled for another server is known, and needs no credit.
  const hasPaid = isOfOthers || credit.hasPaid({ payer, merchant })
  return { relayerMax, payerMax: hasPaid ? share : Math.min(share, newPayerMax) }
}

/** Refuses a ceiling that is not covered together with all that the payer has signed and not paid. */
export function refuseUnfunded(
  { ceilings, payers, policy }: Context,
  transfer: Transfer,
  funds: Funds,
): Refusals.PaymentRefusal | undefined {
  const { payer, amountAtomic } = transfer
  let open = 0n
  for (const { transfer: other } of ceilings.values())
    if (other.payer === payer) open += other.amountAtomic
  if (open + amountAtomic > policy.unsettledMax()) return Refusals.underWay
  const reserved = payers.authorized.of(transfer) + payers.reserved.of(transfer)
  return reserved + amountAtomic > fundsOf(transfer, funds) ? Refusals.underWay : undefined
}

type Funds = { balanceAtomic: bigint; allowanceAtomic?: bigint | undefined }

/** What Permit2 may move from the payer, as just read. */
function fundsOf(
  { amountAtomic, permit2612 }: Transfer,
  { balanceAtomic, allowanceAtomic }: Funds,
): bigint {
  // A permit allows its own ceiling only: of two that are open, the second may be refused on chain.
  const permitted = permit2612 === undefined ? 0n : amountAtomic
  const allowed =
    allowanceAtomic === undefined ? balanceAtomic : Amount.greatest(allowanceAtomic, permitted)
  return allowed > balanceAtomic ? balanceAtomic : allowed
}

/** The limits of a new ceiling, as just read. */
export function limitsOf(
  context: Context,
  chain: ChainState,
  signed: Signed,
  funds: Funds,
): CeilingLimits {
  return {
    unsettledAtomic: context.policy.unsettledMax(),
    fundsAtomic: fundsOf(signed.transfer, funds),
    ...placesOf(context, chain, signed),
  }
}
