import type { ErrandRow } from '../../db/errands'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import * as Receipt from '../chain/receipt'
import * as Assign from './assign'
import { type Blamed, findBlamed } from './blame'
import { type Context, type Lane as LaneState, payerKey, type Rail, type Slot } from './context'
import * as Decide from './decide'
import { drive } from './drive'
import { payerOf } from './failures'
import * as Gas from './gas'
import * as Lane from './lane'
import type { Outcome, Payment, Reason } from './Payment'
import * as Reorg from './reorg'

/**
 * Drives a stored slot to its end. Each payment in it is `running` until then, and resolves to what
 * became of it. Call in the same turn as the write that stored the slot.
 */
export function launch(
  context: Context,
  rail: Rail,
  lane: LaneState,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Outcome>[] {
  Lane.occupy(lane, slot)
  if (payments.length > 0) context.metrics.batched(rail.network.id, payments.length)
  // As they were before they paid.
  const payers = payments.map((payment) => payerOf(context, payment, slot.code))
  const ends = payments.map((payment, index) => {
    hold(context, payment)
    return payers[index] && context.failures.begin(payers[index])
  })
  const work = conclude(context, rail, lane, slot, payments).finally(() => {
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
        // Others of the payer may wait for this one.
        if (rail.queue.length > 0) context.pump(rail)
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
        context.metrics.failed(rail.network.id)
      }
      // Not before it is recorded: no further payment passes in between.
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
export function slotOf(
  row: TransactionRow,
  payments: readonly Payment[],
  errand?: Slot['errand'],
): Slot {
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
    errand,
  }
}

/** What the slot paid, and what it did not pay with why. */
type Conclusion = {
  paid: ReadonlyMap<string, Payment>
  unpaid: ReadonlyMap<string, Reason>
  isConsumed: boolean
  /** Those of the unpaid that cost gas by their payer's fault. */
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
  rail: Rail,
  lane: LaneState,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Conclusion> {
  for (;;) {
    const end = await drive(context, rail, lane, slot)
    if (end.kind === 'stopped') return nothing
    // The lane goes on while the end is confirmed and written.
    lane.open--
    if (end.kind === 'consumed') {
      const conclusion = giveUp(context, rail, lane, slot)
      await Lane.synchronize(rail, lane)
      context.pump(rail)
      return conclusion
    }
    context.pump(rail)
    const receipt = await Lane.confirmations(context, rail, end.receipt)
    if (!receipt) {
      lane.open++
      continue
    }
    Reorg.remember(rail, receipt)
    let recorded: Recorded
    try {
      recorded = await record(context, rail, slot, payments, receipt)
    } finally {
      lane.slots.delete(slot.nonce)
    }
    const { paid, unpaid, included } = recorded
    const failed = payments.filter(({ id }) => unpaid.has(id))
    const found = { included, receipt, members: payments, unpaid: failed, code: slot.code }
    const blamed = failed.length === 0 ? nothing.blamed : await findBlamed(context, rail, found)
    return { paid, unpaid, isConsumed: false, blamed }
  }
}

function giveUp(context: Context, rail: Rail, lane: LaneState, slot: Slot): Conclusion {
  const { store } = context
  lane.slots.delete(slot.nonce)
  // The transaction that stayed out at the fee cap is out of the way.
  lane.stuck = undefined
  const carriers = slot.transactions.map(({ hash }) => hash)
  write(context.db, () => {
    for (const hash of carriers) store.endTransaction(hash, 'replaced', null)
    for (const id of slot.paymentIds) store.revert(id, carriers)
    if (slot.errand) context.errands.end(slot.errand.id, replacedBy(slot), context.now())
  })
  context.log('nonce-used-by-others', {
    network: rail.network.id,
    relayer: lane.address,
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

function replacedBy({ transactions }: Slot): Parameters<Context['errands']['end']>[1] {
  const transactionHash = transactions.at(-1)?.hash ?? '0x'
  return { state: 'replaced', transactionHash, blockNumber: null, receipt: null }
}

type Recorded = Pick<Conclusion, 'paid' | 'unpaid'> & { included: TransactionRow }

/** Assigns one Transfer log of the receipt to each payment, all in one write. */
async function record(
  context: Context,
  rail: Rail,
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
    endTransactions(context, rail, slot, included, receipt)
    const confirmed = pay(context, rail, slot, payments, receipt)
    if (typeof slot.code === 'object' && included.kind !== 'cancel' && !confirmed[0]) {
      store.addWasted(rail.network.id, included.product, context.now(), receipt.spentWei)
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
      rail,
      payments.map(({ transfer }) => transfer),
      receipt.gasUsed,
    )
  }
  context.log('transaction-included', {
    network: rail.network.id,
    transaction: receipt.hash,
    success: receipt.success,
    paid: paid.size,
    unpaid: unpaid.size,
    errand: slot.errand?.id,
    requestIds: payments.flatMap(({ id }) => context.requestIds.get(id) ?? []),
  })
  return { paid, unpaid, included }
}

/** The end of everything at the nonce, and of the errand that it is for. Call inside `write`. */
export function endTransactions(
  { store, errands, now }: Context,
  { network }: Rail,
  slot: Pick<Slot, 'transactions' | 'errand'>,
  included: TransactionRow,
  receipt: Receipt.Receipt,
): void {
  const { errand } = slot
  store.displaceOthers(included)
  store.endTransaction(included.hash, receipt.success ? 'mined' : 'failed', receipt.blockNumber)
  for (const { hash } of slot.transactions) {
    if (hash !== included.hash) store.endTransaction(hash, 'replaced', null)
  }
  let wei = receipt.spentWei
  if (errand) {
    if (receipt.success) wei += givenWei(errand)
    errands.end(
      errand.id,
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
export function givenWei({ kind, valueWei }: Pick<ErrandRow, 'kind' | 'valueWei'>): bigint {
  return kind === 'grant' ? valueWei : 0n
}

/** The confirmed payments; undefined for what the receipt does not pay, which is reverted. */
function pay(
  { store, now, beginning }: Context,
  { network }: Rail,
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
