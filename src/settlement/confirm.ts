import type { Payment } from '../../db/Payment'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/sqlite/write'
import { isIdentified } from '../chain/code'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import { type Blamed, findBlamed } from './blame'
import { drive } from './broadcast'
import type { Context } from './context'
import * as Gas from './gas'
import type { Ending, Reason, Underway } from './Outcome'
import { type Payer, payerOf } from './payers'
import { confirmations } from './reads'
import { occupy, synchronize } from './relayer'
import * as Reorg from './reorg'
import * as Resolve from './resolve'
import type { ChainState, Relayer, Slot } from './state'

/**
 * Drives a stored slot to its end, and tells of each of its payments what became of it. Call in the
 * same turn as the write that stored the slot.
 */
export function launch(context: Context, chain: ChainState, slot: Slot): Promise<Ending>[] {
  const { members } = slot
  const { ledger, payers, progress } = context
  occupy(slot)
  if (members.length > 0) context.metrics.batched(chain.network.id, members.length)
  const ways = members.map((member): Way => {
    const { transfer } = member.payment
    // As it was before it paid.
    const payer = payerOf(ledger.payments, transfer, slot.code)
    payers.promised.add(transfer)
    return { member, payer, leave: payers.failures.begin(payer) }
  })
  const work = conclude(context, chain, slot).finally(() => releaseLater(context, slot))
  const driving = work
    .catch((error: unknown) => context.log('settlement-fault', { nonce: slot.nonce, error }))
    .finally(() => progress.driving.delete(driving))
  progress.driving.add(driving)
  return ways.map((way) => endOf(context, chain, slot, { ...way, work }))
}

/** A member of a slot, its payer, and what ends its being under way. */
type Way = { member: Underway; payer: Payer; leave: () => void }

/** A simulation that began before may still know the balance from before: its promise counts. */
function releaseLater({ progress, payers }: Context, { members }: Slot): void {
  void Promise.allSettled(progress.simulating).then(() =>
    setImmediate(() => {
      for (const { payment } of members) payers.promised.release(payment.transfer)
    }),
  )
}

async function endOf(
  context: Context,
  chain: ChainState,
  slot: Slot,
  { member, payer, leave, work }: Way & { work: Promise<Conclusion> },
): Promise<Ending> {
  const { id, transfer } = member.payment
  const { failures } = context.payers
  const end = () => {
    leave()
    // Other payments of the payer may wait for this one.
    if (chain.queue.payments.length > 0) chain.room.emit()
  }
  const conclusion = await work.catch((error: unknown) => {
    end()
    throw error
  })
  const { paid, unpaid, isConsumed, blamed } = conclusion
  const confirmed = paid.get(id)
  const reason = unpaid.get(id)
  if (confirmed || reason === undefined) {
    if (confirmed) failures.recordPaid(payer)
    end()
    return confirmed ? { kind: 'confirmed', payment: confirmed } : Resolve.current(context, { id })
  }
  const outcome = await Resolve.decide(context, member, reason)
  if (blamed.has(id) && (outcome.kind === 'reverted' || outcome.kind === 'dead')) {
    failures.record(payerOf(context.ledger.payments, transfer, blamed.get(id) ?? 'unknown'))
    context.metrics.failed(chain.network.id)
  }
  // Release only after it is recorded, so that no further payment passes in between.
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
  let validBefore: bigint | undefined
  for (const { payment } of members) {
    const own = payment.transfer.validBefore
    if (validBefore === undefined || own > validBefore) validBefore = own
  }
  const { nonce } = row
  return { relayer, nonce, transactions: [row], members, validBefore, code: 'unknown', job }
}

/** What the slot paid, and what it did not pay with why. */
type Conclusion = {
  paid: ReadonlyMap<string, Payment>
  unpaid: ReadonlyMap<string, Reason>
  isConsumed: boolean
  /** The unpaid payments that cost gas by their payer's fault. */
  blamed: Blamed
}

const nothing: Conclusion = {
  paid: new Map(),
  unpaid: new Map(),
  isConsumed: false,
  blamed: new Map(),
}

/** Drives the slot and writes its end. */
async function conclude(context: Context, chain: ChainState, slot: Slot): Promise<Conclusion> {
  const { relayer, members, code } = slot
  for (;;) {
    const end = await drive(context, chain, slot)
    if (end.kind === 'stopped') return nothing
    // The relayer goes on while the end is confirmed and written.
    relayer.open--
    if (end.kind === 'consumed') {
      const conclusion = giveUp(context, chain, slot)
      await synchronize(chain, relayer)
      chain.room.emit()
      return conclusion
    }
    chain.room.emit()
    const receipt = await confirmations(context, chain, end.receipt)
    if (!receipt) {
      relayer.open++
      continue
    }
    Reorg.remember(chain, receipt)
    let recorded: Recorded
    try {
      recorded = await record(context, chain, slot, receipt)
    } finally {
      relayer.slots.delete(slot.nonce)
    }
    const { paid, unpaid, included } = recorded
    const payments = members.map(({ payment }) => payment)
    const failed = payments.filter(({ id }) => unpaid.has(id))
    const found = { included, receipt, members: payments, unpaid: failed, code }
    const blamed = failed.length === 0 ? nothing.blamed : await findBlamed(context, chain, found)
    return { paid, unpaid, isConsumed: false, blamed }
  }
}

function giveUp(context: Context, { network }: ChainState, slot: Slot): Conclusion {
  const { relayer, nonce, members, job } = slot
  const { payments, transactions, jobs, db } = context.ledger
  relayer.slots.delete(nonce)
  // The transaction that stayed out at the fee cap is out of the way.
  relayer.stuck = undefined
  const carriers = slot.transactions.map(({ hash }) => hash)
  const ids = members.map(({ payment }) => payment.id)
  write(db, () => {
    for (const hash of carriers) transactions.endTransaction(hash, 'replaced', null)
    for (const id of ids) payments.revert(id, carriers)
    if (job) jobs.end(job.id, replacedBy(slot), context.now())
  })
  context.log('nonce-used-by-others', { network: network.id, relayer: relayer.address, nonce })
  const reason: Reason = 'invalid_exact_evm_transaction_failed'
  return { ...nothing, unpaid: new Map(ids.map((id) => [id, reason])), isConsumed: true }
}

function replacedBy({ transactions }: Slot): Parameters<Context['ledger']['jobs']['end']>[1] {
  const transactionHash = transactions.at(-1)?.hash ?? '0x'
  return { state: 'replaced', transactionHash, blockNumber: null, receipt: null }
}

type Recorded = Pick<Conclusion, 'paid' | 'unpaid'> & { included: TransactionRow }

/** Assigns one Transfer log of the receipt to each payment, all in one write. */
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
  const ends = await commit(context, chain, slot, { receipt, included })
  for (const [index, { payment, deliverOnConfirm }] of members.entries()) {
    const confirmed = ends[index]
    if (confirmed) paid.set(payment.id, confirmed)
    else unpaid.set(payment.id, failed)
    if (confirmed?.delivery === 'delivering' && deliverOnConfirm?.isOpen) {
      deliverOnConfirm.isStarted = true
    }
  }
  if (receipt.success && unpaid.size === 0) {
    const transfers = members.map(({ payment }) => payment.transfer)
    Gas.learn(chain, transfers, receipt.gasUsed)
  }
  context.log('transaction-included', {
    network: chain.network.id,
    transaction: receipt.hash,
    success: receipt.success,
    paid: paid.size,
    unpaid: unpaid.size,
    job: slot.job?.id,
    requestIds: members.flatMap(({ requestId }) => requestId ?? []),
  })
  return { paid, unpaid, included }
}

type Inclusion = { receipt: Receipt.Receipt; included: TransactionRow }

/** The confirmed payments, in the order of the members. */
function commit(
  { ledger, now }: Context,
  { network }: ChainState,
  slot: Slot,
  { receipt, included }: Inclusion,
): Promise<(Payment | undefined)[]> {
  const { group, gas } = ledger
  const starts = slot.members.map(
    ({ deliverOnConfirm: start }) => start?.isOpen === true && start.isWanted(),
  )
  // What is lost with the power is read from the chain again, but not that a delivery was started.
  const add = starts.includes(true) ? group.add : group.addSoon
  return add(() => {
    endTransactions({ ledger, now }, slot, { receipt, included })
    const confirmed = pay({ ledger, now }, slot, { receipt, included, starts })
    if (isIdentified(slot.code) && included.kind !== 'cancel' && !confirmed[0]) {
      gas.addWasted(network.id, included.product, now(), receipt.spentWei)
    }
    return confirmed
  })
}

/** The end of everything at the nonce, and of the job that it is for. Call inside `write`. */
export function endTransactions(
  { ledger, now }: Pick<Context, 'ledger' | 'now'>,
  slot: Pick<Slot, 'transactions' | 'job'>,
  { receipt, included }: Inclusion,
): void {
  const { transactions, jobs, gas } = ledger
  const { job } = slot
  transactions.displaceOthers(included)
  transactions.endTransaction(
    included.hash,
    receipt.success ? 'mined' : 'failed',
    receipt.blockNumber,
  )
  for (const { hash } of slot.transactions) {
    if (hash !== included.hash) transactions.endTransaction(hash, 'replaced', null)
  }
  let wei = receipt.spentWei
  if (job) {
    if (receipt.success) wei += Gas.givenWei(job)
    jobs.end(
      job.id,
      {
        state: receipt.success ? 'confirmed' : 'failed',
        transactionHash: receipt.hash,
        blockNumber: receipt.blockNumber,
        receipt: Receipt.serialize(receipt),
      },
      now(),
    )
  }
  gas.addGas(included.network, included.product, now(), wei)
}

/** The confirmed payments; undefined for what the receipt does not pay, which is reverted. */
function pay(
  { ledger: { payments }, now }: Pick<Context, 'ledger' | 'now'>,
  { transactions, members }: Slot,
  { receipt, included, starts }: Inclusion & { starts: readonly boolean[] },
): (Payment | undefined)[] {
  const { hash: transaction, blockNumber } = receipt
  const carriers = transactions.map(({ hash }) => hash)
  const transfers = members.map(({ payment }) => payment.transfer)
  const taken = payments.takenLogs(included.network, transaction)
  const indexes = receipt.success ? Token.assignTransfers(receipt.logs, transfers, taken) : []
  return members.map(({ payment: { id }, deliverOnConfirm }, position) => {
    const logIndex = indexes[position]
    if (logIndex !== undefined) {
      const assignment = { transaction, logIndex, blockNumber }
      // The wait of the caller may have ended since it was asked.
      const isStarting = starts[position] && deliverOnConfirm?.isOpen
      const started = isStarting && payments.confirmAndBegin(id, assignment, now())
      const confirmed = started || payments.confirm(id, assignment, now())
      if (confirmed) return confirmed
    }
    payments.revert(id, carriers)
    return undefined
  })
}
