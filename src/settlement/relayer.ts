import type { Address, Hex } from 'viem'
import type { GasProduct, TransactionRow } from '../../db/schema'
import { type Node, RpcFault } from '../chain/client'
import { fees, pollMs } from '../chain/head'
import * as Receipt from '../chain/receipt'
import * as Transaction from '../chain/transaction'
import * as Crypto from '../protocol/Crypto'
import type { ChainState, Context, Relayer, Slot } from './context'

export type Payload = {
  kind: TransactionRow['kind']
  product: GasProduct
  to: Address
  data: Hex
  /** `data` creates a contract, at `to`. */
  isCreation?: boolean
  valueWei: bigint
  gasLimit: bigint
}

/**
 * Transactions of one account that may wait for a block: nodes keep a limited number of each (16 in
 * geth when its pool is full), and drop what is above first.
 */
export const openMax = 16

/** `isReserved`: for the jobs that name it. */
export function createRelayer(privateKey: Uint8Array, isReserved: boolean): Relayer {
  return {
    address: Crypto.addressOf(privateKey),
    privateKey,
    isReserved,
    next: undefined,
    floor: 0,
    lag: undefined,
    slots: new Map(),
    open: 0,
    isPreparing: false,
    balanceWei: undefined,
    poor: undefined,
    refused: undefined,
    stuck: undefined,
  }
}

/** Why a relayer sends nothing new; undefined when it does. */
export function pausedBy(relayer: Relayer): string | undefined {
  const reason = relayer.poor ?? relayer.refused ?? relayer.stuck
  return reason ?? (relayer.next === undefined ? 'not checked yet' : undefined)
}

/** Whether a network can settle: it answers, and one of its relayers sends. */
export function isReady({ health, relayers }: Pick<ChainState, 'health' | 'relayers'>): boolean {
  return (
    health.ready &&
    relayers.some((relayer) => !relayer.isReserved && pausedBy(relayer) === undefined)
  )
}

/**
 * Signs for a nonce. Nothing is reserved by it: store the row and call `occupy` before anything
 * else runs, so that a failed write leaves no gap.
 */
export function sign(
  context: Context,
  chain: ChainState,
  relayer: Relayer,
  payload: Payload,
  nonce: number,
  price: { maxFeeWei: bigint; maxTipWei: bigint } = fees(chain.head, chain.network.feeCapWei),
): TransactionRow {
  const { network } = chain
  const { kind, product, to, gasLimit } = payload
  const { hash, raw } = Transaction.sign(
    { chainId: network.chainId, nonce, ...price, ...payload },
    relayer.privateKey,
  )
  const at = context.now()
  return {
    hash,
    network: network.id,
    relayer: relayer.address,
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
export function freeNonce(relayer: Relayer): number | undefined {
  while (relayer.next !== undefined && relayer.slots.has(relayer.next)) relayer.next++
  return relayer.next
}

/** Takes a stored slot into the relayer. */
export function occupy(relayer: Relayer, slot: Slot): void {
  relayer.slots.set(slot.nonce, slot)
  relayer.open++
  relayer.next = Math.max(relayer.next ?? 0, slot.nonce + 1)
}

/**
 * Waits until a receipt has the configured confirmations. Undefined when it vanished: then the
 * transaction must be driven again.
 */
export async function confirmations(
  context: Context,
  chain: ChainState,
  receipt: Receipt.Receipt,
): Promise<Receipt.Receipt | undefined> {
  const needed = BigInt(chain.network.confirmations) - 1n
  if (needed <= 0n) return receipt
  while (!context.signal.aborted) {
    try {
      const number = await chain.client.call('eth_blockNumber', [])
      if (Receipt.isHex(number) && BigInt(number) >= receipt.blockNumber + needed) {
        const again = await readReceipt(chain, receipt.hash)
        if (!again) return undefined
        if (again.blockNumber === receipt.blockNumber) return again
        receipt = again
      }
    } catch {
      // The next look may reach a node.
    }
    await chain.heads.wait(pollMs(chain.head), context.signal)
  }
  return undefined
}

/** Waits until a transaction of somebody else has the configured confirmations. Throws when it vanished. */
export async function assertConfirmed(
  context: Context,
  chain: ChainState,
  hash: Hex,
): Promise<void> {
  if (chain.network.confirmations <= 1) return
  const receipt = await readReceipt(chain, hash)
  if (receipt && (await confirmations(context, chain, receipt))) return
  throw new RpcFault('the settlement is not confirmed yet')
}

/** Skips account nonces that other programs used. Never rejects: the next health check tries again. */
export async function synchronize(chain: ChainState, relayer: Relayer): Promise<void> {
  try {
    const count = await readCount(chain, relayer, 'pending')
    relayer.next = Math.max(relayer.next ?? 0, count)
  } catch {
    // Then the next transaction meets the same nonce and is signed again.
  }
}

/** The node to read from: the URL in use, or a given one. */
type Asked = { client: Pick<Node, 'call'> }

/** The receipt of a hash, if the chain has it. Throws RpcFault or RpcError. */
export async function readReceipt(chain: Asked, hash: Hex): Promise<Receipt.Receipt | undefined> {
  const receipt = Receipt.parse(await chain.client.call('eth_getTransactionReceipt', [hash]))
  // That is not to say that there is none.
  if (receipt && receipt.hash !== hash) throw new RpcFault('a receipt of another transaction')
  return receipt
}

/** The number of included transactions of the relayer. Throws RpcFault or RpcError. */
export async function readCount(
  chain: ChainState,
  { address }: Relayer,
  tag: 'latest' | 'pending',
): Promise<number> {
  const count = await chain.client.call('eth_getTransactionCount', [address, tag])
  if (!Receipt.isHex(count)) throw new RpcFault('not a transaction count')
  return Number(count)
}

/** Number of the newest block that the node has. Throws RpcFault or RpcError. */
export async function readTop(chain: Asked): Promise<bigint> {
  const number = await chain.client.call('eth_blockNumber', [])
  if (!Receipt.isHex(number)) throw new RpcFault('not a block number')
  return BigInt(number)
}

/** A transaction that does nothing but use its nonce up. */
export function cancellation(relayer: Relayer): Payload {
  return {
    kind: 'cancel',
    product: 'gateway',
    to: relayer.address,
    data: '0x',
    valueWei: 0n,
    // Chains that fold L1 data into gas need more than 21,000.
    gasLimit: 100_000n,
  }
}
