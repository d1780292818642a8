import type { Address, Hex } from 'viem'
import * as Abi from '../protocol/Abi'
import * as Crypto from '../protocol/Crypto'
import type { Transfer } from '../protocol/Transfer'

/** A log of a receipt. Topics and data in lower-case hex. */
export type ReceiptLog = { address: Address; topics: readonly Hex[]; data: Hex; index: number }

/** The fields of a receipt that settlement reads. */
export type Receipt = {
  hash: Hex
  success: boolean
  blockNumber: bigint
  blockHash: Hex
  logs: readonly ReceiptLog[]
  effectiveGasPriceWei: bigint
  gasUsed: bigint
  /** Total cost of the transaction for the relayer, the L1 share of OP chains included. */
  spentWei: bigint
}

/** Parses a receipt from a node; undefined for `null` and for an invalid one. */
export function parse(value: unknown): Receipt | undefined {
  if (!isRecord(value) || !isHex(value.transactionHash) || !isHex(value.blockNumber))
    return undefined
  if (!isHex(value.blockHash) || !isHex(value.status) || !Array.isArray(value.logs))
    return undefined
  const logs = value.logs.map(parseLog)
  const effectiveGasPriceWei = toBigInt(value.effectiveGasPrice)
  const gasUsed = toBigInt(value.gasUsed)
  return {
    hash: lower(value.transactionHash),
    success: BigInt(value.status) === 1n,
    blockNumber: BigInt(value.blockNumber),
    blockHash: lower(value.blockHash),
    logs: logs.filter((log) => log !== undefined),
    effectiveGasPriceWei,
    gasUsed,
    spentWei: gasUsed * effectiveGasPriceWei + toBigInt(value.l1Fee),
  }
}

/** A receipt as JSON, for the database. */
export function serialize(receipt: Receipt): string {
  return JSON.stringify(receipt, (_, value) =>
    typeof value === 'bigint' ? value.toString() : value,
  )
}

/** The receipt of what `serialize` made. Throws when the text is not JSON. */
export function deserialize(text: string): Receipt {
  const kept = JSON.parse(text)
  return {
    ...kept,
    blockNumber: BigInt(kept.blockNumber),
    effectiveGasPriceWei: BigInt(kept.effectiveGasPriceWei),
    gasUsed: BigInt(kept.gasUsed),
    spentWei: BigInt(kept.spentWei),
  }
}

/** The valid logs of an answer to `eth_getLogs`, with their transactions. */
export function parseLogs(value: unknown): (ReceiptLog & { transactionHash: Hex })[] {
  return Array.isArray(value) ? value.flatMap((each) => parseLog(each) ?? []) : []
}

function parseLog(value: unknown): (ReceiptLog & { transactionHash: Hex }) | undefined {
  if (!isRecord(value) || !isHex(value.address) || !isHex(value.data)) return undefined
  if (!isHex(value.logIndex) || !isHex(value.transactionHash)) return undefined
  if (!Array.isArray(value.topics) || !value.topics.every(isHex) || value.removed === true) {
    return undefined
  }
  return {
    address: value.address,
    topics: value.topics.map(lower),
    data: lower(value.data),
    index: Number(value.logIndex),
    transactionHash: lower(value.transactionHash),
  }
}

/** Event topics. */
export const transferTopic = topicOf('Transfer(address,address,uint256)')
export const authorizationUsedTopic = topicOf('AuthorizationUsed(address,bytes32)')

/** An indexed address as a topic. */
export function addressTopic(address: Address): Hex {
  return `0x${Abi.address(address)}`
}

type Sought = Pick<Transfer, 'asset' | 'payer' | 'payee' | 'amountAtomic'>

/** Whether a log is the token's Transfer of exactly this money. */
export function isTransfer(log: ReceiptLog, transfer: Sought): boolean {
  return keyOf(log) === transferKey(transfer)
}

/** Amounts of the token's Transfers from one account to another, in the order of the logs. */
export function transfersOf(
  logs: readonly ReceiptLog[],
  { token, from, to }: { token: Address; from: Address; to: Address },
): bigint[] {
  const parties = partiesOf(token, from, to)
  return logs.flatMap((log) => (keyOf(log)?.startsWith(parties) ? [BigInt(log.data)] : []))
}

/**
 * For each transfer the indexes of the Transfer logs of exactly this money. Equal transfers have the
 * same indexes: which of several equal logs is assigned to which of them does not matter.
 */
export function findTransfers(
  logs: readonly ReceiptLog[],
  transfers: readonly Sought[],
): (readonly number[])[] {
  const found = new Map<string, number[]>()
  for (const log of logs) {
    const key = keyOf(log)
    if (key === undefined) continue
    const indexes = found.get(key)
    if (indexes) indexes.push(log.index)
    else found.set(key, [log.index])
  }
  return transfers.map((transfer) => found.get(transferKey(transfer)) ?? [])
}

/** Key that is equal for transfers whose Transfer logs cannot be distinguished. */
export function transferKey({ asset, payer, payee, amountAtomic }: Sought): string {
  return `${partiesOf(asset, payer, payee)}0x${Abi.uint(amountAtomic)}`
}

function partiesOf(token: Address, from: Address, to: Address): string {
  return `${token.toLowerCase()} 0x${Abi.address(from)} 0x${Abi.address(to)} `
}

/** The `transferKey` of a log; undefined for one that is not a Transfer. */
function keyOf({ address, topics, data }: ReceiptLog): string | undefined {
  const [topic, from, to] = topics
  const isTransfer = topic === transferTopic && topics.length === 3 && data.length === 66
  return isTransfer ? `${address.toLowerCase()} ${from} ${to} ${data}` : undefined
}

function topicOf(signature: string): Hex {
  return Crypto.hex(Crypto.keccak256(signature))
}

/**
 * The fields of a block that are read. `timestamp` is unix seconds; a pending block has no hash.
 */
export type Block = {
  number: bigint
  timestamp: bigint
  baseFeeWei: bigint
  hash: Hex | undefined
  parentHash: Hex | undefined
}

/** Parses a block from a node; undefined for an invalid one. */
export function parseBlock(value: unknown): Block | undefined {
  if (!isRecord(value) || !isHex(value.number) || !isHex(value.timestamp)) return undefined
  return {
    number: BigInt(value.number),
    timestamp: BigInt(value.timestamp),
    baseFeeWei: toBigInt(value.baseFeePerGas),
    hash: isHex(value.hash) ? lower(value.hash) : undefined,
    parentHash: isHex(value.parentHash) ? lower(value.parentHash) : undefined,
  }
}

/** Receiver and calldata of a transaction from a node. */
export function parseTransaction(value: unknown): { to: Address; data: Hex } | undefined {
  if (!isRecord(value) || !isHex(value.to) || !isHex(value.input)) return undefined
  return { to: value.to, data: lower(value.input) }
}

/** The sender of a transaction, as the node reports it. */
export function senderOf(value: unknown): Address | undefined {
  return isRecord(value) && isHex(value.from) ? value.from : undefined
}

/** Whether a value is hex with prefix. */
export function isHex(value: unknown): value is Hex {
  return typeof value === 'string' && /^0x[0-9a-fA-F]*$/.test(value)
}

function toBigInt(value: unknown): bigint {
  return isHex(value) && value.length > 2 ? BigInt(value) : 0n
}

function lower(value: Hex): Hex {
  return value.toLowerCase() as Hex
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}
