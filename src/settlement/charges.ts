import type { Authorization } from '../../db/Authorization'
import * as Crypto from '../protocol/Crypto'
import { digest, type Transfer } from '../protocol/Transfer'
import { about, type Context, chainOf } from './context'
import { readMoney } from './ethcall'
import * as Intake from './intake'
import type { Outcome } from './Outcome'
import * as Refusals from './refusals'
import * as Resolve from './resolve'
import { within } from './wait'

export type ChargeOptions = {
  /** Milliseconds. Bounds the wait only: settlement continues. */
  waitMs: number
  requestId?: string | undefined
  onSent?: Intake.PaymentRequest['onSent']
  deliverOnConfirm?: Intake.PaymentRequest['deliverOnConfirm']
}

/**
 * Settles a metered charge by a payment of the same id, or waits for the settlement that is running. A
 * charge whose answer the buyer does not have is given up when it cannot be settled.
 */
export async function settleCharge(
  context: Intake.Intake,
  authorization: Authorization,
  { waitMs, ...options }: ChargeOptions,
): Promise<Outcome> {
  const { id, transfer, charge } = authorization
  if (charge === undefined) throw new Error(`${id} has no charge`)
  const { charging } = context.progress
  const work =
    charging.get(id) ??
    drive(context, authorization, { ...transfer, amountAtomic: charge.amountAtomic }, options)
  if (!charging.has(id)) {
    charging.set(id, work)
    void work.finally(() => charging.delete(id))
  }
  const outcome = await within(work, waitMs)
  if (outcome !== undefined) return outcome
  const payment = await context.ledger.payments.findById(id)
  if (payment?.state === 'confirmed') return Resolve.current(context, payment)
  return payment ? { kind: 'pending', payment } : Refusals.busy
}

function isKeySigned(context: Context, transfer: Transfer): boolean {
  const { asset } = chainOf(context, transfer.network).network
  return Crypto.recover(digest(transfer, asset), transfer.signature) === transfer.payer
}

/** Longest time of one attempt; the next sweep repeats what is not decided. Ms. */
const attemptMs = 60_000

/** Never rejects. */
async function drive(
  context: Intake.Intake,
  authorization: Authorization,
  transfer: Transfer,
  { requestId, onSent, deliverOnConfirm }: Omit<ChargeOptions, 'waitMs'>,
): Promise<Outcome> {
  const { id, purpose, receivedAt, delivered } = authorization
  const { ledger, ceilings, metrics, now } = context
  const startedAt = now()
  try {
    const known = await ledger.payments.findById(id)
    const verified = ceilings.verifiedOf(id)
    const request = {
      id,
      requestId,
      transfer,
      purpose,
      receivedAt,
      // Of a payer without code the chain accepts only the signature of its key.
      isKeySigned: verified !== undefined || (() => isKeySigned(context, transfer)),
      verified,
      rows: { settles: 'authorization' as const },
      onSent,
      deliverOnConfirm,
    }
    const outcome = known
      ? await Intake.resume(context, known, { transfer, requestId, waitMs: attemptMs })
      : await Intake.settle(context, request, attemptMs)
    metrics.settled(request, outcome, (now() - startedAt) / 1000)
    if (outcome.kind === 'confirmed') ceilings.release(id)
    if (outcome.kind !== 'refused' && outcome.kind !== 'dead' && outcome.kind !== 'reverted') {
      return outcome
    }
    ceilings.release(id)
    const { reason } = outcome
    // Our own delay is not the payer's doing.
    if (reason !== Refusals.expiredReason(transfer))
      await ledger.authorizations.markFailed(id, now())
    context.log('charge-failed', { ...about({ id, requestId }), reason })
    // Nobody has the answer, so nothing is owed: this charge must not be settled later.
    if (delivered === undefined && (await ledger.authorizations.fail(id)))
      metrics.charged(transfer.network, 'failed')
    return outcome
  } catch (error) {
    context.log('settlement-fault', { ...about({ id, requestId }), error })
    const payment = await ledger.payments.findById(id)
    return payment ? { kind: 'pending', payment } : Refusals.unavailable(error)
  }
}

/**
 * Ends what no request is working on: what an earlier process forwarded is void, what is metered is
 * settled. `isStart`: also reports what no relayer can settle any more. Resolves when each was started.
 */
export async function resume(context: Intake.Intake, isStart: boolean): Promise<void> {
  const { ledger, ceilings, progress, chains, metrics, log } = context
  for (const authorization of await ledger.authorizations.open()) {
    const { id, state, transfer } = authorization
    if (state === 'authorized') {
      // Its buyer got no whole answer, and what the answer cost is not known.
      if (!ceilings.has(id) && (await ledger.authorizations.void(id, nothing, undefined))) {
        log('authorization-void', about({ id }))
      }
      continue
    }
    const chain = chains.get(transfer.network)
    if (!chain || progress.charging.has(id)) continue
    const isOurs = chain.relayers.some(({ address }) => address === transfer.upto?.facilitator)
    if (isStart && !isOurs) {
      const relayer = transfer.upto?.facilitator
      log('charge-without-relayer', { ...about({ id }), network: transfer.network, relayer })
    }
    if (await isOver(context, authorization)) {
      await ledger.authorizations.fail(id)
      ceilings.release(id)
      metrics.charged(transfer.network, 'lost')
      log('charge-lost', about({ id }))
    } else if (isOurs) void settleCharge(context, authorization, { waitMs: 0 })
  }
}

const nothing = { amountAtomic: 0n, units: {} }

/** Whether the chain shows that the authorization cannot be settled any more. Never rejects. */
async function isOver(context: Context, { id, transfer }: Authorization): Promise<boolean> {
  const seconds = BigInt(Math.floor(context.now() / 1000))
  if (transfer.validBefore >= seconds) return false
  try {
    const { timestamp } = await readMoney(chainOf(context, transfer.network), transfer)
    return timestamp > transfer.validBefore
  } catch (error) {
    context.log('settlement-undecided', { ...about({ id }), error })
    return false
  }
}
