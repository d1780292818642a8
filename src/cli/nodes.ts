import type { Address, Hex } from 'viem'
import { type Client, createClient, RpcError, RpcFault } from '../chain/client'
import * as Permit2 from '../chain/permit2'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import * as Abi from '../protocol/Abi'
import type { TransferMethod } from '../protocol/Asset'

/** Asks nodes, then ends their connections. Undefined when none of them has an answer. */
export async function askNodes<Answer>(
  urls: readonly string[],
  question: (client: Client) => Promise<Answer>,
  timeoutMs = 10_000,
): Promise<Answer | undefined> {
  const client = createClient({ urls, timeoutMs, log: () => undefined })
  try {
    return await question(client)
  } catch (error) {
    if (error instanceof RpcError || error instanceof RpcFault) return undefined
    throw error
  } finally {
    client.close()
  }
}

/** Whether the nonce of a signed transfer is used in a block, which is a number in hex or a name. */
export async function isNonceUsed(
  client: Client,
  { method, asset, payer, nonce }: SignedTransfer,
  block: string,
): Promise<boolean | undefined> {
  const call =
    method === 'eip3009'
      ? Token.authorizationState(asset, payer, nonce)
      : Permit2.nonceBitmap(payer, nonce)
  const answer = await client.call('eth_call', [call, block])
  const word = Receipt.isHex(answer) ? Abi.uintAt(answer.slice(2)) : undefined
  if (word === undefined) return undefined
  return method === 'eip3009' ? word !== 0n : Permit2.isUsed(word, nonce)
}

type SignedTransfer = { method: TransferMethod; asset: Address; payer: Address; nonce: Hex }
