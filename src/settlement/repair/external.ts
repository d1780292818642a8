import type { Hex } from 'viem'
import type { Assignment } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import type { Arrival } from '../../../db/payment-reads'
import { type Node, RpcFault } from '../../chain/client'
import * as Clock from '../../chain/clock'
import * as Logs from '../../chain/logs'
import * as Multicall from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as Transfer from '../../protocol/Transfer'
import type { ChainState, Context } from '../state/state'

/** A settlement of exactly this authorization by a transaction that is not ours. */
export type Found = Assignment & { timestamp: bigint }

/**
 * Blocks that are searched. Nodes of the fastest chain keep about this many, and an authorization
 * is valid for 360 s.
 */
const searchedBlocks = 5_000n

/**
 * How far a chain's clock may be behind ours. Timestamps are whole seconds, a block has the second
 * in which its slot started, and sequencers and hosts drift. A buyer whose money is on the chain
 * must not be refused for that.
 */
const clockToleranceMs = 5_000
/** A clock that is further ahead is not corrected. Then nothing is sold. */
const aheadMaxMs = 60_000

/** The range and the node of a search. */
type Search = {
  /** Undefined: the newest blocks, the last one first. */
  fromBlock?: bigint | undefined
  /**
   * The payee is an account of this service that only its orders pay. Then any unclaimed Transfer
   * of this money is enough, through any contract.
   */
  isOursAlone?: boolean
  /** One URL; by default the one that is in use. */
  node?: Node
}

/**
 * Finds a transaction in which this authorization moved this money. A used nonce alone is no proof:
 * the payer may have cancelled it, or signed another transfer with the same nonce. For EIP-3009 the
 * AuthorizationUsed log must be next to the Transfer. For Permit2 the calldata must contain payer,
 * nonce, payee and amount. Undefined when there is none. Throws RpcFault or RpcError when that
 * cannot be determined.
 */
export async function find(
  context: Context,
  chain: ChainState,
  transfer: Transfer.Transfer,
  { fromBlock, isOursAlone = false, node = { host: '', call: chain.client.call } }: Search = {},
): Promise<Found | undefined> {
  const isPermit = transfer.method === 'permit2'
  const topics = isPermit
    ? [
        Receipt.transferTopic,
        Receipt.addressTopic(transfer.payer),
        Receipt.addressTopic(transfer.payee),
      ]
    : [Receipt.authorizationUsedTopic, Receipt.addressTopic(transfer.payer), transfer.nonce]
  const query = {
    address: transfer.asset,
    topics,
    range: await rangeOf(chain, node, fromBlock),
    first: fromBlock === undefined ? ('newest' as const) : ('oldest' as const),
  }
  const seen = new Set<Hex>()
  for await (const logs of Logs.search(node, chain.abilities.logSpans, query)) {
    for (const log of logs) {
      if (seen.has(log.transactionHash)) continue
      if (isPermit && !Receipt.isTransfer(log, transfer)) continue
      seen.add(log.transactionHash)
      const hash = log.transactionHash
      // Our own transactions were searched before, for their payments.
      if (isOursAlone && (await context.ledger.transactions.hasPayment(hash))) continue
      if (isPermit && !isOursAlone && !(await carries(node, transfer, hash))) continue
      const found = await inspect(context.ledger, node, transfer, hash)
      if (found) return found
    }
  }
  return undefined
}

/**
 * Whether an external settlement pays for this request. The desk's account holds the money of its
 * orders, so the desk swaps or refunds it at any time. The facilitator accepts only payees of this
 * configuration: for other payees another facilitator may have reported success to another server.
 * With exclusive payouts, a credential that is bound to this service is enough. Otherwise the money
 * may have bought something at another service before this request. Our simulation read the nonce
 * as unused, but a lagging node returns old state. So the settlement must also lie above the newest
 * block known when the request arrived. By the chain's clock it must not lie before the request,
 * within the accuracy of the two clocks.
 */
export function counts(
  context: Context,
  chain: ChainState,
  { transfer, purpose }: Pick<Payment, 'transfer' | 'purpose'>,
  { found, arrival }: { found: Found; arrival: Arrival | undefined },
): boolean {
  const { product, bound } = purpose
  if (product === 'desk') return true
  if (product === 'facilitator' && !context.policy.isOwnPayee(transfer.payee)) return false
  if (bound && context.policy.payoutExclusive()) return true
  if (!arrival) return false
  const aheadMs = Math.min(aheadMaxMs, Clock.mayBeAheadMs(context, chain))
  return isAfter(found, arrival, arrival.receivedAt - clockToleranceMs - aheadMs)
}

/**
 * Whether a settlement lies after the time at which a credential was presented, in whole seconds of
 * the chain. Only the clocks prove that it was unspent then, so there is no tolerance.
 */
export function isSince(
  context: Context,
  chain: ChainState,
  found: Found,
  arrival: Arrival,
): boolean {
  const provenMs = Math.max(0, Clock.skewOf(context, chain))
  return isAfter(found, arrival, arrival.receivedAt + 1_000 - provenMs)
}

function isAfter(found: Found, { knownBlock }: Arrival, earliestMs: number): boolean {
  return found.blockNumber > knownBlock && found.timestamp >= BigInt(Math.floor(earliestMs / 1000))
}

/** Whether one of our accounts sent it: then this database or another one of ours recorded it. */
export async function isSentByUs(chain: ChainState, { transaction }: Found): Promise<boolean> {
  const answer = await chain.client.call('eth_getTransactionByHash', [transaction])
  const from = Receipt.senderOf(answer)
  if (from === undefined) throw new RpcFault('the settlement is not shown')
  return chain.relayers.some(({ address }) => address.toLowerCase() === from.toLowerCase())
}

async function inspect(
  { payments }: Context['ledger'],
  node: Node,
  transfer: Transfer.Transfer,
  hash: Hex,
): Promise<Found | undefined> {
  const receipt = Receipt.parse(await node.call('eth_getTransactionReceipt', [hash]))
  if (!receipt?.success) return undefined
  const taken = await payments.takenLogs(transfer.network, hash)
  const log = receipt.logs.find(
    (each, position) =>
      Receipt.isTransfer(each, transfer) &&
      (transfer.method === 'permit2' || isUseOf(receipt.logs[position - 1], transfer)) &&
      !taken.has(each.index),
  )
  if (!log) return undefined
  const block = Receipt.parseBlock(
    await node.call('eth_getBlockByNumber', [toHex(receipt.blockNumber), false]),
  )
  if (!block) return undefined
  const { blockNumber } = receipt
  return { transaction: hash, logIndex: log.index, blockNumber, timestamp: block.timestamp }
}

/** Whether a log is the token's AuthorizationUsed of this payer and nonce. */
function isUseOf(log: Receipt.ReceiptLog | undefined, transfer: Transfer.Transfer): boolean {
  return (
    log !== undefined &&
    log.address.toLowerCase() === transfer.asset.toLowerCase() &&
    log.topics[0] === Receipt.authorizationUsedTopic &&
    log.topics[1] === Receipt.addressTopic(transfer.payer) &&
    log.topics[2] === transfer.nonce
  )
}

/** Whether a transaction's calldata, direct or inside aggregate3, is the settling call of this money. */
async function carries(node: Node, transfer: Transfer.Transfer, hash: Hex): Promise<boolean> {
  const answer = await node.call('eth_getTransactionByHash', [hash])
  const transaction = Receipt.parseTransaction(answer)
  if (!transaction) return false
  const calls = Multicall.parseCalls(transaction.to, transaction.data) ?? [transaction]
  return calls.some(({ to, data }) => {
    const call = Transfer.parseCall(to, data)
    return (
      call !== undefined &&
      call.method === transfer.method &&
      call.asset === transfer.asset &&
      call.payer === transfer.payer &&
      call.nonce === transfer.nonce &&
      call.payee === transfer.payee &&
      call.amountAtomic === transfer.amountAtomic
    )
  })
}

async function rangeOf(
  { head }: ChainState,
  node: Node,
  fromBlock: bigint | undefined,
): Promise<Logs.Range> {
  if (fromBlock !== undefined) {
    const last = fromBlock + searchedBlocks
    // A node may refuse a range that ends above its newest block.
    return { from: fromBlock, to: last > head.number ? undefined : last }
  }
  const answer = await node.call('eth_blockNumber', [])
  const newest = Receipt.isHex(answer) ? BigInt(answer) : head.number
  return { from: newest > searchedBlocks ? newest - searchedBlocks : 0n, to: undefined }
}

function toHex(value: bigint): Hex {
  return `0x${value.toString(16)}`
}
