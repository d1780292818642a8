import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import type { Receipt } from '../chain/receipt'
import * as Token from '../chain/token'
import * as Transfer from '../protocol/Transfer'
import { type Context, pause, payerKey, type Rail, railOf, type Slot } from './context'
import * as Elsewhere from './elsewhere'
import * as Lane from './lane'
import type { Outcome, Payment, Reason } from './Payment'
import * as Reorg from './reorg'
import * as Verify from './verify'

/** How far behind a node may have been when it passed the simulation. */
const lagBlocks = 300n

/**
 * Drives a stored slot to its end. Each payment in it is `running` until then, and resolves to what
 * became of it. Call in the same turn as the write that stored the slot.
 */
export function launch(
  context: Context,
  rail: Rail,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Outcome>[] {
  Lane.occupy(rail.lane, slot)
  const work = conclude(context, rail, slot, payments)
  work.catch((error: unknown) => context.log('settlement-fault', { nonce: slot.nonce, error }))
  return payments.map((payment) => {
    const release = hold(context, payment)
    return run(context, payment, async () => {
      const { unpaid, isConsumed } = await work.finally(release)
      const reason = unpaid.get(payment.id)
      if (reason === undefined) return current(context, payment)
      const outcome = await decide(context, payment.id, reason)
      // The relayer's account is used elsewhere too: our bytes are void, the money is not.
      return isConsumed && outcome.kind === 'reverted' ? again(context, outcome.payment) : outcome
    })
  })
}

/** Counts the money as on its way until the result is called. */
function hold({ inFlight }: Context, { transfer }: Payment): () => void {
  const key = payerKey(transfer)
  inFlight.set(key, (inFlight.get(key) ?? 0n) + transfer.amountAtomic)
  return () => {
    const left = (inFlight.get(key) ?? 0n) - transfer.amountAtomic
    if (left > 0n) inFlight.set(key, left)
    else inFlight.delete(key)
  }
}

/** Registers work on a payment, whose faults leave it to the next sweep. */
export function run(
  context: Context,
  payment: Payment,
  work: () => Promise<Outcome>,
): Promise<Outcome> {
  const outcome = work()
    .catch((error: unknown): Outcome => {
      context.log('settlement-fault', { payment: payment.id, error })
      return { kind: 'pending', payment: context.store.findById(payment.id) ?? payment }
    })
    .finally(() => {
      if (context.running.get(payment.id) === outcome) context.running.delete(payment.id)
    })
  context.running.set(payment.id, outcome)
  return outcome
}

/**
 * What is to be said of a payment whose transaction did not pay. Asks the chain: somebody else may
 * have settled it, it may be over, or it may still pay.
 */
export async function decide(context: Context, id: string, reason: Reason): Promise<Outcome> {
  const { store, now } = context
  const payment = store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  if (payment.state === 'confirmed' || payment.state === 'expired') {
    return current(context, payment)
  }
  const rail = railOf(context, payment.transfer.network)
  try {
    const own = await findOwn(context, rail, payment)
    if (own) {
      write(context.db, () => store.confirm(id, own, now()))
      return current(context, payment)
    }
    const money = await Verify.readMoney(rail, payment.transfer)
    const found = money.used ? await findElsewhere(context, rail, payment) : undefined
    if (found) {
      write(context.db, () => store.confirm(id, found, now()))
      context.log('payment-settled-elsewhere', { payment: id, transaction: found.transaction })
      return current(context, payment)
    }
    const isOver = money.timestamp > payment.transfer.validBefore
    // While a transaction of ours may still be included, a used nonce may well be its own work.
    if (payment.state === 'broadcast' && (money.used || !isOver))
      return { kind: 'pending', payment }
    if (!money.used && !isOver) return { kind: 'reverted', payment, reason }
    write(context.db, () => store.expire(id))
    const verdict = money.used ? Verify.usedReason : Verify.expiredReason
    context.log('payment-expired', { payment: id, reason: verdict(payment.transfer) })
    return dead(store.findById(id), verdict(payment.transfer))
  } catch (error) {
    // Not known is not lost: the same credential may ask again.
    context.log('settlement-undecided', { payment: id, error })
    const state = store.findById(id) ?? payment
    return state.state === 'reverted'
      ? { kind: 'reverted', payment: state, reason }
      : { kind: 'pending', payment: state }
  }
}

/**
 * Simulates and sends a reverted payment again, in a new transaction. Only when the simulation says
 * that it would pay.
 */
export async function again(context: Context, payment: Payment): Promise<Outcome> {
  const { store, now } = context
  const rail = railOf(context, payment.transfer.network)
  const signed = await Verify.checkSignature(rail, payment.transfer, now())
  const simulation = signed.kind === 'signed' ? await Verify.simulate(rail, signed) : signed
  if (simulation.kind === 'unavailable') return simulation
  if (simulation.kind === 'used') {
    return decide(context, payment.id, Verify.usedReason(payment.transfer))
  }
  if (simulation.kind === 'refused') return decide(context, payment.id, simulation.reason)
  if (signed.kind !== 'signed') return signed
  const nonce = Lane.freeNonce(rail.lane)
  if (nonce === undefined || context.signal.aborted) return Verify.unavailable(undefined)
  const row = Lane.sign(context, rail, payloadOf(signed, payment), nonce)
  const stored = write(context.db, () => {
    store.insertTransaction(row, [payment.id])
    return store.rebroadcast(payment.id, row.hash)
  })
  const sent = store.findById(payment.id)
  if (!stored || !sent) throw new Error(`payment ${payment.id} is not to be sent again`)
  const [outcome] = launch(context, rail, slotOf(row, [sent]), [sent])
  if (!outcome) throw new Error('a slot without a payment')
  return outcome
}

/**
 * Ends a payment when one block proves that it did not pay and is over, whatever its transaction is
 * doing. Never rejects.
 */
export async function endIfOver(context: Context, rail: Rail, payment: Payment): Promise<void> {
  try {
    const money = await Verify.readMoney(rail, payment.transfer)
    if (money.used || money.timestamp <= payment.transfer.validBefore) return
    write(context.db, () => context.store.expire(payment.id))
  } catch (error) {
    context.log('settlement-undecided', { payment: payment.id, error })
  }
}

/** The settling call of a payment. */
export function payloadOf(
  { transfer, hasCode }: Verify.Signed,
  { purpose }: Pick<Payment, 'purpose'>,
): Lane.Payload {
  return {
    kind: 'payment',
    product: purpose.product,
    ...Transfer.call(transfer),
    valueWei: 0n,
    gasLimit: Verify.gasLimit(transfer, hasCode),
  }
}

/** A slot of one transaction. */
export function slotOf(row: TransactionRow, payments: readonly Payment[]): Slot {
  const ends = payments.map(({ transfer }) => transfer.validBefore)
  return {
    nonce: row.nonce,
    transactions: [row],
    paymentIds: payments.map(({ id }) => id),
    validBefore: ends.reduce<bigint | undefined>(
      (last, end) => (last === undefined || end > last ? end : last),
      undefined,
    ),
  }
}

/** The outcome that a payment's stored state stands for. */
export function current(context: Context, { id }: Pick<Payment, 'id'>): Outcome {
  const payment = context.store.findById(id)
  if (!payment) throw new Error(`no payment ${id}`)
  switch (payment.state) {
    case 'confirmed':
      return { kind: 'confirmed', payment }
    case 'broadcast':
      return { kind: 'pending', payment }
    case 'reverted':
      return { kind: 'reverted', payment, reason: 'invalid_exact_evm_transaction_failed' }
    case 'expired':
      return dead(payment, Verify.expiredReason(payment.transfer))
  }
}

function dead(payment: Payment | undefined, reason: Reason): Outcome {
  return { kind: 'dead', payment, reason, detail: 'the authorization did not pay and cannot' }
}

/** The payments that the slot did not pay, with why. */
type Conclusion = { unpaid: Map<string, Reason>; isConsumed: boolean }

/** Drives the slot and writes its end. */
async function conclude(
  context: Context,
  rail: Rail,
  slot: Slot,
  payments: readonly Payment[],
): Promise<Conclusion> {
  for (;;) {
    const end = await Lane.drive(context, rail, slot)
    if (end.kind === 'stopped') return { unpaid: new Map(), isConsumed: false }
    if (end.kind === 'consumed') {
      const unpaid = giveUp(context, rail, slot)
      await Lane.synchronize(rail)
      return { unpaid, isConsumed: true }
    }
    const receipt = await Lane.confirmations(context, rail, end.receipt)
    if (!receipt) continue
    rail.lane.slots.delete(slot.nonce)
    Reorg.remember(rail, receipt)
    return { unpaid: record(context, rail, slot, payments, receipt), isConsumed: false }
  }
}

function giveUp(context: Context, rail: Rail, slot: Slot): Map<string, Reason> {
  const { store } = context
  rail.lane.slots.delete(slot.nonce)
  write(context.db, () => {
    for (const { hash } of slot.transactions) store.endTransaction(hash, 'replaced', null)
    for (const id of slot.paymentIds) store.revert(id)
  })
  context.log('nonce-used-by-others', {
    network: rail.network.id,
    relayer: rail.lane.address,
    nonce: slot.nonce,
  })
  return new Map(slot.paymentIds.map((id) => [id, 'invalid_exact_evm_transaction_failed']))
}

/** Assigns one Transfer log of the receipt to each payment, all in one write. */
function record(
  context: Context,
  rail: Rail,
  slot: Slot,
  payments: readonly Payment[],
  receipt: Receipt,
): Map<string, Reason> {
  const { store, db, now } = context
  const included = slot.transactions.find(({ hash }) => hash === receipt.hash)
  if (!included) throw new Error(`${receipt.hash} is not of this slot`)
  const unpaid = new Map<string, Reason>()
  const { hash: transaction, blockNumber } = receipt
  write(db, () => {
    store.displaceOthers(included)
    store.endTransaction(transaction, receipt.success ? 'mined' : 'failed', blockNumber)
    for (const { hash } of slot.transactions) {
      if (hash !== transaction) store.endTransaction(hash, 'replaced', null)
    }
    store.addGas(rail.network.id, included.product, now(), receipt.spentWei)
    for (const payment of payments) {
      const logIndex = freeLog(context, receipt, payment)
      const isPaid =
        logIndex !== undefined &&
        store.confirm(payment.id, { transaction, logIndex, blockNumber }, now())
      if (isPaid) continue
      store.revert(payment.id)
      unpaid.set(
        payment.id,
        receipt.success && included.kind !== 'cancel'
          ? 'invalid_exact_evm_transfer_event_mismatch'
          : 'invalid_exact_evm_transaction_failed',
      )
    }
  })
  context.log('transaction-included', {
    network: rail.network.id,
    transaction,
    success: receipt.success,
    paid: payments.length - unpaid.size,
    unpaid: unpaid.size,
  })
  return unpaid
}

/** Index of a Transfer log of exactly this money that pays for nothing yet. */
function freeLog(context: Context, receipt: Receipt, payment: Payment): number | undefined {
  if (!receipt.success) return undefined
  const { network } = payment.transfer
  return receipt.logs.find(
    (log) =>
      Token.isTransfer(log, payment.transfer) &&
      context.store.findByLog(network, receipt.hash, log.index) === undefined,
  )?.index
}

/** A transaction of ours that was given up and paid all the same. */
async function findOwn(context: Context, rail: Rail, payment: Payment) {
  for (const { hash, state } of context.store.transactionsOf(payment.id)) {
    if (state === 'mined' || state === 'failed') continue
    const receipt = await Lane.readReceipt(rail, hash)
    const logIndex = receipt && freeLog(context, receipt, payment)
    if (receipt && logIndex !== undefined) {
      return { transaction: hash, logIndex, blockNumber: receipt.blockNumber }
    }
  }
  return undefined
}

/** A settlement by somebody else that pays for this request. Throws when it cannot be known. */
async function findElsewhere(context: Context, rail: Rail, payment: Payment) {
  const { transfer, purpose } = payment
  const evidence = context.store.evidenceOf(payment.id)
  const first = evidence.knownBlock > lagBlocks ? evidence.knownBlock - lagBlocks : 0n
  let found = await Elsewhere.find(context, rail, transfer, first)
  if (!found) {
    // The node may know the state of a block before its logs: look again before that is a verdict.
    await pause(Math.max(250, rail.head.blockTimeMs), context.signal)
    found = await Elsewhere.find(context, rail, transfer, first)
  }
  if (!found || !Elsewhere.counts(found, purpose.bound, evidence)) return undefined
  await Lane.assertConfirmed(context, rail, found.transaction)
  return found
}
