import { storageCode } from '../../../db/fault'
import type { Inclusion } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { TransactionRow } from '../../../db/schema'
import { isIdentified } from '../../chain/code'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import { confirmations } from '../read/reads'
import { type Attributed, attributeFailure } from '../repair/attribution'
import * as Reorg from '../repair/reorg'
import type { Context } from '../state/context'
import * as Gas from '../state/gas-budget'
import { payerOf, type Reservation, reserve } from '../state/payers'
import type { ChainState, Relayer, Slot } from '../state/state'
import { pause } from '../state/wait'
import { drive } from './broadcast'
import type { Ending, Reason, Underway } from './Outcome'
import { countOpen, synchronize } from './relayer'
import * as Resolve from './resolve'

/**
 * Drives a slot that is written and occupied to its end, and reports the result of each payment.
 * `reservations`: those of the members, in their order; made here when absent.
 */
export function launch(
  context: Context,
  chain: ChainState,
  slot: Slot,
  reservations: readonly Reservation[] = [],
): Promise<Ending>[] {
  const { members } = slot
  const { payers, progress } = context
  if (members.length > 0) context.metrics.batched(chain.network.id, members.length)
  const slotMembers = members.map((member, index): SlotMember => {
    const { transfer } = member.payment
    const payer = { address: transfer.payer, code: 'unknown' as const, isNew: false }
    return { member, ...(reservations[index] ?? reserve(payers, transfer, payer)) }
  })
  const work = conclude(context, chain, slot).finally(() => releaseLater(context, slot))
  const driving = work
    .catch((error: unknown) => context.log('settlement-fault', { nonce: slot.nonce, error }))
    .finally(() => progress.driving.delete(driving))
  progress.driving.add(driving)
  return slotMembers.map((way) => endOf(context, chain, slot, { ...way, work }))
}

/** A member of a slot with its reservation. */
type SlotMember = { member: Underway } & Reservation

/** Releases after the running reads, which may show the balance from before the payment. */
function releaseLater({ progress, payers }: Context, { members }: Slot): void {
  void Promise.allSettled(progress.reading).then(() => {
    for (const { payment } of members) payers.reserved.release(payment.transfer)
  })
}

async function endOf(
  context: Context,
  chain: ChainState,
  slot: Slot,
  { member, payer, leave, work }: SlotMember & { work: Promise<Conclusion> },
): Promise<Ending> {
  const { id, transfer } = member.payment
  const { failures } = context.payers
  const end = () => {
    leave()
    // Other payments of the payer may wait for this one.
    if (chain.queue.payments.length + chain.queue.named.length > 0) chain.room.emit()
  }
  const conclusion = await work.catch((error: unknown) => {
    end()
    throw error
  })
  const { paid, unpaid, isConsumed, attributed } = conclusion
  const confirmed = paid.get(id)
  const reason = unpaid.get(id)
  if (confirmed || reason === undefined) {
    if (confirmed) {
      failures.recordPaid(payer)
      context.metrics.paid(confirmed)
    }
    end()
    return confirmed ? { kind: 'confirmed', payment: confirmed } : Resolve.current(context, { id })
  }
  const outcome = await Resolve.decide(context, member, reason)
  if (outcome.kind === 'confirmed') context.metrics.paid(outcome.payment)
  if (attributed.has(id) && (outcome.kind === 'reverted' || outcome.kind === 'dead')) {
    const code = attributed.get(id) ?? 'unknown'
    failures.record(await payerOf(context.ledger.payments, transfer, code))
    context.metrics.failed(chain.network.id)
  }
  // Release only after the failure is recorded, so that no further payment passes in between.
  end()
  if (outcome.kind !== 'reverted') return outcome
  const isBatch = slot.transactions[0]?.kind === 'batch'
  if (!isConsumed && !isBatch) return outcome
  return { kind: 'resend', member: { ...member, payment: outcome.payment } }
}

/** A slot of one transaction. */
export function slotOf(
  relayer: Relayer,
  row: TransactionRow,
  members: readonly Underway[],
  job?: Slot['job'],
): Slot {
  const validBefore = lastOf(members)
  const { nonce } = row
  return { relayer, nonce, transactions: [row], members, validBefore, code: 'unknown', job }
}

/** Unix seconds after which none of the payments can succeed; undefined without such a limit. */
export function lastOf(members: readonly Underway[]): bigint | undefined {
  let last: bigint | undefined
  for (const { payment } of members) {
    const { validBefore } = payment.transfer
    if (last === undefined || validBefore > last) last = validBefore
  }
  return last
}

/** What the slot paid, and why it did not pay the rest. */
type Conclusion = {
  paid: ReadonlyMap<string, Payment>
  unpaid: ReadonlyMap<string, Reason>
  isConsumed: boolean
  /** The unpaid payments whose payer caused the failure, which cost gas. */
  attributed: Attributed
}

const nothing: Conclusion = {
  paid: new Map(),
  unpaid: new Map(),
  isConsumed: false,
  attributed: new Map(),
}

/** Drives the slot and records its end. */
async function conclude(context: Context, chain: ChainState, slot: Slot): Promise<Conclusion> {
  const { relayer, members, code } = slot
  for (;;) {
    const end = await drive(context, chain, slot)
    if (end.kind === 'stopped') return nothing
    // The relayer continues while the end is confirmed and written.
    countOpen(slot, -1)
    if (end.kind === 'consumed') {
      const conclusion = await giveUp(context, chain, slot)
      await synchronize(chain, relayer)
      chain.room.emit()
      return conclusion
    }
    chain.room.emit()
    const receipt = await confirmations(context, chain, end.receipt)
    if (!receipt) {
      countOpen(slot, 1)
      continue
    }
    Reorg.storeInclusion(chain, receipt)
    let recorded: Recorded
    try {
      recorded = await recordSurely(context, chain, slot, receipt)
    } finally {
      relayer.slots.delete(slot.nonce)
    }
    const { paid, unpaid, included } = recorded
    const payments = members.map(({ payment }) => payment)
    const failed = payments.filter(({ id }) => unpaid.has(id))
    const found = { included, receipt, members: payments, unpaid: failed, code }
    const attributed =
      failed.length === 0 ? nothing.attributed : await attributeFailure(context, chain, found)
    return { paid, unpaid, isConsumed: false, attributed }
  }
}

async function giveUp(
  { ledger, now, log }: Context,
  { network }: ChainState,
  slot: Slot,
): Promise<Conclusion> {
  const { relayer, nonce, members, job } = slot
  // The transaction that stayed out at the fee cap no longer blocks the relayer.
  relayer.stuck = undefined
  const hashes = slot.transactions.map(({ hash }) => hash)
  const ids = members.map(({ payment }) => payment.id)
  try {
    await ledger.settling.giveUp({ hashes, payments: ids, job: job?.id, at: now() })
  } finally {
    relayer.slots.delete(nonce)
  }
  log('nonce-used-by-others', { network: network.id, relayer: relayer.address, nonce })
  const reason: Reason = 'invalid_exact_evm_transaction_failed'
  return { ...nothing, unpaid: new Map(ids.map((id) => [id, reason])), isConsumed: true }
}

type Recorded = Pick<Conclusion, 'paid' | 'unpaid'> & { included: TransactionRow }

/** Pause between two attempts to record an end, ms. */
const recordAgainMs = 250

/**
 * After a failover the database may lack the slot. It is then restored from memory, so it stays there
 * until its end is written. A file has what was written, so with SQLite the next sweep reads it.
 */
async function recordSurely(
  context: Context,
  chain: ChainState,
  slot: Slot,
  receipt: Receipt.Receipt,
): Promise<Recorded> {
  const { ledger, progress } = context
  for (;;) {
    try {
      return await record(context, chain, slot, receipt)
    } catch (error) {
      const isGone = ledger.lanes.isShared && storageCode(error) !== undefined
      if (!isGone || progress.signal.aborted) throw error
      await pause(recordAgainMs, progress.signal)
    }
  }
}

/** Assigns one Transfer log of the receipt to each payment, all in one commit. */
async function record(
  context: Context,
  chain: ChainState,
  slot: Slot,
  receipt: Receipt.Receipt,
): Promise<Recorded> {
  const { members } = slot
  const included = slot.transactions.find(({ hash }) => hash === receipt.hash)
  if (!included) throw new Error(`${receipt.hash} is not of this slot`)
  const paid = new Map<string, Payment>()
  const unpaid = new Map<string, Reason>()
  const failed: Reason =
    receipt.success && included.kind !== 'cancel'
      ? 'invalid_exact_evm_transfer_event_mismatch'
      : 'invalid_exact_evm_transaction_failed'
  const ends = await commit(
    context,
    slot,
    inclusionOf(context, slot, { receipt, included }),
    receipt,
  )
  for (const [index, { payment }] of members.entries()) {
    const confirmed = ends[index]
    if (confirmed) paid.set(payment.id, confirmed)
    else unpaid.set(payment.id, failed)
  }
  if (receipt.success && unpaid.size === 0) {
    const transfers = members.map(({ payment }) => payment.transfer)
    Gas.learn(chain, transfers, receipt.gasUsed)
  }
  const line = {
    network: chain.network.id,
    transaction: receipt.hash,
    success: receipt.success,
    paid: paid.size,
    unpaid: unpaid.size,
    job: slot.job?.id,
    requestIds: members.flatMap(({ requestId }) => requestId ?? []),
  }
  const isStep = receipt.success && unpaid.size === 0 && paid.size > 0
  context.log('transaction-included', line, () => (isStep ? '' : undefined))
  return { paid, unpaid, included }
}

/** The part of a receipt that the ledger stores. */
export function inclusionOf(
  { now }: Pick<Context, 'now'>,
  { transactions, job }: Pick<Slot, 'transactions' | 'job'>,
  { receipt, included }: { receipt: Receipt.Receipt; included: TransactionRow },
): Inclusion {
  const { blockNumber, success, spentWei } = receipt
  return {
    included,
    blockNumber,
    success,
    spentWei: job && success ? spentWei + Gas.givenWei(job) : spentWei,
    receipt: job ? Receipt.serialize(receipt) : '',
    hashes: transactions.map(({ hash }) => hash),
    job: job?.id,
    at: now(),
  }
}

/** The confirmed payments, in the order of the members. */
async function commit(
  { ledger }: Pick<Context, 'ledger'>,
  { members, code }: Slot,
  inclusion: Inclusion,
  { logs }: Receipt.Receipt,
): Promise<readonly (Payment | undefined)[]> {
  const transfers = members.map(({ payment }) => payment.transfer)
  const found = inclusion.success ? Token.findTransfers(logs, transfers) : []
  const payments = members.map(({ payment, deliverOnConfirm: start }, index) => ({
    id: payment.id,
    logs: found[index] ?? [],
    startsDelivery: start?.isOpen === true && start.isWanted(),
    payment,
  }))
  const isCostly = isIdentified(code) && inclusion.included.kind !== 'cancel'
  const recording = ledger.settling.record(inclusion, payments, { isCostly })
  for (const [index, { deliverOnConfirm }] of members.entries()) {
    if (!deliverOnConfirm || !payments[index]?.startsDelivery) continue
    deliverOnConfirm.commit = recording.then(
      (ends) => {
        deliverOnConfirm.isStarted = ends[index]?.delivery === 'delivering'
      },
      () => undefined,
    )
  }
  return recording
}
