import type { Hex } from 'viem'
import { RpcError } from '../chain/client'
import { parse, type Receipt } from '../chain/receipt'
import { type ChainState, within } from './context'

/** What a node said to the bytes. Only a receipt says that they are included. */
export type Sent = {
  kind:
    | 'accepted'
    /** Nothing is known: they may be on their way. */
    | 'unknown'
    /** The account nonce is used: by these bytes or by others. */
    | 'low'
    /** An earlier nonce has not arrived yet. */
    | 'early'
    /** The node will not take them as things are. */
    | 'rejected'
  receipt?: Receipt
  /** Safe to show. */
  reason?: string
  /** Whether the node rejected the transaction for its fees. */
  isFee?: true
  /** The node was given time to include them. */
  waited?: boolean
}

/** Longest wait inside eth_sendRawTransactionSync before receipts are asked for beside it. */
const graceMs = 3_000
/** Nodes hold such a call for 20 s by default. */
const syncTimeoutMs = 30_000

/** `first`: wait for the receipt in the same call where the node can. Never rejects. */
export async function send(chain: ChainState, raw: Hex, first: boolean): Promise<Sent> {
  const { client } = chain
  if (first && chain.hasSync) {
    try {
      const timeoutMs = syncTimeoutMs
      const sending = client.call('eth_sendRawTransactionSync', [raw], { timeoutMs })
      // It may fail after nobody listens any more.
      sending.catch(() => undefined)
      const answer = await within(sending, Math.max(graceMs, chain.head.blockTimeMs * 3))
      const receipt = parse(answer)
      return receipt ? { kind: 'accepted', receipt } : { kind: 'accepted', waited: true }
    } catch (error) {
      if (!isUnknownMethod(error)) return classify(error)
      chain.hasSync = false
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
function classify(error: unknown): Sent {
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
    return { kind: 'rejected', reason: 'the relayer cannot pay for gas' }
  }
  if (/underpriced|fee too low|base fee|feecap|fee cap|max fee|tip/i.test(text)) {
    return { kind: 'rejected', reason: 'the node refuses the fees of the relayer', isFee: true }
  }
  if (/gas/i.test(text)) return { kind: 'rejected', reason: 'the node refuses the gas limit' }
  return { kind: 'unknown' }
}
