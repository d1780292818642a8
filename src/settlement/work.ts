import type { JobRow } from '../../db/jobs'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import * as Receipt from '../chain/receipt'
import * as Assign from './assign'
import { type Blamed, findBlamed } from './blame'
import { type ChainState, type Context, payerKey, type Relayer, type Slot } from './context'
import * as Decide from './decide'
import { drive } from './drive'
import { payerOf } from './failures'
import * as Gas from './gas'
import type { Outcome, Payment, Reason } from './Payment'
import * as Relayers from './relayer'
import * as Reorg from './reorg'

/**
 * Drives a stored slot to its end. Each payment in it is `running` until then, and resolves to what
 * became of it. Call in the same turn as the write that stored the slot.
 */
export function launch(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Outcome>[] {
  Relayers.occupy(relayer, slot)
  if (payments.length > 0) context.metrics.batched(chain.network.id, payments.length)
  // As they were before they paid.
  const payers = payments.map((payment) => payerOf(context, payment, slot.code))
  const ends = payments.map((payment, index) => {
    hold(context, payment)
    return payers[index] && context.failures.begin(payers[index])
  })
  const work = conclude(context, chain, relayer, slot, payments).finally(() => {
    // A simulation that began before may still know the balance from before: its promise counts.
    void Promise.allSettled(context.simulating).then(() =>
      setImmediate(() => {
        for (const payment of payments) release(context, payment)
      }),
    )
  })
  const driving = work
    .catch((error: unknown) => context.log('settlement-fault', { nonce: slot.nonce, error }))
    .finally(() => context.driving.delete(driving))
  context.driving.add(driving)
  const isBatch = slot.transactions[0]?.kind === 'batch'
  return payments.map((payment, index) =>
    Decide.run(context, payment, async () => {
      const end = () => {
        ends[index]?.()
        // Other payments of the payer may wait for this one.
        if (chain.queue.length > 0) context.pump(chain)
      }
      const conclusion = await work.catch((error: unknown) => {
        end()
        throw error
      })
      const { paid, unpaid, isConsumed, blamed } = conclusion
      const confirmed = paid.get(payment.id)
      const reason = unpaid.get(payment.id)
      if (confirmed || reason === undefined) {
        if (confirmed && payers[index]) context.failures.earn(payers[index])
        end()
        return confirmed
          ? { kind: 'confirmed', payment: confirmed }
          : Decide.current(context, payment)
      }
      const outcome = await Decide.decide(context, payment.id, reason)
      if (blamed.has(payment.id) && (outcome.kind === 'reverted' || outcome.kind === 'dead')) {
        context.failures.record(payerOf(context, payment, blamed.get(payment.id)))
        context.metrics.failed(chain.network.id)
      }
      // Release only after it is recorded, so that no further payment passes in between.
      end()
      if (outcome.kind !== 'reverted') return outcome
      // Another member, or another program with the relayer's key, may be to blame: once more, alone.
      return isConsumed || isBatch ? Decide.again(context, outcome.payment) : outcome
    }),
  )
}

/** Counts the money as on its way until `release`. */
function hold({ inFlight }: Context, { transfer }: Payment): void {
  const key = payerKey(transfer)
  inFlight.set(key, (inFlight.get(key) ?? 0n) + transfer.amountAtomic)
}

function release({ inFlight }: Context, { transfer }: Payment): void {
  const key = payerKey(transfer)
  const left = (inFlight.get(key) ?? 0n) - transfer.amountAtomic
  if (left > 0n) inFlight.set(key, left)
  else inFlight.delete(key)
}

/** A slot of one transaction. */
export function slotOf(row: TransactionRow, payments: readonly Payment[], job?: Slot['job']): Slot {
  let validBefore: bigint | undefined
  for (const { transfer } of payments) {
    if (validBefore === undefined || transfer.validBefore > validBefore) {
      validBefore = transfer.validBefore
    }
  }
  return {
    nonce: row.nonce,
    transactions: [row],
    paymentIds: payments.map(({ id }) => id),
    validBefore,
    job,
  }
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
async function conclude(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Conclusion> {
  for (;;) {
    const end = await drive(context, chain, relayer, slot)
    if (end.kind === 'stopped') return nothing
    // The relayer goes on while the end is confirmed and written.
    relayer.open--
    if (end.kind === 'consumed') {
      const conclusion = giveUp(context, chain, relayer, slot)
      await Relayers.synchronize(chain, relayer)
      context.pump(chain)
      return conclusion
    }
    context.pump(chain)
    const receipt = await Relayers.confirmations(context, chain, end.receipt)
    if (!receipt) {
      relayer.open++
      continue
    }
    Reorg.remember(chain, receipt)
    let recorded: Recorded
    try {
      recorded = await record(context, chain, slot, payments, receipt)
    } finally {
      relayer.slots.delete(slot.nonce)
    }
    const { paid, unpaid, included } = recorded
    const failed = payments.filter(({ id }) => unpaid.has(id))
    const found = { included, receipt, members: payments, unpaid: failed, code: slot.code }
    const blamed = failed.length === 0 ? nothing.blamed : await findBlamed(context, chain, found)
    return { paid, unpaid, isConsumed: false, blamed }
  }
}

function giveUp(context: Context, chain: ChainState, relayer: Relayer, slot: Slot): Conclusion {
  const { store } = context
  relayer.slots.delete(slot.nonce)
  // The transaction that stayed out at the fee cap is out of the way.
  relayer.stuck = undefined
  const carriers = slot.transactions.map(({ hash }) => hash)
  write(context.db, () => {
    for (const hash of carriers) store.endTransaction(hash, 'replaced', null)
    for (const id of slot.paymentIds) store.revert(id, carriers)
    if (slot.job) context.jobs.end(slot.job.id, replacedBy(slot), context.now())
  })
  context.log('nonce-used-by-others', {
    network: chain.network.id,
    relayer: relayer.address,
    nonce: slot.nonce,
  })
  const reason: Reason = 'invalid_exact_evm_transaction_failed'
  return {
    paid: new Map(),
    unpaid: new Map(slot.paymentIds.map((id) => [id, reason])),
    isConsumed: true,
    blamed: new Map(),
  }
}

function replacedBy({ transactions }: Slot): Parameters<Context['jobs']['end']>[1] {
  const transactionHash = transactions.at(-1)?.hash ?? '0x'
  return { state: 'replaced', transactionHash, blockNumber: null, receipt: null }
}

type Recorded = Pick<Conclusion, 'paid' | 'unpaid'> & { included: TransactionRow }

/** Assigns one Transfer log of the receipt to each payment, all in one write. */
async function record(
  context: Context,
  chain: ChainState,
  slot: Slot,
  payments: readonly Payment[],
  receipt: Receipt.Receipt,
): Promise<Recorded> {
  const included = slot.transactions.find(({ hash }) => hash === receipt.hash)
  if (!included) throw new Error(`${receipt.hash} is not of this slot`)
  const paid = new Map<string, Payment>()
  const unpaid = new Map<string, Reason>()
  const failed: Reason =
    receipt.success && included.kind !== 'cancel'
      ? 'invalid_exact_evm_transfer_event_mismatch'
      : 'invalid_exact_evm_transaction_failed'
  const { beginning, begun, group, store } = context
  // What is lost with the power is read from the chain again, but not that a delivery was begun.
  const add = payments.some(({ id }) => beginning.has(id)) ? group.add : group.addSoon
  const ends = await add(() => {
    endTransactions(context, chain, slot, included, receipt)
    const confirmed = pay(context, chain, slot, payments, receipt)
    if (typeof slot.code === 'object' && included.kind !== 'cancel' && !confirmed[0]) {
      store.addWasted(chain.network.id, included.product, context.now(), receipt.spentWei)
    }
    return confirmed
  })
  for (const [index, { id }] of payments.entries()) {
    const confirmed = ends[index]
    if (confirmed) paid.set(id, confirmed)
    else unpaid.set(id, failed)
    if (confirmed?.delivery === 'delivering' && beginning.has(id)) begun.add(id)
  }
  if (receipt.success && unpaid.size === 0) {
    Gas.learn(
      chain,
      payments.map(({ transfer }) => transfer),
      receipt.gasUsed,
    )
  }
  context.log('transaction-included', {
    network: chain.network.id,
    transaction: receipt.hash,
    success: receipt.success,
    paid: paid.size,
    unpaid: unpaid.size,
    job: slot.job?.id,
    requestIds: payments.flatMap(({ id }) => context.requestIds.get(id) ?? []),
  })
  return { paid, unpaid, included }
}

/** The end of everything at the nonce, and of the job that it is for. Call inside `write`. */
export function endTransactions(
  { store, jobs, now }: Context,
  { network }: ChainState,
  slot: Pick<Slot, 'transactions' | 'job'>,
  included: TransactionRow,
  receipt: Receipt.Receipt,
): void {
  const { job } = slot
  store.displaceOthers(included)
  store.endTransaction(included.hash, receipt.success ? 'mined' : 'failed', receipt.blockNumber)
  for (const { hash } of slot.transactions) {
    if (hash !== included.hash) store.endTransaction(hash, 'replaced', null)
  }
  let wei = receipt.spentWei
  if (job) {
    if (receipt.success) wei += givenWei(job)
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
  store.addGas(network.id, included.product, now(), wei)
}

/** Native money that is given away for others to pay gas with: it counts as gas. */
export function givenWei({ kind, valueWei }: Pick<JobRow, 'kind' | 'valueWei'>): bigint {
  return kind === 'grant' ? valueWei : 0n
}

/** The confirmed payments; undefined for what the receipt does not pay, which is reverted. */
function pay(
  { store, now, beginning }: Context,
  { network }: ChainState,
  slot: Slot,
  payments: readonly Payment[],
  receipt: Receipt.Receipt,
): (Payment | undefined)[] {
  const { hash: transaction, blockNumber } = receipt
  const taken = store.takenLogs(network.id, transaction)
  const carriers = slot.transactions.map(({ hash }) => hash)
  const transfers = payments.map(({ transfer }) => transfer)
  const indexes = receipt.success ? Assign.assign(receipt.logs, transfers, taken) : []
  return payments.map(({ id }, position) => {
    const logIndex = indexes[position]
    if (logIndex !== undefined) {
      const assignment = { transaction, logIndex, blockNumber }
      const begun = beginning.get(id)?.() && store.confirmAndBegin(id, assignment, now())
      const confirmed = begun || store.confirm(id, assignment, now())
      if (confirmed) return confirmed
    }
    store.revert(id, carriers)
    return undefined
  })
}
