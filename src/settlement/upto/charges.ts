import type { Authorization, Charge, Delivered } from '../../../db/Authorization'
import type { Payment } from '../../../db/Payment'
import { lagBlocks } from '../../chain/head'
import * as Crypto from '../../protocol/Crypto'
import { digest, type Transfer } from '../../protocol/Transfer'
import { readMoney } from '../read/reads'
import * as Refusals from '../read/refusals'
import { isRefusedByToken, mayPass } from '../repair/attribution'
import * as Payments from '../send/lifecycle'
import type { Outcome, Reason } from '../send/Outcome'
import { canGive, pausedBy } from '../send/relayer'
import * as Resolve from '../send/resolve'
import { isOthers, keeps, waitForOther } from '../state/ownership'
import {
  about,
  type ChainState,
  type Context,
  chainOf,
  type PaymentRequest,
  type Requested,
} from '../state/state'
import { untilWritten, within } from '../state/wait'
import { releaseCeiling } from './ceilings'

export type ChargeOptions = Pick<PaymentRequest, 'requestId' | 'onSent' | 'deliverOnConfirm'> & {
  /** Milliseconds. Bounds the wait only: settlement continues. */
  waitMs: number
}

/** What came of a forwarded request. */
export type Forwarded = {
  /** What the buyer has before the charge is settled. */
  delivered?: Delivered | undefined
  /** Nothing is charged although the upstream may have worked. */
  isLost?: boolean
  /** The address of the client. */
  client?: string | undefined
  /** Of a channel: whether the delivery starts with the charge. */
  begins?: boolean
}

/** Writes what an answer costs; see `Authorizations`. */
export async function writeCharge(
  context: Context,
  authorization: Authorization,
  charge: Charge,
  { delivered, isLost = false, client }: Forwarded,
): Promise<Authorization> {
  const { ledger, credit, metrics, now } = context
  const { id, transfer } = authorization
  const { amountAtomic } = charge
  if (amountAtomic < 0n || amountAtomic > transfer.amountAtomic) {
    throw new Error(`the charge of ${id} is not within its ceiling`)
  }
  const { authorizations } = ledger
  const state = amountAtomic === 0n ? 'void' : 'metered'
  const lostAt = state === 'void' && isLost ? now() : undefined
  const write = () =>
    state === 'void'
      ? authorizations.void(id, charge, delivered, lostAt)
      : authorizations.meter(id, charge, delivered)
  // The answer, or its end, is kept back until the charge is on the disk.
  if (!(await untilWritten(context, write))) throw new Error(`${id} was charged before`)
  metrics.charged(transfer.network, state)
  if (state === 'metered') credit.countCharged(transfer.payer, client)
  if (lostAt !== undefined) {
    credit.countUnpaid(transfer.payer, client)
    lose(context, authorization, transfer.amountAtomic)
  }
  if (state === 'void') releaseCeiling(context, id)
  return { ...authorization, state, charge, delivered, failedAt: lostAt }
}

/** Counts what a merchant worked for and is not paid. Call it before the ceiling is released. */
function lose(
  { credit }: Context,
  { id, transfer, purpose }: Pick<Authorization, 'id' | 'transfer' | 'purpose'>,
  atomic: bigint,
): void {
  // A facilitator works for nobody.
  if (purpose.product === 'facilitator') return
  credit.lose(id, { merchant: purpose.merchant, payer: transfer.payer }, atomic)
}

/**
 * Settles a metered charge by a payment of the same id, or waits for the settlement that is running. A
 * charge whose answer the buyer does not have is given up when it cannot be settled.
 */
export async function settleCharge(
  context: Context,
  authorization: Authorization,
  { waitMs, ...options }: ChargeOptions,
): Promise<Outcome> {
  const { id, transfer, charge } = authorization
  if (charge === undefined) throw new Error(`${id} has no charge`)
  const { charging } = context.progress
  if (isRelayerOfAnother(context, transfer)) return awaitCharge(context, authorization, waitMs)
  const work =
    charging.get(id) ??
    drive(context, authorization, { ...transfer, amountAtomic: charge.amountAtomic }, options)
  if (!charging.has(id)) {
    charging.set(id, work)
    void work.finally(() => charging.delete(id))
  }
  const until = context.now() + waitMs
  const outcome = await within(work, waitMs)
  // Its relayer was given to another process while it waited to be sent.
  if (outcome?.kind === 'unavailable' && isRelayerOfAnother(context, transfer))
    return awaitCharge(context, authorization, Math.max(0, until - context.now()))
  if (outcome !== undefined) return outcome
  const payment = await context.ledger.payments.findById(id)
  if (payment?.state === 'confirmed') return Resolve.current(context, payment)
  return payment ? { kind: 'pending', payment } : Refusals.busy
}

/** Whether the relayer that a payer named belongs to another process, or to none of a shared ledger. */
export function isRelayerOfAnother(context: Context, { network, upto }: Transfer): boolean {
  return upto !== undefined && isOthers(context, network, upto.facilitator)
}

/** Waits for a charge whose relayer another process has: that process settles it. */
async function awaitCharge(
  context: Context,
  { id, transfer }: Authorization,
  waitMs: number,
): Promise<Outcome> {
  const { ledger } = context
  const isOver = ({ state }: Payment) => state !== 'broadcast'
  const isGivenUp = async () => (await ledger.authorizations.findById(id))?.state === 'failed'
  const payment = await waitForOther(context, id, { isOver, isGivenUp, waitMs })
  if (payment?.state === 'broadcast') return { kind: 'pending', payment }
  if (payment?.state === 'confirmed') releaseCeiling(context, id)
  if (await isGivenUp()) return Refusals.refuseUsed(transfer)
  return payment ? Resolve.current(context, payment) : Refusals.busy
}

/** Settles one charge to its end. Never rejects. */
async function drive(
  context: Context,
  authorization: Authorization,
  transfer: Transfer,
  { requestId, onSent, deliverOnConfirm }: Omit<ChargeOptions, 'waitMs'>,
): Promise<Outcome> {
  const { id, purpose, receivedAt, knownBlock, delivered } = authorization
  const { ledger, ceilings, metrics, now } = context
  const { chargeAttemptMs: attemptMs } = context.policy
  const chain = chainOf(context, transfer.network)
  const startedAt = now()
  try {
    const known = await ledger.payments.findById(id)
    const verified = ceilings.get(id)?.verified
    const { signature, payer } = transfer
    const isKeySigned = () =>
      Crypto.recover(digest(transfer, chain.network.asset), signature) === payer
    const request: Requested = {
      id,
      requestId,
      transfer,
      purpose,
      receivedAt,
      // Of a payer without code the chain accepts only the signature of its key.
      isKeySigned: verified !== undefined || isKeySigned,
      verified,
      rows: { settles: 'authorization' },
      onSent,
      deliverOnConfirm,
    }
    const settle = () => Payments.settle(context, request, attemptMs)
    let outcome = known
      ? await Payments.resumePayment(context, known, { transfer, requestId }, attemptMs)
      : await settle()
    // A node that is behind may have refused it. While nodes disagree, it is settled later.
    if (isDoubtful(outcome, authorization) && (await mayPass(context, chain, transfer))) {
      outcome = await settle()
      if (isDoubtful(outcome, authorization)) outcome = Refusals.busy
    }
    metrics.settled(request, outcome, (now() - startedAt) / 1000)
    if (outcome.kind === 'confirmed') {
      releaseCeiling(context, id)
      context.credit.recover(id)
    }
    if (outcome.kind !== 'refused' && outcome.kind !== 'dead' && outcome.kind !== 'reverted') {
      return outcome
    }
    // Another process verified it at a block that no node of this one has: it is settled later. A block
    // that is further ahead was the lie of a node.
    const { head } = chain
    const isBehind = head.number < knownBlock && knownBlock <= head.number + lagBlocks
    if (outcome.kind === 'refused' && isBehind) return Refusals.busy
    const { reason } = outcome
    if (await isByPayer(chain, authorization, reason))
      await ledger.authorizations.markFailed(id, now())
    // Released after the failure is written, so that it gives no room to another ceiling.
    lose(context, authorization, transfer.amountAtomic)
    releaseCeiling(context, id)
    context.log('charge-failed', { ...about({ id, requestId }), reason })
    // No buyer has the answer, so nothing is owed: this charge must not be settled later.
    if (delivered === undefined && (await ledger.authorizations.fail(id)))
      metrics.charged(transfer.network, 'failed')
    return outcome
  } catch (error) {
    context.log('settlement-fault', { ...about({ id, requestId }), error })
    const payment = await ledger.payments.findById(id).catch(() => undefined)
    return payment ? { kind: 'pending', payment } : Refusals.unavailable(error)
  }
}

/** Whether a charge failed by the doing of its payer. Our own delay is not. */
async function isByPayer(
  chain: ChainState,
  { transfer, purpose }: Authorization,
  reason: Reason,
): Promise<boolean> {
  // A facilitator gave no credit that the payer broke.
  if (purpose.product === 'facilitator' || reason === Refusals.expiredReason(transfer)) return false
  return reason === Refusals.usedReason(transfer) || !(await isRefusedByToken(chain, transfer))
}

/** Whether a simulation has refused a charge of ours for the first time, while its time lasts. */
function isDoubtful(outcome: Outcome, { transfer, purpose, failedAt }: Authorization): boolean {
  if (outcome.kind !== 'refused' || purpose.product === 'facilitator') return false
  return failedAt === undefined && outcome.reason !== Refusals.expiredReason(transfer)
}

/**
 * Ends the ceilings of charges that are decided after their attempt: of those the payment reports the
 * end, and with one process no sweep looks at them again. Settles what other processes meter for our
 * relayers, as soon as that is known.
 */
export function followPayments(context: Context): void {
  const { ledger, events, ceilings, progress } = context
  events.payments.on(async (id) => {
    if (progress.charging.has(id)) return
    if (ceilings.has(id)) return end(context, id)
    // A payment that settles here is not a charge that another process has metered.
    if (!ledger.lanes.isShared || progress.running.has(id)) return
    const charged = await ledger.authorizations.findById(id)
    if (charged?.state !== 'metered' || charged.failedAt !== undefined) return
    if (!isRelayerOfAnother(context, charged.transfer)) await settleInTurn(context, [charged])
  })
}

/** Ends the ceiling of a charge whose payment is decided. */
async function end(context: Context, id: string): Promise<void> {
  const { ledger, now } = context
  const payment = await ledger.payments.findById(id)
  if (payment === undefined || payment.state === 'broadcast') return
  if (payment.state !== 'confirmed') lose(context, payment, payment.transfer.amountAtomic)
  releaseCeiling(context, id)
  const { state, nonceUsed, transfer } = payment
  if (state === 'confirmed' || (state === 'expired' && !nonceUsed)) return
  if (nonceUsed || !(await isRefusedByToken(chainOf(context, transfer.network), transfer)))
    await ledger.authorizations.markFailed(id, now())
}

/**
 * Ends the ceilings of charges that other processes settle or give up. A charge that fails has no
 * payment that reports it, and a notification may be lost.
 */
async function endOthers(context: Context): Promise<void> {
  const { ledger, ceilings, progress } = context
  if (!ledger.lanes.isShared) return
  for (const id of [...ceilings.keys()]) {
    if (progress.charging.has(id)) continue
    const authorization = await ledger.authorizations.findById(id)
    // Undefined: it is being written.
    if (authorization === undefined || !isRelayerOfAnother(context, authorization.transfer))
      continue
    const { state } = authorization
    if (state === 'void' || state === 'failed') releaseCeiling(context, id)
    else if (state === 'sent') await end(context, id)
  }
}

/**
 * Ends what no request is working on: what an earlier process forwarded is void, what is metered is
 * settled. `isStart`: also reports what no relayer can settle now. Resolves with all that were open,
 * when each was started.
 */
export async function resumeCharges(
  context: Context,
  isStart: boolean,
): Promise<readonly Authorization[]> {
  const { ledger, ceilings, progress, chains, metrics, log } = context
  const isOver = createOver(context)
  await endOthers(context)
  await context.credit.refresh()
  /** Charges that have failed, the oldest last. */
  const failing: Authorization[] = []
  const open = await ledger.authorizations.open()
  for (const authorization of open) {
    const { id, state, transfer, failedAt } = authorization
    if (state === 'authorized') {
      // Its buyer got no whole answer, and what the answer cost is not known.
      if (!ceilings.has(id) && (await ledger.authorizations.void(id, nothing, undefined))) {
        log('authorization-void', about({ id }))
      }
      continue
    }
    const chain = chains.get(transfer.network)
    if (!chain || progress.charging.has(id)) continue
    const own = chain.relayers.find(({ address }) => address === transfer.upto?.facilitator)
    // Its holder settles it.
    if (own && !own.isHeld) continue
    const isOurs = own !== undefined
    if (!isOurs && !keeps(context, chain)) continue
    if (isStart && !isOurs) {
      const relayer = transfer.upto?.facilitator
      log('charge-without-relayer', { ...about({ id }), network: transfer.network, relayer })
    }
    if (await isOver(authorization)) {
      await ledger.authorizations.fail(id)
      lose(context, authorization, authorization.charge?.amountAtomic ?? transfer.amountAtomic)
      releaseCeiling(context, id)
      metrics.charged(transfer.network, 'lost')
      log('charge-lost', about({ id }))
    } else if (isOurs && failedAt !== undefined) failing.push(authorization)
    else if (isOurs) void settleInTurn(context, [authorization])
  }
  const payerOf = ({ transfer: { network, asset, payer } }: Authorization) =>
    `${network} ${asset} ${payer}`
  for (const charges of Map.groupBy(failing.toReversed(), payerOf).values())
    void settleInTurn(context, charges)
  return open
}

/**
 * Settles charges of a payer until one fails again: a payer without money must not cost calls to a node
 * for each of its charges. Never rejects: when the database cannot be read, the next look at open charges
 * starts it again.
 */
async function settleInTurn(context: Context, charges: readonly Authorization[]): Promise<void> {
  const { policy, log } = context
  for (const charge of charges) {
    try {
      const { kind } = await settleCharge(context, charge, { waitMs: policy.chargeAttemptMs })
      if (kind === 'refused' || kind === 'dead' || kind === 'reverted') return
    } catch (error) {
      return log('settlement-fault', { ...about(charge), error })
    }
  }
}

const nothing = { amountAtomic: 0n, units: {} }

/**
 * Whether the chain shows that an authorization can no longer be settled; one read of each network is
 * enough for all. Never rejects.
 */
function createOver(context: Context): (authorization: Authorization) => Promise<boolean> {
  const times = new Map<string, Promise<bigint>>()
  const timeOf = async ({ id, transfer }: Authorization) => {
    try {
      return (await readMoney(chainOf(context, transfer.network), transfer)).timestamp
    } catch (error) {
      context.log('settlement-undecided', { ...about({ id }), error })
      return 0n
    }
  }
  return async (authorization) => {
    const { network, validBefore } = authorization.transfer
    if (validBefore >= BigInt(Math.floor(context.now() / 1000))) return false
    const time = times.get(network) ?? timeOf(authorization)
    times.set(network, time)
    return (await time) > validBefore
  }
}

/** A charge that waits for longer is logged, and again after the same time, ms. */
const overdueMs = 30_000

/**
 * Logs charges that wait to be sent, and the reason. Call it with the open authorizations at each look.
 */
export function createOverdue(context: Context): (open: readonly Authorization[]) => void {
  /** When each was seen first, or logged. */
  let since = new Map<string, number>()
  return (open) => {
    const at = context.monotonic()
    const waiting = open.flatMap(({ id, state, failedAt, transfer }) => {
      const { network, upto } = transfer
      const reason = state === 'metered' && failedAt === undefined && reasonOf(context, transfer)
      return reason ? [{ payment: id, network, relayer: upto?.facilitator, reason }] : []
    })
    since = new Map(waiting.map(({ payment }) => [payment, since.get(payment) ?? at]))
    for (const each of waiting) {
      if (at - (since.get(each.payment) ?? at) < overdueMs) continue
      since.set(each.payment, at)
      context.log('charge-waiting', each)
    }
  }
}

/** What a charge waits for, as far as this process knows; undefined for those of another process. */
function reasonOf(
  context: Context,
  { network, upto }: Authorization['transfer'],
): string | undefined {
  const chain = context.chains.get(network)
  if (!chain || !upto) return undefined
  const { relayers, health } = chain
  const lane = { network, relayer: upto.facilitator }
  const relayer = relayers.find(({ address }) => address === upto.facilitator)
  if (relayer === undefined || !relayer.isHeld) {
    if (!keeps(context, chain) || context.ledger.lanes.isOfAnother(lane)) return undefined
    return isOthers(context, network, upto.facilitator)
      ? 'no process has its account'
      : 'its account is not configured'
  }
  const paused = health.reason ?? pausedBy(relayer)
  if (paused !== undefined) return paused
  if (relayer.isLeaving && canGive(relayers)) return 'its account is given to another process'
  return relayer.open > 0 ? `${relayer.open} transactions of its account are open` : 'the database'
}
