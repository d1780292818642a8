import { parseTransaction } from 'viem'
import type { TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import { fees, pollMs } from '../chain/head'
import type * as Receipt from '../chain/receipt'
import type { ChainState, Context, Relayer, Slot } from './context'
import {
  cancellation,
  type Payload,
  readCount,
  readReceipt,
  readTop,
  sign,
  synchronize,
} from './relayer'
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
export async function drive(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  slot: Slot,
): Promise<End> {
  const { signal } = context
  let elapsedMs = 0
  let sendAtMs = 0
  let sends = 0
  let replaceAtMs = chain.network.replaceAfterSeconds * 1000
  let intervalMs = pollMs(chain.head)
  let misses = 0
  let takenAt: bigint | undefined
  let takenAtMs = 0
  for (;;) {
    if (signal.aborted) return { kind: 'stopped' }
    let isDoubtful = misses > 0
    if (elapsedMs >= sendAtMs) {
      const sent = await send(chain, newest(slot).raw, sends === 0)
      if (sent.receipt && isOf(slot, sent.receipt))
        return included(chain, relayer, slot, sent.receipt)
      note(context, chain, relayer, slot, sent)
      // The node wants a higher tip, so bid its suggestion at once.
      if (sent.kind === 'rejected' && sent.isFee) replaceAtMs = Math.min(replaceAtMs, elapsedMs)
      isDoubtful ||= sends > 0 || sent.kind !== 'accepted' || sent.waited === true
      // Bytes that no node has taken are offered again soon: their buyer waits.
      const firstMs = sent.kind === 'accepted' ? 2_000 : 250
      const backoffMs = Math.min(resendMaxMs, firstMs * 2 ** sends)
      sendAtMs = elapsedMs + (sent.kind === 'early' ? 100 : backoffMs)
      if (sent.kind !== 'early') sends++
    }
    const seen = await inspect(chain, relayer, slot, isDoubtful)
    if (seen.receipt) return included(chain, relayer, slot, seen.receipt)
    // The nonce is free again: what was passed over is wanted now.
    if (seen.isTaken === false && misses > 0) {
      sendAtMs = elapsedMs
      intervalMs = pollMs(chain.head)
    }
    if (misses === 0) takenAtMs = elapsedMs
    misses = seen.isTaken === undefined ? misses : seen.isTaken ? misses + 1 : 0
    takenAt = misses === 0 ? undefined : (takenAt ?? seen.top)
    if (misses >= proofLooks) {
      const isLong = elapsedMs - takenAtMs >= context.jobProofMs
      if (!slot.job || (isLong && isDeep(chain, takenAt, seen.top))) return { kind: 'consumed' }
      if (misses === proofLooks) await passOver(context, chain, relayer)
    }
    if (elapsedMs >= replaceAtMs && misses === 0) {
      replaceAtMs = elapsedMs + chain.network.replaceAfterSeconds * 1000
      if (tryReplace(context, chain, relayer, slot)) sendAtMs = elapsedMs
    }
    if (misses > 0) intervalMs = misses > proofLooks ? chain.head.blockTimeMs : pollMs(chain.head)
    const waitsFrom = context.now()
    const why = await chain.heads.wait(intervalMs, signal)
    // A clock that was set counts for no more than the wait itself.
    const waitedMs = Math.min(intervalMs, Math.max(0, context.now() - waitsFrom))
    elapsedMs += why === 'time' ? intervalMs : waitedMs
    intervalMs = Math.min(pollMaxMs, Math.ceil(intervalMs * 1.3))
  }
}

/**
 * Whether what took a nonce is out of the reach of a reorganisation. On a fast chain that is a matter
 * of seconds, in which a provider's receipts may lag behind its state: time must have passed, too
 * (`jobProofMs`). What follows a job that did
 * not run (the refund for a swap) moves the same money: our bytes must never be included after that.
 */
function isDeep(
  { network }: ChainState,
  takenAt: bigint | undefined,
  top: bigint | undefined,
): boolean {
  if (takenAt === undefined || top === undefined) return false
  return top >= takenAt + BigInt(Math.max(network.reorgDepth, network.confirmations - 1))
}

/** The relayer goes on above a nonce that another program used, while that is being made sure of. */
async function passOver(context: Context, chain: ChainState, relayer: Relayer): Promise<void> {
  relayer.stuck = undefined
  relayer.refused = undefined
  await synchronize(chain, relayer)
  context.pump(chain)
}

function isOf({ transactions }: Slot, { hash }: Receipt.Receipt): boolean {
  return transactions.some((each) => each.hash === hash)
}

function newest(slot: Slot): TransactionRow {
  const transaction = slot.transactions.at(-1)
  if (!transaction) throw new Error('a slot without a transaction')
  return transaction
}

function included(chain: ChainState, relayer: Relayer, slot: Slot, receipt: Receipt.Receipt): End {
  const { head } = chain
  relayer.refused = undefined
  relayer.stuck = undefined
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

function note(context: Context, chain: ChainState, relayer: Relayer, slot: Slot, sent: Sent): void {
  if (sent.kind === 'accepted') relayer.refused = undefined
  if (sent.kind !== 'rejected' || relayer.refused === sent.reason) return
  relayer.refused = sent.reason
  tellPause(context, chain, relayer, slot, sent.reason)
}

function tellPause(
  context: Context,
  chain: ChainState,
  { address }: Relayer,
  { nonce }: Slot,
  reason: string | undefined,
): void {
  context.log('relayer-paused', { network: chain.network.id, relayer: address, nonce, reason })
  // What waits goes to the other relayers, or is told that there is none.
  context.pump(chain)
}

/**
 * Receipt of any of the slot's transactions; else whether the nonce is taken all the same. The count
 * is read first: a transaction of ours that is included in between has a receipt then.
 */
async function inspect(
  chain: ChainState,
  relayer: Relayer,
  slot: Slot,
  withCount: boolean,
): Promise<{ receipt?: Receipt.Receipt; isTaken?: boolean; top?: bigint }> {
  try {
    const top = withCount && slot.job ? await readTop(chain) : undefined
    const count = withCount ? await readCount(chain, relayer, 'latest') : undefined
    for (const { hash, firstSentAt } of slot.transactions.toReversed()) {
      const receipt = firstSentAt === null ? undefined : await readReceipt(chain, hash)
      if (receipt) return { receipt }
    }
    if (count === undefined) return {}
    return { isTaken: count > slot.nonce, ...(top === undefined ? {} : { top }) }
  } catch {
    return {}
  }
}

/** A disk that cannot take the replacement must not end the watch over what was sent. */
function tryReplace(context: Context, chain: ChainState, relayer: Relayer, slot: Slot): boolean {
  try {
    return replace(context, chain, relayer, slot)
  } catch (error) {
    context.log('settlement-fault', { network: chain.network.id, nonce: slot.nonce, error })
    return false
  }
}

/**
 * Signs the slot again with at least an eighth more (nodes want a tenth). False at the fee cap, which
 * stops the relayer: all that it sends later waits behind this nonce.
 */
function replace(context: Context, chain: ChainState, relayer: Relayer, slot: Slot): boolean {
  const { network, head } = chain
  const old = newest(slot)
  const current = fees(head, network.feeCapWei, true)
  const maxFeeWei = larger(old.maxFeeWei + old.maxFeeWei / 8n + 1n, current.maxFeeWei)
  const maxTipWei = larger(old.maxTipWei + old.maxTipWei / 8n + 1n, current.maxTipWei)
  if (maxFeeWei > network.feeCapWei || maxTipWei > maxFeeWei) {
    if (relayer.stuck === undefined) {
      relayer.stuck = 'a transaction stays out at the fee cap'
      tellPause(context, chain, relayer, slot, relayer.stuck)
    }
    return false
  }
  const price = { maxFeeWei, maxTipWei }
  const carriers = slot.transactions.map(({ hash }) => hash)
  const row = sign(
    context,
    chain,
    relayer,
    payloadOf(context, relayer, slot, old),
    slot.nonce,
    price,
  )
  write(context.db, () => {
    context.store.insertTransaction(row, slot.paymentIds)
    if (slot.job) context.jobs.renew(slot.job.id, row.hash)
    for (const id of slot.paymentIds) context.store.renew(id, row.hash, carriers)
  })
  slot.transactions.push(row)
  context.metrics.replaced(network.id)
  context.log('transaction-replaced', { network: network.id, nonce: slot.nonce, hash: row.hash })
  return true
}

function payloadOf(context: Context, relayer: Relayer, slot: Slot, old: TransactionRow): Payload {
  const isOver =
    slot.validBefore !== undefined && slot.validBefore < BigInt(Math.floor(context.now() / 1000))
  if (isOver) return { ...cancellation(relayer), product: old.product }
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
