import type { Hex } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import * as Abi from '../../src/protocol/Abi'
import { parse, type ScriptedChain, type Sent } from './scripted-chain'

export type RpcCall = { method: string; params: readonly unknown[] }
export type Reply = { result: unknown } | { error: { code: number; message: string } }

/**
 * What happens to bytes that a node gets. `include`: a block of their own. `keep`: the pool.
 * `lose`: the node reports success and drops them. A reply: it is the answer, and nothing is kept.
 */
export type Fate = 'include' | 'keep' | 'lose' | Reply

/** A node over a scripted chain, on a real socket. Several nodes may serve one chain. */
export type ScriptedNode = {
  url: string
  /** All requests. */
  calls: RpcCall[]
  /** Bytes that were sent, oldest first. */
  sends: Sent[]
  /** Decides the fate of bytes that could be included. */
  onSend: (sent: Sent) => Fate
  /** Answers instead of the chain; undefined: the chain answers. */
  answer: ((call: RpcCall) => Reply | Response | undefined) | undefined
  /** What the chain answers. */
  ask(call: RpcCall): Reply
  stop(): void
}

export const errorOf = (message: string, code = -32000): Reply => ({ error: { code, message } })

/** A node that hides receipts: it answers each request for a receipt with null. */
export const hiding = ({ method }: RpcCall): Reply | undefined => {
  if (method === 'eth_getTransactionReceipt') return { result: null }
  return method === 'eth_sendRawTransactionSync' ? noSync : undefined
}

/** A node that has all blocks but the newest one. */
export const lagging =
  (chain: ScriptedChain, node: ScriptedNode) =>
  (call: RpcCall): Reply => {
    const newest = chain.blocks.splice(-1)
    const reply = node.ask(call)
    chain.blocks.push(...newest)
    return reply
  }

/** The answer of a node without EIP-7966. */
const noSync = errorOf('the method does not exist', -32601)

export function startScriptedNode(chain: ScriptedChain, network: NetworkConfig): ScriptedNode {
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      const { id, method, params } = (await request.json()) as RpcCall & { id: number }
      const call = { method, params }
      node.calls.push(call)
      const reply = node.answer?.(call) ?? node.ask(call)
      if (reply instanceof Response) return reply
      return Response.json({ jsonrpc: '2.0', id, ...reply })
    },
  })
  const node: ScriptedNode = {
    url: `http://127.0.0.1:${server.port}`,
    calls: [],
    sends: [],
    onSend: () => 'include',
    answer: undefined,
    ask: (call) => answerOf(chain, network, node, call),
    stop: () => void server.stop(true),
  }
  return node
}

function answerOf(
  chain: ScriptedChain,
  network: NetworkConfig,
  node: ScriptedNode,
  { method, params }: RpcCall,
): Reply {
  const [first, second] = params
  switch (method) {
    case 'eth_chainId':
      return { result: quantity(network.chainId) }
    case 'eth_blockNumber':
      return { result: quantity(chain.newest().number) }
    case 'eth_maxPriorityFeePerGas':
      return { result: quantity(1_000_000_000) }
    case 'eth_getBlockByNumber':
      return { result: blockOf(chain, String(first)) }
    case 'eth_getBalance':
      return { result: quantity(10n ** 18n) }
    case 'eth_getTransactionCount':
      return { result: quantity(countOf(chain, String(first), second)) }
    case 'eth_getCode':
      return { result: '0x00' }
    case 'eth_call':
      return ethCall(chain, network, first as { to?: string; data: Hex })
    case 'eth_getTransactionReceipt':
      return { result: receiptOf(chain, String(first)) }
    case 'eth_getTransactionByHash':
      return { result: transactionOf(chain, String(first)) }
    case 'eth_getRawTransactionByHash':
      return { result: chain.find(String(first))?.transaction.raw ?? null }
    case 'eth_getLogs':
      return { result: logsOf(chain, first as Filter) }
    case 'eth_sendRawTransaction':
    case 'eth_sendRawTransactionSync':
      return send(chain, node, first as Hex, method.endsWith('Sync'))
    default:
      return noSync
  }
}

function send(chain: ScriptedChain, node: ScriptedNode, raw: Hex, isSync: boolean): Reply {
  const sent = parse(raw)
  node.sends.push(sent)
  const count = chain.count(sent.from)
  if (sent.nonce < count) return errorOf(`nonce too low: next nonce ${count}`)
  const fate = node.onSend(sent)
  if (typeof fate === 'object') return fate
  // Bytes above a nonce gap wait in every case.
  if (fate !== 'lose') chain.keep(raw)
  if (fate === 'include') chain.mine()
  if (!isSync) return { result: sent.hash }
  const receipt = receiptOf(chain, sent.hash)
  return receipt ? { result: receipt } : errorOf('timed out', 4)
}

function countOf(chain: ScriptedChain, address: string, tag: unknown): number {
  const from = [...chain.blocks.flatMap(({ transactions }) => transactions), ...chain.pool].find(
    (each) => each.from.toLowerCase() === address.toLowerCase(),
  )?.from
  if (!from) return 0
  const before =
    tag === 'latest' || tag === 'pending' ? chain.blocks : chain.blocks.filter(isUpTo(tag))
  const included = before
    .flatMap(({ transactions }) => transactions)
    .filter((each) => each.from === from).length
  if (tag !== 'pending') return included
  const waiting = new Set(chain.pool.filter((each) => each.from === from).map(({ nonce }) => nonce))
  let next = included
  // Only what could be included now: what waits behind a gap does not count.
  while (waiting.has(next)) next++
  return next
}

const isUpTo =
  (tag: unknown) =>
  ({ number }: { number: number }) =>
    number <= Number(tag)

function blockOf({ blocks, newest, baseFeeWei }: ScriptedChain, tag: string) {
  const block = tag === 'latest' ? newest() : blocks.find(({ number }) => number === Number(tag))
  if (!block) return null
  const { number, hash, timestamp } = block
  return {
    number: quantity(number),
    hash,
    parentHash: blocks.find((each) => each.number === number - 1)?.hash ?? hash,
    timestamp: quantity(timestamp),
    baseFeePerGas: quantity(baseFeeWei),
  }
}

function receiptOf(chain: ScriptedChain, hash: string) {
  const found = chain.find(hash)
  if (!found) return null
  const { block, transaction } = found
  return {
    transactionHash: transaction.hash,
    blockNumber: quantity(block.number),
    blockHash: block.hash,
    status: transaction.success ? '0x1' : '0x0',
    gasUsed: quantity(transaction.gasUsed),
    effectiveGasPrice: quantity(2n * chain.baseFeeWei),
    logs: numbered(chain, block.number).filter((log) => log.transactionHash === hash),
  }
}

/** The logs of a block in the form of a node's answer. */
function numbered({ blocks }: ScriptedChain, number: number) {
  const block = blocks.find((each) => each.number === number)
  const logs = block?.transactions.flatMap(({ hash, logs }) =>
    logs.map((log) => ({ ...log, transactionHash: hash })),
  )
  return (logs ?? []).map((log, index) => ({ ...log, logIndex: quantity(index) }))
}

function transactionOf(chain: ScriptedChain, hash: string) {
  const found = chain.find(hash)?.transaction ?? chain.pool.find((each) => each.hash === hash)
  return found ? { hash, from: found.from, to: found.to, input: found.data } : null
}

type Filter = { fromBlock: string; toBlock: string; topics: readonly string[] }

function logsOf(chain: ScriptedChain, { fromBlock, toBlock, topics }: Filter) {
  const last = toBlock === 'latest' ? chain.newest().number : Number(toBlock)
  return chain.blocks
    .filter(({ number }) => number >= Number(fromBlock) && number <= last)
    .flatMap(({ number }) => numbered(chain, number))
    .filter((log) => topics.every((topic, index) => log.topics[index] === topic))
}

/** The two programs of `chain/code`: sizes of codes, and a payer's code before Multicall3. */
const sizes = '0x6024380380'
const sizesLength = 2 + 36 * 2
const withCode = '0x60206064'
const withCodeLength = 2 + (100 + 32) * 2

function ethCall(
  chain: ScriptedChain,
  { asset, chainId }: NetworkConfig,
  { to, data }: { to?: string; data: Hex },
): Reply {
  if (to?.toLowerCase() === asset.address.toLowerCase()) {
    return { result: `0x${Abi.domainSeparator(chainId, asset.address, asset.eip712)}` }
  }
  if (to) return { result: chain.aggregate(data) }
  if (data.startsWith(withCode)) {
    const results = chain.aggregate(`0x${data.slice(withCodeLength)}`)
    const block = [0, 0, 0, chain.newest().timestamp, chain.baseFeeWei]
    return { result: `0x${block.map(Abi.uint).join('')}${results.slice(2)}` }
  }
  if (!data.startsWith(sizes)) return errorOf('execution reverted', 3)
  const asked = (data.length - sizesLength) / 64
  // Only what the health check reads has code, with Multicall3 as its last address.
  const isMulticall = /ca11bde05977b3631167028862be2a173976ca11$/.test(data)
  return { result: `0x${Abi.uint(isMulticall ? 1 : 0).repeat(asked)}` }
}

function quantity(value: bigint | number): Hex {
  return `0x${value.toString(16)}`
}
