import type { Address } from 'viem'
import type { CeilingLimits } from '../../../db/authorizations'
import type { Purpose } from '../../../db/Payment'
import * as Amount from '../../protocol/Amount'
import type { Transfer } from '../../protocol/Transfer'
import * as Refusals from '../read/refusals'
import { facilitatorMax, openMax } from '../send/relayer'
import { type ChainState, type Context, endReservation, type QueuedPayment } from '../state/state'

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
  { ceilings, credit }: Context,
  chain: ChainState,
  { transfer, purpose }: Signed,
): Refusals.PaymentRefusal | undefined {
  const { upto, payer } = transfer
  if (upto === undefined) return undefined
  // After a restart charges wait that have no ceiling in memory.
  const waiting = waitingFor(chain, upto.facilitator).filter(
    ({ request: { id, purpose } }) => purpose.product !== 'facilitator' && !ceilings.has(id),
  )
  const taken = countOf(ceilings, transfer, upto.facilitator) + waiting.length
  const most = mostOf(chain, 'gateway')
  if (taken >= most) return Refusals.busy
  const own = countOf(ceilings, transfer, upto.facilitator, payer)
  const hasPaid = credit.hasPaid({ payer, merchant: purpose.merchant })
  return own >= payerMostOf(most, hasPaid) ? Refusals.underWay : undefined
}

type Signed = { transfer: Transfer; purpose: Purpose }

/** Places of a relayer that one payer may take, so that others can buy beside it. */
function payerMostOf(most: number, hasPaid: boolean): number {
  const share = Math.ceil(most / payerParts)
  return hasPaid ? share : Math.min(share, newPayerMax)
}

/** Refuses a charge for another server that the relayer cannot settle in time behind those that wait. */
export function refuseBehind(
  { now }: Pick<Context, 'now'>,
  chain: ChainState,
  { upto, payer, validBefore }: Transfer,
  { product }: Pick<Purpose, 'product'>,
): Refusals.PaymentRefusal | undefined {
  if (upto === undefined || product !== 'facilitator') return undefined
  const waiting = waitingFor(chain, upto.facilitator).filter(
    ({ request: { purpose } }) => purpose.product === 'facilitator',
  )
  const leftMs = Number(validBefore) * 1000 - now()
  const most = mostOf(chain, product, leftMs)
  if (waiting.length >= most) return Refusals.busy
  const own = waiting.filter(({ transfer }) => transfer.payer === payer)
  return own.length >= payerMostOf(most, true) ? Refusals.underWay : undefined
}

function waitingFor({ queue }: ChainState, facilitator: Address): QueuedPayment[] {
  return queue.named.filter(({ transfer }) => transfer.upto?.facilitator === facilitator)
}

/** Charges that a relayer settles in time: our own, beside what it has open for others, or those of others. */
function mostOf(
  { head }: ChainState,
  product: Purpose['product'],
  leftMs: number = chargeMs,
): number {
  const ms = Math.min(leftMs, chargeMs)
  const rounds = Math.max(1, Math.floor(ms / Math.max(head.blockTimeMs, roundMinMs)))
  return product === 'facilitator' ? rounds * facilitatorMax : rounds * openMax - facilitatorMax
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
  { policy, credit }: Context,
  chain: ChainState,
  { transfer, purpose }: Signed,
  funds: Funds,
): CeilingLimits {
  const relayerMax = mostOf(chain, purpose.product)
  const { payer } = transfer
  // What is settled for another server is known, and needs no credit.
  const hasPaid =
    purpose.product === 'facilitator' || credit.hasPaid({ payer, merchant: purpose.merchant })
  return {
    unsettledAtomic: policy.unsettledMax(),
    fundsAtomic: fundsOf(transfer, funds),
    relayerMax,
    payerMax: payerMostOf(relayerMax, hasPaid),
  }
}
