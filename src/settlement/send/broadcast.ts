import { type Hex, parseTransaction } from 'viem'
import type { TransactionRow } from '../../../db/schema'
import { RpcError } from '../../chain/client'
import { fees, pollMs } from '../../chain/head'
import * as Receipt from '../../chain/receipt'
import * as Amount from '../../protocol/Amount'
import { readCount, readReceipt, readTop } from '../read/reads'
import { remedyFor } from '../state/availability'
import type { ChainState, Context, Slot } from '../state/state'
import { within } from '../state/wait'
import type { Underway } from './Outcome'
import { cancellation, type Payload, signForNonce, synchronize, withoutGas } from './relayer'

/** How an account nonce ends. */
type End =
  | { kind: 'included'; receipt: Receipt.Receipt }
  /** The chain has another transaction at this nonce: none of ours can be included. */
  | { kind: 'consumed' }
  | { kind: 'stopped' }

/**
 * Polls in a row that must show our nonce as taken and our hashes as unknown before that counts.
 */
const proofPolls = 3

const pollMaxMs = 2_000

const resendMaxMs = 15_000

/** State of one `drive`; its time starts at 0. */
type Polling = {
  elapsedMs: number
  sendAtMs: number
  sends: number
  replaceAtMs: number
  intervalMs: number
  /** Polls in a row at which the nonce was taken. */
  misses: number
  /** Newest block at the first of these polls. */
  takenAt: bigint | undefined
  takenAtMs: number
}

/**
 * Sends and polls until the nonce is decided. Sends the same bytes repeatedly, because a node may
 * drop them. When they are not included, replaces them at the same nonce with higher fees. When
 * their payload can no longer succeed, replaces them with an empty transaction. Never rejects.
 */
export async function drive(context: Context, chain: ChainState, slot: Slot): Promise<End> {
  const replaceMs = chain.network.replaceAfterSeconds * 1000
  const polling: Polling = {
    elapsedMs: 0,
    sendAtMs: 0,
    sends: 0,
    replaceAtMs: replaceMs,
    intervalMs: pollMs(chain.head),
    misses: 0,
    takenAt: undefined,
    takenAtMs: 0,
  }
  while (!context.progress.signal.aborted) {
    let isDoubtful = polling.misses > 0
    if (polling.elapsedMs >= polling.sendAtMs) {
      const sent = await send(chain, newest(slot).raw, polling.sends === 0)
      const isOurs = slot.transactions.some(({ hash }) => hash === sent.receipt?.hash)
      if (sent.receipt && isOurs) return included(chain, slot, sent.receipt)
      note(context, chain, slot, sent)
      isDoubtful ||= polling.sends > 0 || sent.kind !== 'accepted' || sent.waited === true
      planSends(polling, sent, context.policy)
    }
    const seen = await inspect(chain, slot, isDoubtful)
    if (seen.receipt) return included(chain, slot, seen.receipt)
    countTaken(chain, polling, seen)
    if (polling.misses >= proofPolls) {
      if (isConsumed(context, chain, slot, { polling, top: seen.top })) return { kind: 'consumed' }
      if (polling.misses === proofPolls) {
        // Moves the relayer past the nonce, while that is still being verified.
        slot.relayer.stuck = undefined
        slot.relayer.refused = undefined
        await synchronize(chain, slot.relayer)
        chain.room()
      }
    }
    if (polling.elapsedMs >= polling.replaceAtMs && polling.misses === 0) {
      polling.replaceAtMs = polling.elapsedMs + replaceMs
      if (await tryReplace(context, chain, slot)) polling.sendAtMs = polling.elapsedMs
    }
    await waitForBlock(context, chain, polling)
  }
  return { kind: 'stopped' }
}

/** Sets the times of the next send and of the replacement. */
function planSends(polling: Polling, sent: NodeReply, { resendMs }: Context['policy']): void {
  // The node requires a higher tip, so bid its suggestion at once.
  if (sent.kind === 'rejected' && sent.isFee) {
    polling.replaceAtMs = Math.min(polling.replaceAtMs, polling.elapsedMs)
  }
  if (sent.kind === 'early') {
    polling.sendAtMs = polling.elapsedMs + 100
    return
  }
  // Bytes that no node has accepted are sent again soon, because their buyer waits.
  const firstMs = sent.kind === 'accepted' ? resendMs : 250
  polling.sendAtMs = polling.elapsedMs + Math.min(resendMaxMs, firstMs * 2 ** polling.sends)
  polling.sends++
}

/** Counts the polls in a row at which the nonce was taken. */
function countTaken({ head }: ChainState, polling: Polling, { isTaken, top }: Inspection): void {
  // The nonce is free again, so the skipped transaction is needed now.
  if (isTaken === false && polling.misses > 0) {
    polling.sendAtMs = polling.elapsedMs
    polling.intervalMs = pollMs(head)
  }
  if (polling.misses === 0) polling.takenAtMs = polling.elapsedMs
  if (isTaken !== undefined) polling.misses = isTaken ? polling.misses + 1 : 0
  polling.takenAt = polling.misses === 0 ? undefined : (polling.takenAt ?? top)
}

async function waitForBlock(
  context: Context,
  { head, heads }: ChainState,
  polling: Polling,
): Promise<void> {
  if (polling.misses > 0)
    polling.intervalMs = polling.misses > proofPolls ? head.blockTimeMs : pollMs(head)
  const { intervalMs } = polling
  const waitsFrom = context.now()
  const why = await heads.wait(intervalMs, context.progress.signal)
  // Count no more than the wait itself, in case the clock was set.
  const waitedMs = Math.min(intervalMs, Math.max(0, context.now() - waitsFrom))
  polling.elapsedMs += why === 'time' ? intervalMs : waitedMs
  polling.intervalMs = Math.min(pollMaxMs, Math.ceil(intervalMs * 1.3))
}

/**
 * Whether another transaction has the nonce finally. For a job, no reorganisation may reach it. On
 * a fast chain that takes seconds, in which a provider's receipts may lag behind its state. So a
 * minimum time must have passed, too (`jobProofMs`). What follows a job that did not run (the
 * refund for a swap) moves the same money: our bytes must never be included after that.
 */
function isConsumed(
  { policy }: Context,
  { network }: ChainState,
  { job }: Slot,
  { polling, top }: { polling: Polling; top: bigint | undefined },
): boolean {
  if (!job) return true
  if (polling.elapsedMs - polling.takenAtMs < policy.jobProofMs) return false
  if (polling.takenAt === undefined || top === undefined) return false
  return top >= polling.takenAt + BigInt(Math.max(network.reorgDepth, network.confirmations - 1))
}

function newest(slot: Slot): TransactionRow {
  const transaction = slot.transactions.at(-1)
  if (!transaction) throw new Error('a slot without a transaction')
  return transaction
}

function included({ head }: ChainState, slot: Slot, receipt: Receipt.Receipt): End {
  slot.relayer.refused = undefined
  slot.relayer.stuck = undefined
  if (receipt.blockNumber > head.number) {
    head.number = receipt.blockNumber
    const paid = slot.transactions.find(({ hash }) => hash === receipt.hash)
    const tip = paid?.maxTipWei ?? 0n
    const price = receipt.effectiveGasPriceWei
    // Below the fee cap of the transaction the price is the base fee plus the tip.
    if (paid && price > tip && price < paid.maxFeeWei) head.baseFeeWei = price - tip
  }
  return { kind: 'included', receipt }
}

function note(context: Context, chain: ChainState, slot: Slot, sent: NodeReply): void {
  const { relayer } = slot
  if (sent.kind === 'accepted') relayer.refused = undefined
  if (sent.isFull) relayer.mayHaveMany = false
  if (sent.kind !== 'rejected' || relayer.refused === sent.reason) return
  relayer.refused = sent.reason
  logPause(context, chain, slot, sent.reason)
}

function logPause(
  { log }: Context,
  chain: ChainState,
  { relayer, nonce }: Slot,
  reason: string | undefined,
): void {
  const remedy = remedyFor(chain, relayer)
  const fields = { network: chain.network.id, relayer: relayer.address, nonce, reason }
  log('relayer-paused', { ...fields, ...(remedy && { remedy }) })
  // Waiting payments go to other relayers, or are refused when there is none.
  chain.room()
}

type Inspection = { receipt?: Receipt.Receipt; isTaken?: boolean; top?: bigint }

/**
 * Receipt of any of the slot's transactions; else whether the nonce is taken. The count is read
 * first, so a transaction of ours that is included in between has a receipt then.
 */
async function inspect(chain: ChainState, slot: Slot, withCount: boolean): Promise<Inspection> {
  try {
    const top = withCount && slot.job ? await readTop(chain) : undefined
    const included = withCount ? await readCount(chain, slot.relayer, 'latest') : undefined
    for (const { hash } of slot.transactions.toReversed()) {
      const receipt = await readReceipt(chain, hash)
      if (receipt) return { receipt }
    }
    if (included === undefined) return {}
    return { isTaken: included > slot.nonce, ...(top === undefined ? {} : { top }) }
  } catch {
    return {}
  }
}

/** A disk that cannot store the replacement must not end the polling for what was sent. */
async function tryReplace(context: Context, chain: ChainState, slot: Slot): Promise<boolean> {
  try {
    return await slot.relayer.turn(() => replace(context, chain, slot))
  } catch (error) {
    context.log('settlement-fault', { network: chain.network.id, nonce: slot.nonce, error })
    return false
  }
}

/**
 * Signs the slot again with at least an eighth more, because nodes require a tenth. Returns false
 * at the fee cap, which pauses the relayer: its later transactions all wait for this nonce.
 */
async function replace(context: Context, chain: ChainState, slot: Slot): Promise<boolean> {
  const { ledger, now } = context
  const { network, head } = chain
  const { relayer, nonce } = slot
  const old = newest(slot)
  const current = fees(head, network.feeCapWei, true)
  const raised = (wei: bigint, now: bigint) => Amount.greatest(wei + wei / 8n + 1n, now)
  const maxFeeWei = raised(old.maxFeeWei, current.maxFeeWei)
  const bid = { maxFeeWei, maxTipWei: raised(old.maxTipWei, current.maxTipWei) }
  if (maxFeeWei > network.feeCapWei || bid.maxTipWei > maxFeeWei) {
    if (relayer.stuck === undefined) {
      relayer.stuck = 'a transaction stays out at the fee cap'
      logPause(context, chain, slot, relayer.stuck)
    }
    return false
  }
  const hashes = slot.transactions.map(({ hash }) => hash)
  const payments = slot.members.map(({ payment }) => payment.id)
  const payload = payloadOf(slot, old, now())
  const row = signForNonce(chain, relayer, payload, { nonce, at: now(), bid })
  await ledger.settling.replace({ transaction: row, hashes, payments, job: slot.job?.id })
  slot.transactions.push(row)
  context.metrics.replaced(network.id)
  context.log('transaction-replaced', { network: network.id, nonce, hash: row.hash })
  return true
}

function payloadOf({ relayer, members }: Slot, old: TransactionRow, now: number): Payload {
  if (isOver(members, now)) return { ...cancellation(relayer), product: old.product }
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

/** Whether no payment of a transaction can succeed any more. A transaction without payments always can. */
export function isOver(members: Slot['members'], now: number): boolean {
  const seconds = BigInt(Math.floor(now / 1000))
  const isLate = ({ payment }: Underway) => payment.transfer.validBefore < seconds
  return members.length > 0 && members.every(isLate)
}

/**
 * The receipt of a transaction of an account that is no longer ours to sign for; without one, its bytes
 * are sent once more. Throws RpcFault or RpcError.
 */
export async function findOrSend(
  chain: ChainState,
  { hash, raw }: TransactionRow,
): Promise<Receipt.Receipt | undefined> {
  const receipt = await readReceipt(chain, hash)
  if (!receipt) await send(chain, raw, false)
  return receipt
}

/** A node's answer to the bytes. Only a receipt shows that they are included. */
type NodeReply = {
  kind:
    | 'accepted'
    /** The result is unknown: the bytes may have been sent. */
    | 'unknown'
    /** The account nonce is used: by these bytes or by others. */
    | 'low'
    /** An earlier nonce has not arrived yet. */
    | 'early'
    /** The node does not accept the bytes now. */
    | 'rejected'
  receipt?: Receipt.Receipt
  /** Why, as text without secrets. */
  reason?: string
  /** Whether the node rejected the transaction for its fees. */
  isFee?: true
  /** Whether too many transactions wait in the pool of the node. */
  isFull?: true
  /** Whether the call waited for the inclusion of the bytes. */
  waited?: boolean
}

/** Longest wait (ms) inside eth_sendRawTransactionSync before receipts are polled as well. */
const graceMs = 3_000

/** Nodes keep such a call open for 20 s by default. */
const syncTimeoutMs = 30_000

/** `isFirst`: wait for the receipt in the same call where the node can. Never rejects. */
async function send(
  { client, head, abilities }: ChainState,
  raw: Hex,
  isFirst: boolean,
): Promise<NodeReply> {
  if (isFirst && abilities.hasSync) {
    try {
      const options = { timeoutMs: syncTimeoutMs }
      const sending = client.call('eth_sendRawTransactionSync', [raw], options)
      // The call may fail after the wait for it is over.
      sending.catch(() => undefined)
      const answer = await within(sending, Math.max(graceMs, head.blockTimeMs * 3))
      const receipt = Receipt.parse(answer)
      return receipt ? { kind: 'accepted', receipt } : { kind: 'accepted', waited: true }
    } catch (error) {
      if (!isUnknownMethod(error)) return classify(error)
      abilities.hasSync = false
    }
  }
  try {
    await client.call('eth_sendRawTransaction', [raw])
    return { kind: 'accepted' }
  } catch (error) {
    return classify(error)
  }
}

function isUnknownMethod(error: unknown): boolean {
  if (!(error instanceof RpcError)) return false
  if (error.code === -32601 || error.code === -32004) return true
  return /method.*(not|un).*(found|supported|available|exist|known|allowed)/i.test(error.message)
}

/** Texts of geth, reth, nitro, erigon, nethermind, besu and anvil. */
function classify(error: unknown): NodeReply {
  if (!(error instanceof RpcError)) return { kind: 'unknown' }
  const text = error.message
  if (/already (known|imported|exists)|known transaction|alreadyknown/i.test(text)) {
    return { kind: 'accepted' }
  }
  // A transaction of ours at this nonce is there already.
  if (/replacement transaction underpriced|could not replace/i.test(text)) {
    return { kind: 'accepted' }
  }
  if (/nonce.*(too low|already)|old ?nonce|invalid nonce/i.test(text)) return { kind: 'low' }
  if (/nonce.*(too high|gap)|gapped/i.test(text)) return { kind: 'early' }
  if (/spammer|account limit|pool is full|in-flight transaction limit/i.test(text)) {
    return { kind: 'unknown', isFull: true }
  }
  if (error.code === 4 || /not (yet )?(mined|processed|confirmed)|timeout|timed out/i.test(text)) {
    return { kind: 'accepted', waited: true }
  }
  if (/insufficient|not enough funds|exceeds.*balance|overshot/i.test(text)) {
    return { kind: 'rejected', reason: withoutGas }
  }
  if (/underpriced|fee too low|base fee|feecap|fee cap|max fee|tip/i.test(text)) {
    return { kind: 'rejected', reason: 'the node refuses the fees of the relayer', isFee: true }
  }
  if (/gas/i.test(text)) return { kind: 'rejected', reason: 'the node refuses the gas limit' }
  return { kind: 'unknown' }
}
