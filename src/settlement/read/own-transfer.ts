import type { Address, Hex } from 'viem'
import { type Node, RpcError } from '../../chain/client'
import * as Logs from '../../chain/logs'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import * as Abi from '../../protocol/Abi'
import type * as Network from '../../protocol/Network'
import type { createChainReads } from './reads'

/*
 * Transfers by EIP-3009 that an account of ours has signed. Such a signature is public once it is
 * sent, so any account may send it: the use of its nonce shows whether the money moved.
 */

type Reads = Pick<ReturnType<typeof createChainReads>, 'read' | 'rpc'>

/** Gas limit of such a transfer. */
export const transferGas = 400_000n
/**
 * After this time one that has failed can no longer be sent, so an operator may safely pay by other
 * means. Far longer than low fees can delay a transaction.
 */
export const transferSeconds = 7n * 24n * 3600n

/** The nonce of an account. `around`: a block near which it was used, if it was. */
type Use = { network: Network.Id; asset: Address; account: Address; nonce: Hex; around: bigint }

/** Blocks that are searched before `around`; nodes accept no larger range. */
const searchedBlocks = 5_000n

/**
 * The receipt of a successful transaction, as a node shows it now; undefined when it shows none. A
 * stored receipt may come from a node that had not indexed its logs. Throws RpcFault or RpcError.
 */
export async function readSuccess(
  { rpc }: Pick<Reads, 'rpc'>,
  network: Network.Id,
  hash: Hex,
): Promise<Receipt.Receipt | undefined> {
  const receipt = Receipt.parse(await rpc(network, 'eth_getTransactionReceipt', [hash]))
  return receipt?.hash === hash && receipt.success ? receipt : undefined
}

/** Whether the answer to `authorizationState` says that the nonce is used or cancelled. */
export function isUsed(state: Hex | undefined): boolean {
  return state !== undefined && Abi.uintAt(state.slice(2)) === 1n
}

/**
 * The transaction that used the nonce, of those that `isIt` accepts. Undefined when the nonce is
 * unused or no node shows its use. Throws RpcFault.
 */
export async function findUse(
  reads: Reads,
  spans: Logs.Spans,
  { network, asset, account, nonce, around }: Use,
  isIt: (receipt: Receipt.Receipt) => boolean | Promise<boolean>,
): Promise<Receipt.Receipt | undefined> {
  const state = Token.authorizationState(asset, account, nonce)
  if (!isUsed((await reads.read(network, [state])).results[0])) return undefined
  const topics = [Receipt.authorizationUsedTopic, Receipt.addressTopic(account), nonce]
  const from = around < searchedBlocks ? 0n : around - searchedBlocks
  const node: Node = {
    host: network,
    call: (method, params) => reads.rpc(network, method, params),
  }
  // It came before ours, which then found the nonce used; or after ours, which failed otherwise.
  for (const [range, first] of [
    [{ from, to: around }, 'newest'],
    [{ from: around + 1n, to: undefined }, 'oldest'],
  ] as const) {
    try {
      const query = { address: asset, topics, range, first }
      for await (const logs of Logs.search(node, spans, query)) {
        for (const { transactionHash: hash } of logs) {
          const receipt = await readSuccess(reads, network, hash)
          if (receipt !== undefined && (await isIt(receipt))) return receipt
        }
      }
    } catch (error) {
      // The node refuses this range: an operator must decide.
      if (!(error instanceof RpcError)) throw error
    }
  }
  return undefined
}
