import type { Address } from 'viem'
import { findEoas, isIdentified } from '../../chain/code'
import type { Simulation } from '../read/examine'
import * as Refusals from '../read/refusals'
import { simulate } from '../read/simulate'
import type { Context } from '../state/context'
import * as Gas from '../state/gas-budget'
import {
  beginRead,
  createReservedAmounts,
  type Payer,
  payerKey,
  payerOf,
  releaseReservation,
  reserve,
} from '../state/payers'
import { countShare } from '../state/share'
import {
  type ChainState,
  chainNow,
  isForged,
  type QueuedPayment,
  type Relayer,
} from '../state/state'
import { pausedBy } from './relayer'
import { prepare, writeAndSend } from './transaction'

/**
 * Simulates payments together and sends those that pass in one transaction: directly when it is
 * one, else inside Multicall3. Calls `done` for every payment except those that it returns: these
 * could not be sent now, and nothing was written for them. The relayer is marked as preparing
 * meanwhile. Never rejects.
 */
export async function dispatch(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  queued: readonly QueuedPayment[],
): Promise<readonly QueuedPayment[]> {
  const knownBlock = chain.head.number
  const batch = dropForged(context, queued)
  if (batch.length === 0) return []
  const leave = countShare(relayer, batch)
  const endRead = beginRead(context.progress)
  try {
    const simulation = simulate(chain, relayer.address, batch, chainNow(context, chain))
    // Sign while the node simulates, which takes longer.
    const draft = isLone(queued) ? prepare(context, chain, relayer, batch) : undefined
    const [simulations, eoas] = await Promise.all([simulation, findEoasAgain(chain, batch)])
    if (pausedBy(relayer) !== undefined || context.progress.signal.aborted) return batch
    const accepted = await accept(context, chain, batch, { simulations, eoas })
    endRead()
    const [members, contracts] = separate(chain, accepted, eoas)
    const { sent, unsent } = await writeAndSend(context, chain, {
      relayer,
      members,
      knownBlock,
      draft,
    })
    for (const each of sent) noteSigner(context, each, sent.length === 1)
    return [...contracts, ...unsent]
  } catch (error) {
    context.log('settlement-fault', {
      network: chain.network.id,
      requestIds: batch.flatMap(({ request }) => request.requestId ?? []),
      error,
    })
    for (const { done } of batch) done(Refusals.unavailable(error))
    return []
  } finally {
    endRead()
    leave()
    for (const { transfer, reservation } of batch) {
      if (reservation) releaseReservation(context.payers, transfer, reservation)
    }
    for (const each of batch) each.reservation = undefined
  }
}

/** Whether a draft saves time: payments that name the relayer are prepared at the same time. */
function isLone([first, second]: readonly QueuedPayment[]): boolean {
  return second === undefined && first?.transfer.upto === undefined
}

/** Read the code again: a payer can delegate to code at any time (EIP-7702). */
async function findEoasAgain({ client }: ChainState, batch: readonly QueuedPayment[]) {
  if (batch.length < 2) return undefined
  return findEoas(client, [...new Set(batch.map(({ transfer }) => transfer.payer))])
}

/** Returns the payments whose signer is known, or need not be known before the node call. */
function dropForged(
  { payers: { signers } }: Context,
  queued: readonly QueuedPayment[],
): readonly QueuedPayment[] {
  const isOne = queued.length === 1
  return queued.filter((each) => {
    const { transfer, isAlone, signer } = each
    if (signer.kind === 'checked') return true
    // A payment may also be sent alone because its payer has code, which does not identify the
    // signer.
    if (!isAlone && signers.mayDefer(payerKey(transfer), isOne)) return true
    if (isForged(signer)) {
      each.done({ kind: 'unsigned' })
      return false
    }
    each.signer = { kind: 'checked' }
    return true
  })
}

/** Removes payers with code from the shared transaction. They are sent alone at their next turn. */
function separate(
  { known }: ChainState,
  accepted: readonly QueuedPayment[],
  eoas: ReadonlySet<Address> | undefined,
): [members: readonly QueuedPayment[], contracts: readonly QueuedPayment[]] {
  if (!eoas) return [accepted, []]
  const members: QueuedPayment[] = []
  const contracts: QueuedPayment[] = []
  for (const each of accepted) {
    if (eoas.has(each.transfer.payer)) {
      members.push(each)
      continue
    }
    known.eoas.delete(each.transfer.payer)
    each.isAlone = true
    each.isUrgent = true
    contracts.push(each)
  }
  return [members, contracts]
}

/**
 * Adds the signer to the cache. Recovering it delays nothing here, because the bytes are already
 * sent. `isOne`: it shared no transaction, so no read separated payers with code.
 */
function noteSigner(
  { payers: { signers } }: Context,
  { transfer, code, signer }: QueuedPayment,
  isOne: boolean,
): void {
  const isKey = signer.kind === 'checked' ? code !== 'contract' : !isOne || signer.isKey()
  if (isKey) signers.add(payerKey(transfer))
  else signers.remove(payerKey(transfer))
}

/**
 * Returns the payments that pass, each with its reservation, and reports the reason to the others.
 * `eoas`: payers without code, where several were simulated together.
 */
async function accept(
  context: Context,
  chain: ChainState,
  batch: readonly QueuedPayment[],
  { simulations, eoas }: Seen,
): Promise<QueuedPayment[]> {
  const accepted: QueuedPayment[] = []
  /** The simulation has already subtracted these from the balances of later members. */
  const own = createReservedAmounts()
  for (const [index, queued] of batch.entries()) {
    const { transfer, signer } = queued
    // The time window may have ended while the payment waited.
    const late = Refusals.checkWindow(transfer, context.now())
    const simulation = late ?? simulations[index] ?? Refusals.unavailable(undefined)
    if (simulation.kind !== 'passes') {
      // The result of a forged signature must not affect payments that the payer did sign.
      const isUnsigned = simulation.kind !== 'unavailable' && isForged(signer)
      queued.done(isUnsigned ? { kind: 'unsigned' } : simulation)
      continue
    }
    // A payer with code passed although its key did not sign. Do not settle it as a key's payment.
    if (eoas && !eoas.has(transfer.payer) && isForged(signer)) {
      queued.done({ kind: 'unsigned' })
      continue
    }
    note(queued, simulation, eoas)
    const payer = await payerOf(context.ledger.payments, transfer, queued.simulatedCode)
    // Do not await between the checks and the reservation, so that one balance is not reserved
    // twice.
    const balance = simulation.balanceAtomic + own.of(transfer)
    const refusal = refuse(context, chain, queued, { payer, balance })
    if (refusal) {
      queued.done(refusal)
      continue
    }
    queued.fundsAtomic = isCharge(queued) ? undefined : balance
    queued.reservation = reserve(context.payers, transfer, payer)
    own.add(transfer)
    accepted.push(queued)
  }
  return accepted
}

type Seen = {
  simulations: readonly Simulation[]
  eoas: ReadonlySet<Address> | undefined
}

/** Stores the results of the simulation for the transaction. */
function note(
  queued: QueuedPayment,
  { code, fees }: Extract<Simulation, { kind: 'passes' }>,
  eoas: ReadonlySet<Address> | undefined,
): void {
  const isEoa = code === 'unknown' && eoas?.has(queued.transfer.payer)
  queued.simulatedCode = isEoa ? 'eoa' : code
  queued.fees = fees
  if (queued.simulatedCode === 'eoa') queued.code = 'eoa'
  else if (queued.simulatedCode !== 'unknown') queued.code = 'contract'
}

function refuse(
  context: Context,
  chain: ChainState,
  queued: QueuedPayment,
  { payer, balance }: { payer: Payer; balance: bigint },
): Refusals.PaymentRefusal | undefined {
  const { request, transfer } = queued
  const { reserved, failures } = context.payers
  const ceiling = isCharge(queued) ? 0n : context.ceilings.reservedOf(transfer)
  if (reserved.of(transfer) + ceiling + transfer.amountAtomic > balance) return Refusals.underWay
  const waitSeconds = failures.waitSeconds(payer)
  if (waitSeconds > 0) return Refusals.lockedOut(waitSeconds)
  return isIdentified(payer.code) ? Gas.refuseCode(context, chain, request.purpose) : undefined
}

/**
 * A charge of ours was reserved before: what is used goes before what is only authorized. What a
 * facilitator settles was not, and would let a payer drain its wallet at our gas.
 */
function isCharge({ request, transfer }: QueuedPayment): boolean {
  return transfer.upto !== undefined && request.purpose.product === 'gateway'
}
