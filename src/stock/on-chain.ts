import type { Hex } from 'viem'
import type { Order } from '../../db/Order'
import type { Payment } from '../../db/Payment'
import { type Node, RpcError } from '../chain/client'
import * as Logs from '../chain/logs'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import * as Address from '../protocol/Address'
import type * as Network from '../protocol/Network'
import type { Context } from './context'
import { nonceOf, refundId, swapId } from './Order'

/** What the chain shows now of the transactions of an order. */

/** Blocks searched before a refund that paid nothing; nodes accept no larger range. */
const searchedBlocks = 5_000n

type Shown = Pick<Receipt.Receipt, 'logs'>

/**
 * Whether this desk was paid. Another desk account, whose key or network the operator has replaced,
 * holds the money of its orders. The money of this one belongs to other orders.
 */
export function isOurs(
  { settlement, stock }: Pick<Context, 'settlement' | 'stock'>,
  { transfer }: Payment,
): boolean {
  return transfer.network === stock.network && Address.equal(transfer.payee, settlement.desk)
}

/** Shares that a successful swap brought to the recipient of its order. */
export function deliveredBy({ token, pool, recipient }: Order, { logs }: Shown): bigint {
  return sum(Token.transfersOf(logs, { token, from: pool, to: recipient }))
}

/** Amount that a successful swap returned to the payer, because the pool did not take it. */
export function returnedBy({ stock, asset }: Context, { payer }: Order, { logs }: Shown): bigint {
  return sum(Token.transfersOf(logs, { token: asset.address, from: stock.router, to: payer }))
}

/** Whether a successful refund has paid the whole amount to the payer of record. */
export async function isRefundedBy(
  { settlement, asset }: Context,
  order: Order,
  { logs }: Shown,
): Promise<boolean> {
  const from = (await settlement.findById(order.paymentId))?.transfer.payee
  if (from === undefined) throw new Error(`no payment ${order.paymentId}`)
  const terms = { token: asset.address, from, to: order.payer }
  return Token.transfersOf(logs, terms).includes(order.totalAtomic)
}

/**
 * The logs of a successful transaction, as a node shows them now; none when it shows no such
 * receipt. The stored logs may come from a node that had not indexed it. Throws RpcFault or
 * RpcError.
 */
export async function askAgain(
  context: Context,
  { network }: Order,
  transaction: Hex,
): Promise<Shown> {
  return (await receiptOf(context, network, transaction)) ?? { logs: [] }
}

/**
 * Whether resuming a held order would have an effect although its transactions are as before.
 * Throws RpcFault or RpcError.
 */
export async function isNews(context: Context, order: Order): Promise<boolean> {
  const { settlement } = context
  switch (order.heldReason) {
    case 'delivery-not-found': {
      const swap = await settlement.job(swapId(order))
      return (
        swap !== undefined &&
        deliveredBy(order, await askAgain(context, order, swap.transaction)) > 0n
      )
    }
    case 'refund-not-found': {
      const refund = await settlement.job(refundId(order))
      if (refund === undefined) return false
      const again = await askAgain(context, order, refund.transaction)
      if (await isRefundedBy(context, order, again)) return true
      return (await findRefund(context, order)) !== undefined
    }
    case 'settlement-disputed': {
      const payment = await settlement.findById(order.paymentId)
      if (payment?.state !== 'confirmed') return payment !== undefined
      return (await settlement.observationOf(payment)) === 'shown'
    }
    case 'settlement-lost':
      return (await settlement.findById(order.paymentId))?.state !== 'expired'
    default:
      return true
  }
}

/**
 * The external transaction that paid a refund, when ours had no effect: any account can send a
 * refund once its signature is public. Undefined when the nonce is unused or no node shows its use.
 * Throws RpcFault.
 */
export async function findRefund(context: Context, order: Order): Promise<Hex | undefined> {
  const { settlement, asset } = context
  const { network } = order
  const { desk } = settlement
  const nonce = nonceOf(order)
  const state = Token.authorizationState(asset.address, desk, nonce)
  const [used] = (await settlement.read(network, [state])).results
  if (used === undefined || Token.toUint(used) !== 1n) return undefined
  const topics = [Token.authorizationUsedTopic, Token.addressTopic(desk), nonce]
  const last = (await settlement.job(refundId(order)))?.blockNumber ?? 0n
  const from = last < searchedBlocks ? 0n : last - searchedBlocks
  const node: Node = {
    host: network,
    call: (method, params) => settlement.rpc(network, method, params),
  }
  // It came before ours, which then found the nonce used; or after ours, which failed otherwise.
  for (const [range, first] of [
    [{ from, to: last }, 'newest'],
    [{ from: last + 1n, to: undefined }, 'oldest'],
  ] as const) {
    try {
      const query = { address: asset.address, topics, range, first }
      for await (const logs of Logs.search(node, context.logSpans, query)) {
        for (const { transactionHash: hash } of logs)
          if (await isRefundedBy(context, order, await askAgain(context, order, hash))) return hash
      }
    } catch (error) {
      // The node refuses this range: an operator must decide.
      if (!(error instanceof RpcError)) throw error
    }
  }
  return undefined
}

/** Whether a job is included and failed, or can never be included. */
export async function isWithoutEffect({ settlement }: Context, id: string): Promise<boolean> {
  const state = (await settlement.job(id))?.state
  return state === 'failed' || state === 'replaced'
}

/** Whether no reorganisation can include a job that ended without effect. */
export async function isOver(context: Context, id: string): Promise<boolean> {
  const { settlement, stock, endedAt, reorgDepth } = context
  const job = await settlement.job(id)
  if (job?.state !== 'failed' && job?.state !== 'replaced') return false
  const answer = await settlement.rpc(stock.network, 'eth_blockNumber', [])
  if (!Receipt.isHex(answer)) return false
  const head = BigInt(answer)
  const since = job?.blockNumber ?? endedAt.get(id) ?? head
  endedAt.set(id, since)
  return head >= since + BigInt(reorgDepth)
}

function sum(amounts: readonly bigint[]): bigint {
  return amounts.reduce((total, each) => total + each, 0n)
}

/** A receipt of success that a node shows now. */
async function receiptOf(
  { settlement }: Context,
  network: Network.Id,
  hash: Hex,
): Promise<Receipt.Receipt | undefined> {
  const answer = await settlement.rpc(network, 'eth_getTransactionReceipt', [hash])
  const receipt = Receipt.parse(answer)
  return receipt?.hash === hash && receipt.success ? receipt : undefined
}
