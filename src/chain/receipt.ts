import type { Address, Hex } from 'viem'

/** A log of a receipt. Topics and data in lower-case hex. */
export type Log = { address: Address; topics: readonly Hex[]; data: Hex; index: number }

/** What settlement reads of a receipt. */
export type Receipt = {
  hash: Hex
  success: boolean
  blockNumber: bigint
  blockHash: Hex
  logs: readonly Log[]
  effectiveGasPriceWei: bigint
  gasUsed: bigint
  /** Everything that the transaction cost the relayer, the L1 share of OP chains included. */
  spentWei: bigint
}

/** A receipt as the node gives it; undefined for `null` and for what is none. */
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

/** A receipt as JSON, to be kept. */
export function serialize(receipt: Receipt): string {
  return JSON.stringify(receipt, (_, value) =>
    typeof value === 'bigint' ? value.toString() : value,
  )
}

/** The receipt of what `serialize` made. Throws for anything that is no JSON. */
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

/** A log as `eth_getLogs` or a receipt gives it, with its transaction. */
export function parseLog(value: unknown): (Log & { transactionHash: Hex }) | undefined {
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

/** What is read of a block. `timestamp` is unix seconds; a pending block has no hash. */
export type Block = {
  number: bigint
  timestamp: bigint
  baseFeeWei: bigint
  hash: Hex | undefined
  parentHash: Hex | undefined
}

/** A block as the node gives it; undefined for what is none. */
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

/** Receiver and calldata of a transaction as the node gives it. */
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
