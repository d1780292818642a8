import type { Address, Hex } from 'viem'
import { type Node, RpcError, RpcFault } from '../../chain/client'
import { fees, pollMs } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import type * as Network from '../../protocol/Network'
import { type Transfer, wrapperIn } from '../../protocol/Transfer'
import { type ChainState, type Context, chainOf, type Relayer } from '../state/state'
import { callInOneBlock, isSpentGas, type NodeState, uintOf } from './simulate'

/** What products read from the chains. */
export function createChainReads(context: Pick<Context, 'chains'>) {
  return {
    /**
     * Read-only calls of products in the state of the newest block. Results are in order, undefined
     * for each that failed. Throws RpcFault.
     */
    read: (
      network: Network.Id,
      calls: readonly { to: Address; data: Hex }[],
      options?: { timeoutMs?: number },
    ): Promise<ChainRead> => read(chainOf(context, network), calls, options),
    /**
     * Whether a contract at the address, deployed or as the signature deploys it (ERC-1271, ERC-6492),
     * accepts a signature of a digest now. It may change its mind, so keep no answer. Throws RpcFault.
     */
    acceptsSignature: (network: Network.Id, signed: SignedDigest): Promise<boolean> =>
      acceptsSignature(chainOf(context, network), signed),
    /** One JSON-RPC request through the network's client. Throws RpcFault or RpcError. */
    rpc: (network: Network.Id, method: string, params: readonly unknown[]): Promise<unknown> =>
      chainOf(context, network).client.call(method, params),
    /**
     * Fees of a transaction that would be signed now, the newest base fee, and the suggested tip.
     * Wei.
     */
    fees(network: Network.Id) {
      const { head, network: config } = chainOf(context, network)
      const { baseFeeWei, suggestedTipWei } = head
      return { ...fees(head, config.feeCapWei), baseFeeWei, suggestedTipWei }
    },
  }
}

export type SignedDigest = { wallet: Address; digest: Uint8Array; signature: Hex }

/** Gas that the code of a stranger may use for a signature, with the deployment of its wallet. */
const signatureGas = 3_000_000n
const signatureTimeoutMs = 5_000

export async function acceptsSignature(
  { client }: ChainState,
  { wallet, digest, signature }: SignedDigest,
): Promise<boolean> {
  const wrapper = wrapperIn(signature)
  const ask = Token.isValidSignature(wallet, digest, wrapper?.signature ?? signature)
  // The deployment fails where the wallet is deployed already.
  const calls = wrapper === undefined ? [ask] : [{ to: wrapper.factory, data: wrapper.data }, ask]
  const { to, data } = Multicall.aggregate(calls)
  const request = { to, data, gas: `0x${signatureGas.toString(16)}` }
  try {
    const options = { timeoutMs: signatureTimeoutMs }
    const answer = await client.call('eth_call', [request, 'latest'], options)
    const results = Multicall.parseResults(answer, calls.length)
    if (results === undefined) throw new RpcFault('not an answer of Multicall3')
    const last = results.at(-1)
    return last?.success === true && Token.isMagic(last.data)
  } catch (error) {
    // The code of the stranger has used all gas.
    if (isSpentGas(error)) return false
    throw error instanceof RpcError ? refusedCall(error) : error
  }
}

type ChainRead = { blockNumber: bigint; results: readonly (Hex | undefined)[] }

/** Sends all calls in one eth_call. Throws RpcFault, also when a node refuses the whole call. */
export async function read(
  { client }: ChainState,
  calls: readonly { to: Address; data: Hex }[],
  options: { timeoutMs?: number } = {},
): Promise<ChainRead> {
  const { to, data } = Multicall.aggregate([...Multicall.blockNumberCalls, ...calls])
  const count = calls.length + Multicall.blockNumberCalls.length
  const answer = await client
    .call('eth_call', [{ to, data }, 'latest'], options)
    .catch((error: unknown) => {
      throw error instanceof RpcError ? refusedCall(error) : error
    })
  const results = Multicall.parseResults(answer, count)
  const blockNumber = results && Multicall.blockNumberOf(results)
  if (blockNumber === undefined) throw new RpcFault('not an answer of Multicall3')
  return {
    blockNumber,
    results: (results ?? [])
      .slice(Multicall.blockNumberCalls.length)
      .map((result) => (result.success ? result.data : undefined)),
  }
}

function refusedCall(error: RpcError): RpcFault {
  return new RpcFault(`the node refuses the call (${error.code})`, { cause: error })
}

/** The node to read from: the URL in use, or a given one. */
type From = { client: Pick<Node, 'call'> }

/** The receipt of a hash, if the chain has it. Throws RpcFault or RpcError. */
export async function readReceipt(
  { client }: From,
  hash: Hex,
): Promise<Receipt.Receipt | undefined> {
  const receipt = Receipt.parse(await client.call('eth_getTransactionReceipt', [hash]))
  // Another receipt does not show that there is none.
  if (receipt && receipt.hash !== hash) throw new RpcFault('a receipt of another transaction')
  return receipt
}

/** The number of included transactions of the relayer. Throws RpcFault or RpcError. */
export async function readCount(
  { client }: From,
  { address }: Relayer,
  tag: 'latest' | 'pending',
): Promise<number> {
  const count = await client.call('eth_getTransactionCount', [address, tag])
  if (!Receipt.isHex(count)) throw new RpcFault('not a transaction count')
  return Number(count)
}

/** Number of the newest block that the node has. Throws RpcFault or RpcError. */
export async function readTop({ client }: From): Promise<bigint> {
  const number = await client.call('eth_blockNumber', [])
  if (!Receipt.isHex(number)) throw new RpcFault('not a block number')
  return BigInt(number)
}

/**
 * Whether the money's nonce is used, and the time of the same block. Read atomically, so that
 * "unused after the deadline" proves that the money did not move on this fork. `isFinal`: no fork that
 * a reorganisation can bring has a block in which it could still move. Throws RpcFault or RpcError.
 */
export async function readMoney(
  chain: NodeState & Pick<ChainState, 'relayers'>,
  transfer: Transfer,
): Promise<{ used: boolean; timestamp: bigint; isFinal: boolean }> {
  const results = await callInOneBlock(
    chain,
    chain.relayers[0]?.address,
    [Token.nonceCall(transfer), Multicall.timestampCall],
    { gas: 200_000n },
  )
  const [state, time] = results ?? []
  const used = Token.isNonceUsed(transfer, uintOf(state))
  const timestamp = uintOf(time)
  if (used === undefined || timestamp === undefined) {
    throw new RpcFault('the state of the nonce cannot be read')
  }
  const { validBefore } = transfer
  return { used, timestamp, isFinal: timestamp > validBefore && (await isDeep(chain, validBefore)) }
}

/** Whether a block after that time (unix seconds) is as deep as `reorg_depth`. */
async function isDeep(chain: NodeState, seconds: bigint): Promise<boolean> {
  const number = (await readTop(chain)) - BigInt(chain.network.reorgDepth)
  if (number < 0n) return false
  const answer = await chain.client.call('eth_getBlockByNumber', [
    `0x${number.toString(16)}`,
    false,
  ])
  const block = Receipt.parseBlock(answer)
  return block !== undefined && block.timestamp > seconds
}

/**
 * Waits until a receipt has the configured confirmations. Undefined when it vanished: then the
 * transaction must be driven again.
 */
export async function confirmations(
  { progress: { signal } }: Context,
  chain: ChainState,
  receipt: Receipt.Receipt,
): Promise<Receipt.Receipt | undefined> {
  const needed = BigInt(chain.network.confirmations) - 1n
  while (!signal.aborted) {
    try {
      const number = await chain.client.call('eth_blockNumber', [])
      if (Receipt.isHex(number) && BigInt(number) >= receipt.blockNumber + needed) {
        const again = await readReceipt(chain, receipt.hash)
        if (!again) return undefined
        if (again.blockNumber === receipt.blockNumber) return again
        receipt = again
      }
    } catch {
      // Ignore the fault: the next poll may reach a node.
    }
    await chain.heads.wait(pollMs(chain.head), signal)
  }
  return undefined
}

/** Waits until an external transaction has the configured confirmations. Throws when it vanished. */
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
