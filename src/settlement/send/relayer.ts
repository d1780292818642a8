import type { Address, Hex } from 'viem'
import type { GasProduct, TransactionRow } from '../../../db/schema'
import { RpcError } from '../../chain/client'
import { type Fees, fees } from '../../chain/head'
import { parse, type Receipt } from '../../chain/receipt'
import * as Transaction from '../../chain/transaction'
import * as Crypto from '../../protocol/Crypto'
import { readCount } from '../read/reads'
import type { Context } from '../state/context'
import type { ChainState, Relayer, Slot } from '../state/state'
import { createTurn } from '../state/turn'
import { within } from '../state/wait'

export type Payload = {
  kind: TransactionRow['kind']
  product: GasProduct
  to: Address
  data: Hex
  /** Whether the transaction creates a contract, at `to`. */
  isCreation?: boolean
  valueWei: bigint
  gasLimit: bigint
}

/**
 * Transactions of one account that may wait for a block. Nodes keep a limited number of each (16 in
 * geth when its pool is full), and drop the highest nonces first.
 */
export const openMax = 16
/** Of these, what settlements for other servers may take, so that they never delay our own for long. */
export const facilitatorMax = openMax / 2

/** Why a relayer is paused when a node refuses its transaction for lack of balance. */
const withoutGas = 'the relayer cannot pay for gas'

/** Whether a relayer is paused because it has too little native coin. */
export function isUnfunded({ poor, refused }: Relayer): boolean {
  return poor !== undefined || refused === withoutGas
}

/** `isReserved`: sends only the jobs that name it. `isHeld`: no other process may use the account. */
export function createRelayer(
  privateKey: Uint8Array,
  { isReserved, isHeld }: Pick<Relayer, 'isReserved' | 'isHeld'>,
): Relayer {
  return {
    address: Crypto.addressOf(privateKey),
    privateKey,
    isReserved,
    isHeld,
    isLeaving: false,
    next: undefined,
    floor: 0,
    lag: undefined,
    slots: new Map(),
    open: 0,
    facilitating: 0,
    isPreparing: false,
    preparing: 0,
    turn: createTurn(),
    balanceWei: undefined,
    poor: undefined,
    refused: undefined,
    stuck: undefined,
  }
}

/** Why a relayer is paused that another process may use, or that none has yet. */
const notHeld = 'this process does not have its account'

/** Why a relayer sends nothing new; undefined when it does. */
export function pausedBy(relayer: Relayer): string | undefined {
  if (!relayer.isHeld) return notHeld
  const reason = relayer.poor ?? relayer.refused ?? relayer.stuck
  return reason ?? (relayer.next === undefined ? 'not checked yet' : undefined)
}

/**
 * Whether an account takes no new payment, so that another process gets it: others here can send
 * meanwhile.
 */
export function makesRoom(relayer: Relayer, relayers: readonly Relayer[]): boolean {
  return relayer.isLeaving && relayers.some((each) => !each.isLeaving && sells(each))
}

function sells(relayer: Relayer): boolean {
  return !relayer.isReserved && pausedBy(relayer) === undefined
}

/** Whether a network can settle: it answers, and one of its relayers sends. */
export function isReady({ health, relayers }: Pick<ChainState, 'health' | 'relayers'>): boolean {
  return health.ready && relayers.some(sells)
}

/**
 * Signs for a nonce without reserving it. Sign, `occupy` and write in one turn of the relayer, and
 * `vacate` when the write fails, so that it leaves no gap.
 */
export function sign(
  { now, network }: Pick<Context, 'now'> & Pick<ChainState, 'network'>,
  { address, privateKey }: Relayer,
  payload: Payload,
  { nonce, maxFeeWei, maxTipWei }: { nonce: number } & Fees,
): TransactionRow {
  const { kind, product, to, gasLimit } = payload
  const price = { maxFeeWei, maxTipWei }
  const { hash, raw } = Transaction.sign(
    { chainId: network.chainId, nonce, ...price, ...payload },
    privateKey,
  )
  const at = now()
  return {
    hash,
    network: network.id,
    relayer: address,
    nonce,
    kind,
    product,
    to,
    raw,
    gasLimit,
    ...price,
    // Written before the bytes are sent, which happens as soon as the row is on the disk.
    state: 'sent',
    createdAt: at,
    firstSentAt: at,
    blockNumber: null,
  }
}

/** The fees of a transaction that is signed now. */
export function feesNow({ head, network }: ChainState): Fees {
  return fees(head, network.feeCapWei)
}

/** The nonce of the next transaction; undefined until the chain was read. */
export function freeNonce(relayer: Relayer): number | undefined {
  while (relayer.next !== undefined && relayer.slots.has(relayer.next)) relayer.next++
  return relayer.next
}

/** Adds a slot to its relayer. Call it before the slot is written, so that budgets count it. */
export function occupy(slot: Slot): void {
  const { relayer, nonce } = slot
  relayer.slots.set(nonce, slot)
  countOpen(slot, 1)
  relayer.next = Math.max(relayer.next ?? 0, nonce + 1)
}

/** Removes a slot that was not written. Call in the turn that occupied it. */
export function vacate(slot: Slot): void {
  const { relayer, nonce } = slot
  relayer.slots.delete(nonce)
  countOpen(slot, -1)
  if (relayer.next === nonce + 1) relayer.next = nonce
}

/** Counts a slot among those that wait for a block, or no longer. */
export function countOpen({ relayer, transactions: [first] }: Slot, by: 1 | -1): void {
  relayer.open += by
  if (first?.product === 'facilitator') relayer.facilitating += by
}

/**
 * Skips account nonces that other programs used. Never rejects: the next health check repeats it.
 */
export async function synchronize(chain: ChainState, relayer: Relayer): Promise<void> {
  try {
    const count = await readCount(chain, relayer, 'pending')
    relayer.next = Math.max(relayer.next ?? 0, count)
  } catch {
    // The next transaction meets the same nonce and is signed again.
  }
}

/** A transaction that only uses its nonce up. */
export function cancellation({ address }: Relayer): Payload {
  return {
    kind: 'cancel',
    product: 'gateway',
    to: address,
    data: '0x',
    valueWei: 0n,
    // Chains that include L1 data in gas need more than 21,000.
    gasLimit: 100_000n,
  }
}

/** A node's answer to the bytes. Only a receipt shows that they are included. */
export type NodeReply = {
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
  receipt?: Receipt
  /** Why, as text without secrets. */
  reason?: string
  /** Whether the node rejected the transaction for its fees. */
  isFee?: true
  /** Whether the call waited for the inclusion of the bytes. */
  waited?: boolean
}

/** Longest wait (ms) inside eth_sendRawTransactionSync before receipts are polled as well. */
const graceMs = 3_000
/** Nodes keep such a call open for 20 s by default. */
const syncTimeoutMs = 30_000

/** `isFirst`: wait for the receipt in the same call where the node can. Never rejects. */
export async function send(
  { client, head, abilities }: ChainState,
  raw: Hex,
  isFirst: boolean,
): Promise<NodeReply> {
  if (isFirst && abilities.hasSync) {
    try {
      const timeoutMs = syncTimeoutMs
      const sending = client.call('eth_sendRawTransactionSync', [raw], { timeoutMs })
      // The call may fail after the wait for it is over.
      sending.catch(() => undefined)
      const answer = await within(sending, Math.max(graceMs, head.blockTimeMs * 3))
      const receipt = parse(answer)
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
