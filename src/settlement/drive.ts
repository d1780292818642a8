import { parseTransaction } from 'viem'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import { fees, pollMs } from '../chain/head'
import type * as Receipt from '../chain/receipt'
import type { Context, Lane, Rail, Slot } from './context'
import {
  cancellation,
  type Payload,
  readCount,
  readReceipt,
  readTop,
  sign,
  synchronize,
} from './lane'
import { type Sent, send } from './send'

/** How a nonce ends. */
export type End =
  | { kind: 'included'; receipt: Receipt.Receipt }
  /** The chain has another transaction at this nonce: none of ours can be included. */
  | { kind: 'consumed' }
  | { kind: 'stopped' }

/** Looks at which our nonce must seem taken, and our hashes unknown, before that is believed. */
const proofLooks = 3
const pollMaxMs = 2_000
const resendMaxMs = 15_000

/**
 * Sends and watches until the nonce is decided. The same bytes are sent again and again, because a
 * node may forget them; when they stay out, they are replaced at the same nonce with higher fees,
 * and by an empty transaction once their payload can no longer succeed. Never rejects.
 */
export async function drive(context: Context, rail: Rail, lane: Lane, slot: Slot): Promise<End> {
  const { signal } = context
  let elapsedMs = 0
  let sendAtMs = 0
  let sends = 0
  let replaceAtMs = rail.network.replaceAfterSeconds * 1000
  let intervalMs = pollMs(rail.head)
  let misses = 0
  let takenAt: bigint | undefined
  let takenAtMs = 0
  for (;;) {
    if (signal.aborted) return { kind: 'stopped' }
    let isDoubtful = misses > 0
    if (elapsedMs >= sendAtMs) {
      const sent = await send(rail, newest(slot).raw, sends === 0)
      if (sent.receipt && isOf(slot, sent.receipt)) return included(rail, lane, slot, sent.receipt)
      note(context, rail, lane, slot, sent)
      // The node wants a higher tip, so bid its suggestion at once.
      if (sent.kind === 'rejected' && sent.isFee) replaceAtMs = Math.min(replaceAtMs, elapsedMs)
      isDoubtful ||= sends > 0 || sent.kind !== 'accepted' || sent.waited === true
      // Bytes that no node has taken are offered again soon: their buyer waits.
      const firstMs = sent.kind === 'accepted' ? context.resendMs : 250
      const backoffMs = Math.min(resendMaxMs, firstMs * 2 ** sends)
      sendAtMs = elapsedMs + (sent.kind === 'early' ? 100 : backoffMs)
      if (sent.kind !== 'early') sends++
    }
    const seen = await inspect(rail, lane, slot, isDoubtful)
    if (seen.receipt) return included(rail, lane, slot, seen.receipt)
    // The nonce is free again: what was passed over is wanted now.
    if (seen.isTaken === false && misses > 0) {
      sendAtMs = elapsedMs
      intervalMs = pollMs(rail.head)
    }
    if (misses === 0) takenAtMs = elapsedMs
    misses = seen.isTaken === undefined ? misses : seen.isTaken ? misses + 1 : 0
    takenAt = misses === 0 ? undefined : (takenAt ?? seen.top)
    if (misses >= proofLooks) {
      const isLong = elapsedMs - takenAtMs >= context.errandProofMs
      if (!slot.errand || (isLong && isDeep(rail, takenAt, seen.top))) return { kind: 'consumed' }
      if (misses === proofLooks) await passOver(context, rail, lane)
    }
    if (elapsedMs >= replaceAtMs && misses === 0) {
      replaceAtMs = elapsedMs + rail.network.replaceAfterSeconds * 1000
      if (tryReplace(context, rail, lane, slot)) sendAtMs = elapsedMs
    }
    if (misses > 0) intervalMs = misses > proofLooks ? rail.head.blockTimeMs : pollMs(rail.head)
    const waitsFrom = context.now()
    const why = await rail.heads.wait(intervalMs, signal)
    // A clock that was set counts for no more than the wait itself.
    const waitedMs = Math.min(intervalMs, Math.max(0, context.now() - waitsFrom))
    elapsedMs += why === 'time' ? intervalMs : waitedMs
    intervalMs = Math.min(pollMaxMs, Math.ceil(intervalMs * 1.3))
  }
}

/**
 * Whether what took a nonce is out of the reach of a reorganisation. On a fast chain that is a matter
 * of seconds, in which a provider's receipts may lag behind its state: time must have passed, too
 * (`errandProofMs`). What follows an errand that did
 * not run (the refund for a swap) moves the same money: our bytes must never be included after that.
 */
function isDeep({ network }: Rail, takenAt: bigint | undefined, top: bigint | undefined): boolean {
  if (takenAt === undefined || top === undefined) return false
  return top >= takenAt + BigInt(Math.max(network.reorgDepth, network.confirmations - 1))
}

/** The lane goes on above a nonce that another program used, while that is being made sure of. */
async function passOver(context: Context, rail: Rail, lane: Lane): Promise<void> {
  lane.stuck = undefined
  lane.refused = undefined
  await synchronize(rail, lane)
  context.pump(rail)
}

function isOf({ transactions }: Slot, { hash }: Receipt.Receipt): boolean {
  return transactions.some((each) => each.hash === hash)
}

function newest(slot: Slot): TransactionRow {
  const transaction = slot.transactions.at(-1)
  if (!transaction) throw new Error('a slot without a transaction')
  return transaction
}

function included(rail: Rail, lane: Lane, slot: Slot, receipt: Receipt.Receipt): End {
  const { head } = rail
  lane.refused = undefined
  lane.stuck = undefined
  if (receipt.blockNumber > head.number) {
    head.number = receipt.blockNumber
    const paid = slot.transactions.find(({ hash }) => hash === receipt.hash)
    const tip = paid?.maxTipWei ?? 0n
    const price = receipt.effectiveGasPriceWei
    // Below the cap of the transaction the price is base fee and tip.
    if (paid && price > tip && price < paid.maxFeeWei) head.baseFeeWei = price - tip
  }
  return { kind: 'included', receipt }
}

function note(context: Context, rail: Rail, lane: Lane, slot: Slot, sent: Sent): void {
  if (sent.kind === 'accepted') lane.refused = undefined
  if (sent.kind !== 'rejected' || lane.refused === sent.reason) return
  lane.refused = sent.reason
  tellPause(context, rail, lane, slot, sent.reason)
}

function tellPause(
  context: Context,
  rail: Rail,
  { address }: Lane,
  { nonce }: Slot,
  reason: string | undefined,
): void {
  context.log('lane-paused', { network: rail.network.id, relayer: address, nonce, reason })
  // What waits goes to the other lanes, or is told that there is none.
  context.pump(rail)
}

/**
 * Receipt of any of the slot's transactions; else whether the nonce is taken all the same. The count
 * is read first: a transaction of ours that is included in between has a receipt then.
 */
async function inspect(
  rail: Rail,
  lane: Lane,
  slot: Slot,
  withCount: boolean,
): Promise<{ receipt?: Receipt.Receipt; isTaken?: boolean; top?: bigint }> {
  try {
    const top = withCount && slot.errand ? await readTop(rail) : undefined
    const count = withCount ? await readCount(rail, lane, 'latest') : undefined
    for (const { hash, firstSentAt } of slot.transactions.toReversed()) {
      const receipt = firstSentAt === null ? undefined : await readReceipt(rail, hash)
      if (receipt) return { receipt }
    }
    if (count === undefined) return {}
    return { isTaken: count > slot.nonce, ...(top === undefined ? {} : { top }) }
  } catch {
    return {}
  }
}

/** A disk that cannot take the replacement must not end the watch over what was sent. */
function tryReplace(context: Context, rail: Rail, lane: Lane, slot: Slot): boolean {
  try {
    return replace(context, rail, lane, slot)
  } catch (error) {
    context.log('settlement-fault', { network: rail.network.id, nonce: slot.nonce, error })
    return false
  }
}

/**
 * Signs the slot again with at least an eighth more (nodes want a tenth). False at the fee cap, which
 * stops the lane: all that it sends later waits behind this nonce.
 */
function replace(context: Context, rail: Rail, lane: Lane, slot: Slot): boolean {
  const { network, head } = rail
  const old = newest(slot)
  const current = fees(head, network.feeCapWei, true)
  const maxFeeWei = larger(old.maxFeeWei + old.maxFeeWei / 8n + 1n, current.maxFeeWei)
  const maxTipWei = larger(old.maxTipWei + old.maxTipWei / 8n + 1n, current.maxTipWei)
  if (maxFeeWei > network.feeCapWei || maxTipWei > maxFeeWei) {
    if (lane.stuck === undefined) {
      lane.stuck = 'a transaction stays out at the fee cap'
      tellPause(context, rail, lane, slot, lane.stuck)
    }
    return false
  }
  const price = { maxFeeWei, maxTipWei }
  const carriers = slot.transactions.map(({ hash }) => hash)
  const row = sign(context, rail, lane, payloadOf(context, lane, slot, old), slot.nonce, price)
  write(context.db, () => {
    context.store.insertTransaction(row, slot.paymentIds)
    if (slot.errand) context.errands.renew(slot.errand.id, row.hash)
    for (const id of slot.paymentIds) context.store.renew(id, row.hash, carriers)
  })
  slot.transactions.push(row)
  context.metrics.replaced(network.id)
  context.log('transaction-replaced', { network: network.id, nonce: slot.nonce, hash: row.hash })
  return true
}

function payloadOf(context: Context, lane: Lane, slot: Slot, old: TransactionRow): Payload {
  const isOver =
    slot.validBefore !== undefined && slot.validBefore < BigInt(Math.floor(context.now() / 1000))
  if (isOver) return { ...cancellation(lane), product: old.product }
  // The type byte was checked when the row was written.
  const { to, data, value } = parseTransaction(old.raw as `0x02${string}`)
  return {
    kind: old.kind,
    product: old.product,
    to: to ?? old.to,
    // A contract creation has no receiver: the same data sent to the address would do nothing.
    isCreation: !to,
    data: data ?? '0x',
    valueWei: value ?? 0n,
    gasLimit: old.gasLimit,
  }
}

function larger(left: bigint, right: bigint): bigint {
  return left > right ? left : right
}
