import type { Address, Hex } from 'viem'
import { type Client, createClient, RpcError, RpcFault } from '../chain/client'
import * as Receipt from '../chain/receipt'
import * as Token from '../chain/token'
import { publicRpcOf } from '../config/builtin'
import * as Abi from '../protocol/Abi'
import * as Network from '../protocol/Network'
import type { Transfer } from '../protocol/Transfer'
import { CommandError } from './Command'

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

/**
 * Works with a node of a network, after its chain id was checked. `rpc` replaces the public node.
 * Throws a CommandError.
 */
export async function withClient<T>(
  network: string,
  rpc: string | undefined,
  work: (client: Client) => Promise<T>,
  timeoutMs = 10_000,
): Promise<T> {
  const url = rpc ?? publicRpcOf(network)
  if (url === undefined) throw new CommandError(`Name an RPC URL of ${network}: --rpc URL.`)
  const client = createClient({ urls: [url], timeoutMs, log: () => undefined })
  const [host] = client.hosts
  try {
    const [found, chainId] = [await quantity(client, 'eth_chainId', []), Network.chainIdOf(network)]
    if (found !== BigInt(chainId ?? 0))
      throw new CommandError(`${host} is chain ${found}, not ${chainId}.`)
    return await work(client)
  } catch (error) {
    if (!(error instanceof RpcError || error instanceof RpcFault)) throw error
    throw new CommandError(`${host}: ${error.message}; --rpc URL names another node.`)
  } finally {
    client.close()
  }
}

/** The same, but undefined in place of a CommandError. */
export async function askChain<T>(...asked: Parameters<typeof withClient<T>>) {
  try {
    return await withClient(...asked)
  } catch (error) {
    if (error instanceof CommandError) return undefined
    throw error
  }
}

/** The number that a method answers. Throws an RpcFault for anything else. */
export async function quantity(client: Client, method: string, params: readonly unknown[]) {
  const answer = await client.call(method, params)
  if (!Receipt.isHex(answer) || answer.length < 3) throw new RpcFault(`not an answer to ${method}`)
  return BigInt(answer)
}

/** The first word that a call returns; undefined for other bytes, such as those of an account without code. */
export async function readWord(
  client: Pick<Client, 'call'>,
  call: { to: Address; data: Hex },
  block = 'latest',
): Promise<bigint | undefined> {
  const answer = await client.call('eth_call', [call, block])
  return Receipt.isHex(answer) ? Abi.uintAt(answer.slice(2)) : undefined
}

/** Undefined while a transaction is not in a block. */
export async function readReceipt(client: Client, hash: string) {
  return Receipt.parse(await client.call('eth_getTransactionReceipt', [hash]))
}

/** After this time beyond its end a reorganisation cannot bring a transfer back. */
const marginSeconds = 120

/**
 * Whether the nonce of a signed transfer is used, or never will be; undefined while neither is certain.
 * `until`: unix seconds after which the transfer is not valid.
 */
export async function isNonceUsed(
  client: Client,
  transfer: Pick<Transfer, 'method' | 'asset' | 'payer' | 'nonce'>,
  until: number,
): Promise<boolean | undefined> {
  const block = Receipt.parseBlock(await client.call('eth_getBlockByNumber', ['latest', false]))
  if (block === undefined) return undefined
  const at = `0x${block.number.toString(16)}`
  const isUsed = Token.isNonceUsed(transfer, await readWord(client, Token.nonceCall(transfer), at))
  if (isUsed !== false) return isUsed
  return block.timestamp > BigInt(until + marginSeconds) ? false : undefined
}
