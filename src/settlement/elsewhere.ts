import type { Hex } from 'viem'
import * as Multicall from '../chain/multicall'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import * as Transfer from '../protocol/Transfer'
import type { Context, Rail } from './context'
import type { Assignment, Evidence } from './store'

/** A settlement of this very authorization by somebody else's transaction. */
export type Found = Assignment & { timestamp: bigint }

/**
 * Blocks that are searched: the nodes of the fastest chain keep about this many, and an
 * authorization lives for 360 s.
 */
const searchedBlocks = 5_000n

/**
 * How far a chain's clock may be behind ours: timestamps are whole seconds, a block carries the
 * second in which its slot began, sequencers and hosts drift. A buyer whose money is on the chain
 * must not be refused for that.
 */
const clockToleranceSeconds = 5n

/**
 * Looks for a transaction in which this authorization moved this money. A used nonce alone proves
 * nothing: the payer may have cancelled it, or signed another transfer with the same nonce. So for
 * EIP-3009 the AuthorizationUsed log must stand next to the Transfer, and for Permit2 the calldata
 * must carry payer, nonce, payee and amount. `fromBlock` undefined: up to the newest block.
 * Undefined when there is none. Throws RpcFault or RpcError when it cannot be known.
 *
 * `isOursAlone`: the payee is an account of ours that nothing else pays. Then a Transfer of this
 * money that nobody else claims is enough, whatever contract it went through.
 */
export async function find(
  context: Context,
  rail: Rail,
  transfer: Transfer.Transfer,
  fromBlock: bigint | undefined,
  isOursAlone = false,
): Promise<Found | undefined> {
  const range = await rangeOf(rail, fromBlock)
  const isPermit = transfer.method === 'permit2'
  const topics = isPermit
    ? [Token.transferTopic, Token.addressTopic(transfer.payer), Token.addressTopic(transfer.payee)]
    : [Token.authorizationUsedTopic, Token.addressTopic(transfer.payer), transfer.nonce]
  const answer = await rail.client.call('eth_getLogs', [
    { address: transfer.asset, topics, ...range },
  ])
  const logs = Array.isArray(answer) ? answer.map(Receipt.parseLog) : []
  const seen = new Set<Hex>()
  for (const log of logs) {
    if (!log || seen.has(log.transactionHash)) continue
    if (isPermit && !Token.isTransfer(log, transfer)) continue
    seen.add(log.transactionHash)
    const hash = log.transactionHash
    // Our own transactions have been looked through for what they were sent for.
    if (isOursAlone && context.store.membersOf(hash).length > 0) continue
    if (isPermit && !isOursAlone && !(await carries(rail, transfer, hash))) continue
    const found = await inspect(context, rail, transfer, hash)
    if (found) return found
  }
  return undefined
}

/**
 * Whether a settlement by somebody else pays for this request. Yes when the credential can only be
 * meant for us. Otherwise the money may have bought something elsewhere before it was shown to us:
 * our simulation saw the nonce unused, but a node that lags behind sees old state, so the settlement
 * must also lie above the newest block that we knew when the request came, and by the chain's own
 * clock not before the request, as exactly as two clocks can be compared.
 */
export function counts(found: Found, bound: boolean, evidence: Evidence | undefined): boolean {
  if (bound) return true
  if (!evidence) return false
  const receivedSecond = BigInt(Math.floor(evidence.receivedAt / 1000))
  return (
    found.blockNumber > evidence.knownBlock &&
    found.timestamp + clockToleranceSeconds >= receivedSecond
  )
}

async function inspect(
  context: Context,
  rail: Rail,
  transfer: Transfer.Transfer,
  hash: Hex,
): Promise<Found | undefined> {
  const receipt = Receipt.parse(await rail.client.call('eth_getTransactionReceipt', [hash]))
  if (!receipt?.success) return undefined
  const { store } = context
  const log = receipt.logs.find(
    (each, position) =>
      Token.isTransfer(each, transfer) &&
      (transfer.method === 'permit2' || isUseOf(receipt.logs[position - 1], transfer)) &&
      store.findByLog(rail.network.id, hash, each.index) === undefined,
  )
  if (!log) return undefined
  const block = Receipt.parseBlock(
    await rail.client.call('eth_getBlockByNumber', [toHex(receipt.blockNumber), false]),
  )
  if (!block) return undefined
  const { blockNumber } = receipt
  return { transaction: hash, logIndex: log.index, blockNumber, timestamp: block.timestamp }
}

/** Whether a log is the token's AuthorizationUsed of this payer and nonce. */
function isUseOf(log: Receipt.Log | undefined, transfer: Transfer.Transfer): boolean {
  return (
    log !== undefined &&
    log.address.toLowerCase() === transfer.asset.toLowerCase() &&
    log.topics[0] === Token.authorizationUsedTopic &&
    log.topics[1] === Token.addressTopic(transfer.payer) &&
    log.topics[2] === transfer.nonce
  )
}

/** Whether a transaction's calldata, direct or inside aggregate3, is the settling call of this money. */
async function carries(rail: Rail, transfer: Transfer.Transfer, hash: Hex): Promise<boolean> {
  const answer = await rail.client.call('eth_getTransactionByHash', [hash])
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

async function rangeOf(rail: Rail, fromBlock: bigint | undefined) {
  if (fromBlock !== undefined) {
    const last = fromBlock + searchedBlocks
    // A node may refuse a range that ends above its newest block.
    const toBlock = last > rail.head.number ? 'latest' : toHex(last)
    return { fromBlock: toHex(fromBlock), toBlock }
  }
  const answer = await rail.client.call('eth_blockNumber', [])
  const newest = Receipt.isHex(answer) ? BigInt(answer) : rail.head.number
  const first = newest > searchedBlocks ? newest - searchedBlocks : 0n
  return { fromBlock: toHex(first), toBlock: 'latest' }
}

function toHex(value: bigint): Hex {
  return `0x${value.toString(16)}`
}
