import type { Hex } from 'viem'
import { storageCode } from '../../../db/fault'
import type { Assignment, Inclusion, Launch, Launched } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { JobRow, PaymentRow, TransactionRow } from '../../../db/schema'
import { fees } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import { isIdentified } from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as Crypto from '../../protocol/Crypto'
import { confirmations } from '../read/reads'
import { attributeFailure } from '../repair/attribution'
import * as Gas from '../state/gas-budget'
import type { Reservation } from '../state/payers'
import {
  type ChainState,
  type Conclusion,
  type Context,
  endReservation,
  type JobRefusal,
  type QueuedPayment,
  type Relayer,
  type Requested,
  type Sent,
  type Slot,
  storeInclusion,
  type Verdict,
  type WaitingJob,
  type Written,
} from '../state/state'
import { pause } from '../state/wait'
import { drive } from './broadcast'
import type { Job, JobCall } from './Job'
import type { Reason, Underway } from './Outcome'
import { cancellation, type Payload, pausedBy, signForNonce, synchronize } from './relayer'

/*
 * The transactions of a relayer. In its turn each one gets the next account nonce, is signed, occupies a slot
 * of that nonce, and is written before it is sent. Then it is driven to its end, and the end is recorded.
 */

/** Payments that are written together, and the relayer that sends them. */
type Batch = {
  relayer: Relayer
  members: readonly QueuedPayment[]
  /** Whether each has a transaction of its own. Otherwise they share one. */
  isApart: boolean
  /** The newest block at the start of their simulation. */
  knownBlock: bigint
  /** The transaction that was signed while the node simulated. */
  draft: TransactionRow | undefined
}

/**
 * Signs the transaction of a lone payment before its simulation ends; undefined where that saves
 * nothing. The draft is discarded if the simulation fails.
 */
export function signDraft(
  { now }: Context,
  chain: ChainState,
  relayer: Relayer,
  first: QueuedPayment,
): TransactionRow | undefined {
  const nonce = freeNonce(relayer)
  if (nonce === undefined || first.code === 'contract') return undefined
  // Where a simulation reads the code, it shows that nearly all payers have none.
  const simulatedCode = chain.abilities.readsCode ? ('eoa' as const) : ('unknown' as const)
  const payload = payloadOf(chain, [{ ...first, simulatedCode }])
  return signForNonce(chain, relayer, payload, { nonce, at: now() })
}

/**
 * Decides by one write, then sends, in one turn of the relayer. Members that were written before,
 * or whose rows are refused, get that verdict. Returns the members that were sent, and those that
 * cannot be sent now, which are not written.
 */
export function writeAndSend(
  context: Context,
  chain: ChainState,
  { relayer, ...batch }: Batch,
): Promise<Written> {
  return relayer.turn(async () => {
    let { members } = batch
    for (let [first] = members; first; [first] = members) {
      if (pausedBy(relayer) !== undefined || context.progress.signal.aborted) {
        return { sent: [], unsent: members }
      }
      const { simulatedCode: code, request } = first
      // Others may have used up the budget since it was accepted.
      const refusal = isIdentified(code) && Gas.refuseCode(context, chain, request.purpose)
      if (refusal) {
        first.done(refusal)
        members = members.slice(1)
        continue
      }
      const refused = await writeOnce(context, chain, { ...batch, relayer, members })
      if (refused === undefined) return { sent: members, unsent: [] }
      // The others of the batch stay.
      const left: QueuedPayment[] = []
      for (const member of members) {
        const verdict = verdictOn(refused, member.request.id)
        if (verdict === undefined) left.push(member)
        else {
          member.isDecided = true
          member.done(verdict)
        }
      }
      if (left.length === members.length)
        throw new Error('a launch was refused for no member of it')
      members = left
    }
    return { sent: [], unsent: [] }
  })
}

type Refused = Exclude<Launched, { kind: 'stored' }>

/**
 * Writes the members with their transactions in one commit, and sends these. Undefined when they are
 * sent. All or none are written, so that no account nonce between them stays free.
 */
async function writeOnce(
  context: Context,
  chain: ChainState,
  batch: Batch,
): Promise<Refused | undefined> {
  const parts = batch.isApart ? batch.members.map((each) => [each]) : [batch.members]
  const slots: Slot[] = []
  const write = async () => {
    const inputs = parts.map((members) => {
      const part = { ...batch, members }
      const transaction = signBatch(context, chain, part)
      const code = members[0]?.simulatedCode ?? 'unknown'
      const isCharge = members[0]?.transfer.upto !== undefined
      slots.push(occupy(batch.relayer, [transaction], { code, isCharge }))
      return launchOf(context, part, transaction)
    })
    return context.ledger.settling.launch(...inputs)
  }
  const launched = await unlessRefused(slots, write, ({ kind }) => kind === 'stored')
  if (launched.kind !== 'stored') return launched
  const payments = new Map(launched.payments.map((payment) => [payment.id, payment]))
  for (const [index, slot] of slots.entries()) {
    const members = parts[index] ?? []
    slot.members = members.map(({ request, deliverOnConfirm }): Underway => {
      const payment = payments.get(request.id)
      if (!payment) throw new Error('a member was not written')
      return { payment, requestId: request.requestId, deliverOnConfirm }
    })
    follow(context, chain, slot, members)
  }
  return undefined
}

function launchOf(
  { now }: Context,
  { members, knownBlock }: Batch,
  transaction: TransactionRow,
): Launch {
  const at = now()
  return {
    transaction,
    fresh: members
      .filter(({ payment }) => payment === undefined)
      .map((member) => ({
        row: rowOf({ ...member.request, transfer: member.transfer }, transaction.hash, {
          knownBlock,
          at,
        }),
        rows: member.request.rows,
        fundsAtomic: member.fundsAtomic,
      })),
    again: members.flatMap(({ payment }) => payment ?? []),
  }
}

/** Sends the transaction, and reports to each member that it is sent. */
function follow(
  context: Context,
  chain: ChainState,
  slot: Slot,
  queued: readonly QueuedPayment[],
): void {
  const reservations = queued.flatMap(({ reservation }) => reservation ?? [])
  for (const each of queued) each.reservation = undefined
  for (const [index, sent] of launch(context, chain, slot, reservations).entries()) {
    const ceiling = context.ceilings.get(sent.member.payment.id)
    // The payment reserves the charge from now on.
    if (ceiling) endReservation(context, ceiling)
    queued[index]?.done({ kind: 'sent', ...sent })
  }
}

function signBatch({ now }: Context, chain: ChainState, batch: Batch): TransactionRow {
  const { relayer, members, draft } = batch
  const nonce = freeNonce(relayer)
  if (nonce === undefined) throw new Error('the relayer has no nonce')
  const payload = payloadOf(chain, members)
  const current = fees(chain.head, chain.network.feeCapWei)
  // A draft is used while it is what would be signed now; its fees allow for the block's change.
  const isCurrent =
    draft?.nonce === nonce &&
    draft.gasLimit === payload.gasLimit &&
    draft.maxTipWei === current.maxTipWei &&
    draft.maxFeeWei >= current.maxFeeWei - current.maxFeeWei / 8n
  if (isCurrent) return draft
  // The fees that the payer's code was simulated with, or the present ones.
  return signForNonce(chain, relayer, payload, { nonce, at: now(), bid: members[0]?.fees })
}

function verdictOn(refused: Refused, id: string): Verdict | undefined {
  if (refused.kind === 'refused')
    return refused.ids.includes(id) ? { kind: 'rows-refused', reason: refused.reason } : undefined
  // UNIQUE on the money decides: what was written before is not sent a second time.
  const payment = refused.payments.get(id)
  return payment && { kind: 'known', payment }
}

function payloadOf(chain: ChainState, members: readonly QueuedPayment[]): Payload {
  const [first] = members
  if (!first) throw new Error('nothing to send')
  const { product } = first.request.purpose
  if (members.length === 1) {
    const { code, simulatedCode, transfer, call } = first
    // Unless the payer is known to be an EOA, allow the gas of a contract signature.
    const isEoa = (simulatedCode === 'unknown' ? code : simulatedCode) === 'eoa'
    const gasLimit = Gas.limitAlone(transfer, !isEoa)
    return { kind: 'payment', product, ...call, valueWei: 0n, gasLimit }
  }
  const gas = members.reduce((sum, { transfer }) => sum + Gas.limitOfMember(chain, transfer), 0n)
  return {
    kind: 'batch',
    product,
    ...Multicall.aggregate(members.map(({ call }) => call)),
    valueWei: 0n,
    gasLimit: Gas.limitOfBatch(gas),
  }
}

/** Decides about a job by one write, then sends it. Call in a turn of the relayer. */
export async function writeAndSendJob(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  { job, rider }: WaitingJob,
): Promise<JobRefusal | undefined> {
  const { ledger, now } = context
  const { id, kind, product, network, valueWei, gasLimit } = job
  const nonce = freeNonce(relayer)
  if (nonce === undefined) throw new Error('the relayer has no nonce')
  const { to, data, isCreation = false } = sentBy(job, relayer, nonce)
  const written = kind === 'allowance' ? 'approve' : kind
  const payload = { kind: written, product, to, data, isCreation, valueWei, gasLimit } as const
  const transaction = signForNonce(chain, relayer, payload, { nonce, at: now() })
  const row: JobRow = {
    id,
    kind,
    product,
    network,
    relayer: relayer.address,
    nonce,
    to,
    valueWei,
    state: 'broadcast',
    transactionHash: transaction.hash,
    blockNumber: null,
    receipt: null,
    createdAt: now(),
    endedAt: null,
  }
  const code = job.runsCode ? 'contract' : 'unknown'
  const slot = occupy(relayer, [transaction], { job: row, code })
  const write = () => ledger.settling.launchJob({ transaction, job: row, rider })
  const deciding = unlessRefused([slot], write, (refusal) => refusal === undefined)
  const reason = await deciding.catch(async (error: unknown) => {
    // Another process may have written the same id since the read: then wait for that one.
    if (await ledger.jobs.find(id).catch(() => undefined)) return 'written' as const
    throw error
  })
  if (reason === 'written') return undefined
  if (reason !== undefined) return { kind: 'refused', reason }
  context.log('job-sent', { job: id, network, transaction: transaction.hash })
  launch(context, chain, slot)
  return undefined
}

function sentBy(job: Job, { address, privateKey }: Relayer, nonce: number): JobCall {
  if (!('compose' in job)) return job
  const sign = (digest: Uint8Array) => Crypto.sign(digest, privateKey)
  return job.compose({ address, nonce, sign })
}

/** The nonce of the next transaction; undefined until the chain was read. */
function freeNonce(relayer: Relayer): number | undefined {
  while (relayer.next !== undefined && relayer.slots.has(relayer.next)) relayer.next++
  return relayer.next
}

/**
 * Adds a slot to its relayer, before it is written, so that budgets count it. In a turn of the relayer;
 * Write it by `unlessRefused`, which leaves no gap when the write fails.
 */
function occupy(
  relayer: Relayer,
  transactions: TransactionRow[],
  {
    members = [],
    code = 'unknown',
    job,
    isCharge = members[0]?.payment.transfer.upto !== undefined,
  }: Partial<Pick<Slot, 'members' | 'code' | 'job' | 'isCharge'>>,
): Slot {
  const [first] = transactions
  if (!first) throw new Error('a slot without a transaction')
  const { nonce } = first
  const slot: Slot = { relayer, nonce, transactions, members, code, job, isCharge }
  relayer.slots.set(nonce, slot)
  countOpen(slot, 1)
  relayer.next = Math.max(relayer.next ?? 0, nonce + 1)
  return slot
}

/** The result of a write. The slots are vacated in the same turn when nothing was written. */
async function unlessRefused<T>(
  slots: readonly Slot[],
  write: () => Promise<T>,
  isWritten: (result: T) => boolean,
): Promise<T> {
  let isStored = false
  try {
    const result = await write()
    isStored = isWritten(result)
    return result
  } finally {
    // The last first, so that the account continues at the lowest nonce.
    if (!isStored) for (const slot of slots.toReversed()) vacate(slot)
  }
}

function vacate(slot: Slot): void {
  const { relayer, nonce } = slot
  relayer.slots.delete(nonce)
  countOpen(slot, -1)
  if (relayer.next === nonce + 1) relayer.next = nonce
}

/** Counts a slot among those that wait for a block, or no longer. */
function countOpen({ relayer, transactions: [first], isCharge }: Slot, by: 1 | -1): void {
  relayer.open += by
  if (isCharge) relayer.charges += by
  if (first?.product === 'facilitator') relayer.facilitating += by
}

/**
 * Drives transactions that were written before, to their end: those of one account nonce,
 * oldest first. Undefined when they are being driven.
 */
export function resumeSlot(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  { transactions, ...content }: Pick<Slot, 'transactions'> & Partial<Pick<Slot, 'members' | 'job'>>,
): Sent[] | undefined {
  const [first] = transactions
  if (first && relayer.slots.has(first.nonce)) return undefined
  return launch(context, chain, occupy(relayer, transactions, content))
}

/** Uses an account nonce up. Call in a turn of the relayer. */
export async function cancelNonce(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  nonce: number,
): Promise<void> {
  const signed = { nonce, at: context.now() }
  const transaction = signForNonce(chain, relayer, cancellation(relayer), signed)
  const slot = occupy(relayer, [transaction], {})
  const write = () => context.ledger.settling.launch({ transaction, fresh: [], again: [] })
  await unlessRefused([slot], write, () => true)
  launch(context, chain, slot)
}

/** Records a transaction of an account that is not ours. Each of its payments reads its own result. */
export async function recordUnowned(
  context: Context,
  content: Pick<Slot, 'transactions' | 'job'>,
  included: TransactionRow,
  receipt: Receipt.Receipt,
): Promise<void> {
  const inclusion = inclusionOf(context, content, { receipt, included })
  await context.ledger.settling.record(inclusion, [])
}

/**
 * Drives a slot that is written and occupied to its end. Its payments get `reservations`, in their order;
 * these are made here when absent.
 */
function launch(
  context: Context,
  chain: ChainState,
  slot: Slot,
  reservations: readonly Reservation[] = [],
): Sent[] {
  const { members } = slot
  const { payers, progress } = context
  if (members.length > 0) context.metrics.batched(chain.network.id, members.length)
  const reserved = members.map((member, index) => {
    const { transfer } = member.payment
    const payer = { address: transfer.payer, code: 'unknown' as const, isNew: false }
    return { member, ...(reservations[index] ?? payers.reserve(transfer, payer)) }
  })
  const conclusion = conclude(context, chain, slot).finally(() => releaseLater(context, slot))
  const driving = conclusion
    .catch((error: unknown) => context.log('settlement-fault', { nonce: slot.nonce, error }))
    .finally(() => progress.driving.delete(driving))
  progress.driving.add(driving)
  return reserved.map((each) => ({ ...each, conclusion }))
}

/** Releases after the running reads, which may show the balance from before the payment. */
function releaseLater({ progress, payers }: Context, { members }: Slot): void {
  void Promise.allSettled(progress.reading).then(() => {
    for (const { payment } of members) payers.reserved.release(payment.transfer)
  })
}

const nothing: Conclusion = {
  paid: new Map(),
  unpaid: new Map(),
  isAgain: false,
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
      chain.room()
      return conclusion
    }
    chain.room()
    const receipt =
      chain.network.confirmations > 1
        ? await confirmations(context, chain, end.receipt)
        : end.receipt
    if (!receipt) {
      countOpen(slot, 1)
      continue
    }
    storeInclusion(chain, receipt)
    const recording = record(context, chain, slot, receipt)
    const recorded = await recording.finally(() => relayer.slots.delete(slot.nonce))
    const { paid, unpaid, included } = recorded
    const payments = members.map(({ payment }) => payment)
    const failed = payments.filter(({ id }) => unpaid.has(id))
    const found = { included, receipt, members: payments, unpaid: failed, code }
    const attributed =
      failed.length === 0 ? nothing.attributed : await attributeFailure(context, chain, found)
    return { paid, unpaid, isAgain: slot.transactions[0]?.kind === 'batch', attributed }
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
  return { ...nothing, unpaid: new Map(ids.map((id) => [id, reason])), isAgain: true }
}

/** Pause between two attempts to record an end, ms. */
const recordAgainMs = 250

/** Assigns one Transfer log of the receipt to each payment, all in one commit. */
async function record(
  context: Context,
  chain: ChainState,
  slot: Slot,
  receipt: Receipt.Receipt,
): Promise<Pick<Conclusion, 'paid' | 'unpaid'> & { included: TransactionRow }> {
  const { members } = slot
  const included = slot.transactions.find(({ hash }) => hash === receipt.hash)
  if (!included) throw new Error(`${receipt.hash} is not of this slot`)
  const paid = new Map<string, Payment>()
  const unpaid = new Map<string, Reason>()
  const failed: Reason =
    receipt.success && included.kind !== 'cancel'
      ? 'invalid_exact_evm_transfer_event_mismatch'
      : 'invalid_exact_evm_transaction_failed'
  const ends = await commitSurely(context, slot, included, receipt)
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
function inclusionOf(
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

/**
 * The confirmed payments, in the order of the members. After a failover the database may lack the slot. It
 * is then restored from memory, so it stays there until its end is written. A file has what was written, so
 * with SQLite the next sweep reads it.
 */
async function commitSurely(
  context: Context,
  slot: Slot,
  included: TransactionRow,
  receipt: Receipt.Receipt,
): Promise<readonly (Payment | undefined)[]> {
  const { signal } = context.progress
  for (;;) {
    try {
      const inclusion = inclusionOf(context, slot, { receipt, included })
      return await commit(context, slot, inclusion, receipt)
    } catch (error) {
      const isGone = context.ledger.lanes.isShared && storageCode(error) !== undefined
      if (!isGone || signal.aborted) throw error
      await pause(recordAgainMs, signal)
    }
  }
}

async function commit(
  { ledger }: Pick<Context, 'ledger'>,
  { members, code, job }: Slot,
  inclusion: Inclusion,
  { logs }: Receipt.Receipt,
): Promise<readonly (Payment | undefined)[]> {
  const transfers = members.map(({ payment }) => payment.transfer)
  const found = inclusion.success ? Receipt.findTransfers(logs, transfers) : []
  const payments = members.map(({ payment, deliverOnConfirm: start }, index) => ({
    id: payment.id,
    logs: found[index] ?? [],
    startsDelivery: start?.isOpen === true && start.isWanted(),
    payment,
  }))
  const isDone = inclusion.included.kind === 'cancel' || (job !== undefined && inclusion.success)
  const isCostly = Multicall.isContract(code) && !isDone
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

/** The row of a payment that an external transaction has settled. */
export function externalRow(
  request: Requested,
  { transaction, logIndex, blockNumber }: Assignment,
  knownBlock: bigint,
  at: number,
): PaymentRow {
  const row = rowOf(request, transaction, { knownBlock, at })
  return { ...row, state: 'confirmed', logIndex, blockNumber, confirmedAt: at }
}

/** The row of a payment that is sent with a transaction. */
export function rowOf(
  { id, transfer, purpose, receivedAt }: Requested,
  transactionHash: Hex,
  { knownBlock, at }: { knownBlock: bigint; at: number },
): PaymentRow {
  return {
    id,
    ...transfer,
    ...purpose,
    idempotencyKey: purpose.idempotencyKey ?? null,
    challengeId: purpose.challengeId ?? null,
    credentialHash: purpose.credentialHash ?? null,
    client: purpose.client ?? null,
    receivedAt,
    knownBlock,
    state: 'broadcast',
    transactionHash,
    logIndex: null,
    blockNumber: null,
    delivery: 'none',
    attempts: 0,
    upstreamStatus: null,
    truncated: false,
    answered: false,
    redeemTokenHash: null,
    redeemUntil: null,
    nonceUsed: false,
    permit2612Value: transfer.permit2612?.valueAtomic ?? null,
    permit2612Deadline: transfer.permit2612?.deadline ?? null,
    permit2612Signature: transfer.permit2612?.signature ?? null,
    ceilingAtomic: transfer.upto?.ceilingAtomic ?? null,
    facilitator: transfer.upto?.facilitator ?? null,
    createdAt: at,
    confirmedAt: null,
    deliveredAt: null,
  }
}
