import { type Address, type Hex, parseTransaction } from 'viem'
import type { GasProduct, TransactionRow } from '../../db/schema'
import { write } from '../../db/write'
import { RpcFault } from '../chain/client'
import { fees, pollMs } from '../chain/head'
import * as Receipt from '../chain/receipt'
import * as Transaction from '../chain/transaction'
import * as Crypto from '../protocol/Crypto'
import { type Context, type Lane, pause, type Rail, type Slot } from './context'
import { type Sent, send } from './send'

/** How a nonce ends. */
export type End =
  | { kind: 'included'; receipt: Receipt.Receipt }
  /** The chain has another transaction at this nonce: none of ours can be included. */
  | { kind: 'consumed' }
  | { kind: 'stopped' }

export type Payload = {
  kind: TransactionRow['kind']
  product: GasProduct
  to: Address
  data: Hex
  valueWei: bigint
  gasLimit: bigint
}

/** Looks at which our nonce must seem taken, and our hashes unknown, before that is believed. */
const proofLooks = 3
const pollMaxMs = 2_000
const resendMaxMs = 15_000

export function createLane(privateKey: Uint8Array): Lane {
  return {
    address: Crypto.addressOf(privateKey),
    privateKey,
    next: undefined,
    floor: 0,
    lag: undefined,
    slots: new Map(),
    paused: undefined,
    hasSync: true,
  }
}

/**
 * Signs for a nonce. Nothing is reserved by it: store the row and call `occupy` before anything
 * else runs, so that a failed write leaves no gap.
 */
export function sign(
  context: Context,
  rail: Rail,
  payload: Payload,
  nonce: number,
  price: { maxFeeWei: bigint; maxTipWei: bigint } = fees(rail.head, rail.network.feeCapWei),
): TransactionRow {
  const { lane, network } = rail
  const { kind, product, to, gasLimit } = payload
  const { hash, raw } = Transaction.sign(
    { chainId: network.chainId, nonce, ...price, ...payload },
    lane.privateKey,
  )
  const at = context.now()
  return {
    hash,
    network: network.id,
    relayer: lane.address,
    nonce,
    kind,
    product,
    to,
    raw,
    gasLimit,
    ...price,
    // Written before the bytes leave, which they do as soon as the row is on the disk.
    state: 'sent',
    createdAt: at,
    firstSentAt: at,
    blockNumber: null,
  }
}

/** The nonce of the next transaction; undefined until the chain was asked. */
export function freeNonce(lane: Lane): number | undefined {
  while (lane.next !== undefined && lane.slots.has(lane.next)) lane.next++
  return lane.next
}

/** Takes a stored slot into the lane. */
export function occupy(lane: Lane, slot: Slot): void {
  lane.slots.set(slot.nonce, slot)
  lane.next = Math.max(lane.next ?? 0, slot.nonce + 1)
}

/**
 * Sends and watches until the nonce is decided. The same bytes are sent again and again, because a
 * node may forget them; when they stay out, they are replaced at the same nonce with higher fees,
 * and by an empty transaction once their payload can no longer succeed. Never rejects.
 */
export async function drive(context: Context, rail: Rail, slot: Slot): Promise<End> {
  const { signal } = context
  let elapsedMs = 0
  let sendAtMs = 0
  let sends = 0
  let replaceAtMs = rail.network.replaceAfterSeconds * 1000
  let intervalMs = pollMs(rail.head)
  let misses = 0
  for (;;) {
    if (signal.aborted) return { kind: 'stopped' }
    let isDoubtful = misses > 0
    if (elapsedMs >= sendAtMs) {
      const sent = await send(rail, newest(slot).raw, sends === 0)
      if (sent.receipt) return included(rail, slot, sent.receipt)
      note(context, rail, slot, sent)
      isDoubtful ||= sends > 0 || sent.kind !== 'accepted' || sent.waited === true
      const backoffMs = Math.min(resendMaxMs, 2_000 * 2 ** sends)
      sendAtMs = elapsedMs + (sent.kind === 'early' ? 100 : backoffMs)
      if (sent.kind !== 'early') sends++
    }
    const seen = await inspect(rail, slot, isDoubtful)
    if (seen.receipt) return included(rail, slot, seen.receipt)
    misses = seen.isTaken === undefined ? misses : seen.isTaken ? misses + 1 : 0
    if (misses >= proofLooks) return { kind: 'consumed' }
    if (elapsedMs >= replaceAtMs && misses === 0) {
      replaceAtMs = elapsedMs + rail.network.replaceAfterSeconds * 1000
      if (replace(context, rail, slot)) sendAtMs = elapsedMs
    }
    if (misses > 0) intervalMs = pollMs(rail.head)
    await pause(intervalMs, signal)
    elapsedMs += intervalMs
    intervalMs = Math.min(pollMaxMs, Math.ceil(intervalMs * 1.3))
  }
}

/**
 * Waits until a receipt has the configured confirmations. Undefined when it vanished: then the
 * transaction must be driven again.
 */
export async function confirmations(
  context: Context,
  rail: Rail,
  receipt: Receipt.Receipt,
): Promise<Receipt.Receipt | undefined> {
  const needed = BigInt(rail.network.confirmations) - 1n
  if (needed <= 0n) return receipt
  while (!context.signal.aborted) {
    try {
      const number = await rail.client.call('eth_blockNumber', [])
      if (Receipt.isHex(number) && BigInt(number) >= receipt.blockNumber + needed) {
        const again = await readReceipt(rail, receipt.hash)
        if (!again) return undefined
        if (again.blockNumber === receipt.blockNumber) return again
        receipt = again
      }
    } catch {
      // The next look may reach a node.
    }
    await pause(pollMs(rail.head), context.signal)
  }
  return undefined
}

/** Waits until a transaction of somebody else has the configured confirmations. Throws when it vanished. */
export async function assertConfirmed(context: Context, rail: Rail, hash: Hex): Promise<void> {
  if (rail.network.confirmations <= 1) return
  const receipt = await readReceipt(rail, hash)
  if (receipt && (await confirmations(context, rail, receipt))) return
  throw new RpcFault('the settlement by somebody else is not confirmed')
}

/** Skips account nonces that other programs used. Never rejects: the next health check tries again. */
export async function synchronize(rail: Rail): Promise<void> {
  try {
    const count = await readCount(rail, 'pending')
    rail.lane.next = Math.max(rail.lane.next ?? 0, count)
  } catch {
    // Then the next transaction meets the same nonce and is signed again.
  }
}

/** The receipt of a hash, if the chain has it. Throws RpcFault or RpcError. */
export async function readReceipt(rail: Rail, hash: Hex): Promise<Receipt.Receipt | undefined> {
  return Receipt.parse(await rail.client.call('eth_getTransactionReceipt', [hash]))
}

/** The number of included transactions of the relayer. Throws RpcFault or RpcError. */
export async function readCount(rail: Rail, tag: 'latest' | 'pending'): Promise<number> {
  const count = await rail.client.call('eth_getTransactionCount', [rail.lane.address, tag])
  if (!Receipt.isHex(count)) throw new Error('not a transaction count')
  return Number(count)
}

/** A transaction that does nothing but use its nonce up. */
export function cancellation(lane: Lane): Payload {
  return {
    kind: 'cancel',
    product: 'gateway',
    to: lane.address,
    data: '0x',
    valueWei: 0n,
    // Chains that fold L1 data into gas need more than 21,000.
    gasLimit: 100_000n,
  }
}

function newest(slot: Slot): TransactionRow {
  const transaction = slot.transactions.at(-1)
  if (!transaction) throw new Error('a slot without a transaction')
  return transaction
}

function included(rail: Rail, slot: Slot, receipt: Receipt.Receipt): End {
  const { head, lane } = rail
  lane.paused = undefined
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

function note(context: Context, rail: Rail, slot: Slot, sent: Sent): void {
  const { lane } = rail
  if (sent.kind === 'accepted') lane.paused = undefined
  if (sent.kind !== 'rejected' || lane.paused === sent.reason) return
  lane.paused = sent.reason
  context.log('lane-paused', {
    network: rail.network.id,
    relayer: lane.address,
    nonce: slot.nonce,
    reason: sent.reason,
  })
}

/**
 * Receipt of any of the slot's transactions; else whether the nonce is taken all the same. The count
 * is read first: a transaction of ours that is included in between has a receipt then.
 */
async function inspect(
  rail: Rail,
  slot: Slot,
  withCount: boolean,
): Promise<{ receipt?: Receipt.Receipt; isTaken?: boolean }> {
  try {
    const count = withCount ? await readCount(rail, 'latest') : undefined
    for (const { hash, firstSentAt } of slot.transactions.toReversed()) {
      const receipt = firstSentAt === null ? undefined : await readReceipt(rail, hash)
      if (receipt) return { receipt }
    }
    return count === undefined ? {} : { isTaken: count > slot.nonce }
  } catch {
    return {}
  }
}

/** Signs the slot again with at least an eighth more (nodes want a tenth). False at the fee cap. */
function replace(context: Context, rail: Rail, slot: Slot): boolean {
  const { network, head, lane } = rail
  const old = newest(slot)
  if (old.relayer !== lane.address) return false
  const current = fees(head, network.feeCapWei)
  const maxFeeWei = larger(old.maxFeeWei + old.maxFeeWei / 8n + 1n, current.maxFeeWei)
  const maxTipWei = larger(old.maxTipWei + old.maxTipWei / 8n + 1n, current.maxTipWei)
  if (maxFeeWei > network.feeCapWei || maxTipWei > maxFeeWei) return false
  const price = { maxFeeWei, maxTipWei }
  const row = sign(context, rail, payloadOf(context, rail, slot, old), slot.nonce, price)
  write(context.db, () => {
    context.store.insertTransaction(row, slot.paymentIds)
    for (const id of slot.paymentIds) context.store.renew(id, row.hash)
  })
  slot.transactions.push(row)
  context.log('transaction-replaced', { network: network.id, nonce: slot.nonce, hash: row.hash })
  return true
}

function payloadOf(context: Context, rail: Rail, slot: Slot, old: TransactionRow): Payload {
  const isOver =
    slot.validBefore !== undefined && slot.validBefore < BigInt(Math.floor(context.now() / 1000))
  if (isOver) return { ...cancellation(rail.lane), product: old.product }
  // The type byte was checked when the row was written.
  const { to, data, value } = parseTransaction(old.raw as `0x02${string}`)
  return {
    kind: old.kind,
    product: old.product,
    to: to ?? old.to,
    data: data ?? '0x',
    valueWei: value ?? 0n,
    gasLimit: old.gasLimit,
  }
}

function larger(left: bigint, right: bigint): bigint {
  return left > right ? left : right
}
