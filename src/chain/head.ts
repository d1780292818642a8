import * as Amount from '../protocol/Amount'

/** The newest block of a chain, updated from answers to other calls. */
export type Head = {
  /** Highest block number seen. */
  number: bigint
  /** Highest block number that several polls confirmed. The head is never set below it. */
  trusted: bigint
  /** Polls in a row that found the chain near `number`, or far below it. */
  agreeing: number
  contradicting: number
  /** Time of the newest block whose time is known, unix seconds; 0 before. */
  timestamp: bigint
  /** Blocks are rare: the newest block was already old by our clock at its first poll. */
  isOld: boolean
  baseFeeWei: bigint
  /** The tip that is bid, in wei. */
  tipWei: bigint
  /** The tip that nodes suggest, in wei. It is bid for transactions that are not included. */
  suggestedTipWei: bigint
  /** The base fee that several nodes reported lately, in wei; 0 with only one node. */
  agreedBaseFeeWei: bigint
  /** Estimate, ms. */
  blockTimeMs: number
  anchor: { number: bigint; timestamp: bigint } | undefined
}

const blockTimeMinMs = 100
const blockTimeMaxMs = 4_000

/** `blockTimeMs` is the estimate until blocks are known. */
export function createHead(blockTimeMs = 1_000): Head {
  return {
    number: 0n,
    trusted: 0n,
    agreeing: 0,
    contradicting: 0,
    timestamp: 0n,
    isOld: false,
    baseFeeWei: 0n,
    tipWei: 0n,
    suggestedTipWei: 0n,
    agreedBaseFeeWei: 0n,
    blockTimeMs,
    anchor: undefined,
  }
}

/**
 * Updates the head from a block. Timestamps are unix seconds: on fast chains many blocks share one.
 */
export function observeBlock(
  head: Head,
  block: { number: bigint; timestamp: bigint; baseFeeWei: bigint },
): void {
  if (block.number >= head.number) {
    head.number = block.number
    head.baseFeeWei = block.baseFeeWei
    if (block.timestamp > head.timestamp) head.isOld = false
    head.timestamp = block.timestamp
  }
  head.anchor ??= block
  const blocks = Number(block.number - head.anchor.number)
  const seconds = Number(block.timestamp - head.anchor.timestamp)
  if (blocks < 0 || seconds < 0) head.anchor = block
  if (blocks < 2 || seconds < 2) return
  head.blockTimeMs = clamp((seconds * 1_000) / blocks)
  if (seconds > 120) head.anchor = block
}

/** Nodes of one chain, and two polls of one node, differ by fewer blocks. */
export const lagBlocks = 300n
/** Number of agreeing polls after which a sudden higher number is accepted. */
const agreeingMin = 8

/**
 * Sets a lower block number when the chain does not have the stored one: a faulty node reported it,
 * or a node that is no longer used. Two polls in a row must contradict it, and the confirmed
 * number must agree with them. A wrong number would hide every external settlement and every
 * reorganisation until the next start. `top`: the newest block of the node that is in use. True
 * when the number was lowered.
 */
export function reconsiderHead(head: Head, top: bigint): boolean {
  if (top + lagBlocks >= head.number) {
    head.contradicting = 0
    head.agreeing++
    const isNear = head.trusted > 0n && head.number <= head.trusted + lagBlocks
    if (isNear || head.agreeing >= agreeingMin) head.trusted = head.number
    return false
  }
  head.agreeing = 0
  head.contradicting++
  if (head.contradicting < 2 || top + lagBlocks < head.trusted) return false
  head.number = top
  head.anchor = undefined
  return true
}

/** The time of a newest block that is older than this does not predict the time of the next one. */
const oldMs = 10_000

/** Updates how old the newest block is. `seconds`: its time; `now`: unix ms. */
export function observeTime(head: Head, seconds: bigint, now: number): void {
  if (seconds < head.timestamp) return
  head.timestamp = seconds
  head.isOld = now - Number(seconds) * 1000 >= oldMs
}

/** Pause between two polls for a receipt, ms. */
export function pollMs(head: Head): number {
  return Math.max(25, Math.round(head.blockTimeMs / 4))
}

/** Least tip of nodes and sequencers that refuse transactions without a tip: 0.001 gwei. */
const tipFloorWei = 1_000_000n
/** Between two polls of several nodes, the base fee of one node is capped at this multiple. */
const trustedRise = 8n

/**
 * Sets tip and base fee to the lower medians of what the nodes report. With two nodes that is the
 * lower value, so that one faulty node cannot raise our costs. The bid is at most the base fee, or
 * the floor where the base fee is tiny, because a node could suggest any tip up to the fee cap.
 */
export function learnFees(
  head: Head,
  reported: { tips: readonly bigint[]; baseFees: readonly bigint[] },
): void {
  const baseFeeWei = lowerMedian(reported.baseFees) ?? head.baseFeeWei
  head.agreedBaseFeeWei = reported.baseFees.length > 1 ? baseFeeWei : 0n
  head.suggestedTipWei = lowerMedian(reported.tips) ?? head.suggestedTipWei
  const most = baseFeeWei > tipFloorWei ? baseFeeWei : tipFloorWei
  head.tipWei = Amount.least(head.suggestedTipWei, most)
}

/** Fees of a transaction, in wei. */
export type Fees = { maxFeeWei: bigint; maxTipWei: bigint }

/**
 * Fees of a new transaction: the base fee may double, and the total never exceeds the cap. The tip
 * is part of the cap. `isStuck`: bid the tip that nodes suggest.
 */
export function fees(head: Head, capWei: bigint, isStuck = false): Fees {
  const tipWei = isStuck ? head.suggestedTipWei : head.tipWei
  const maxFeeWei = Amount.least(2n * baseFeeOf(head) + tipWei, capWei)
  return { maxFeeWei, maxTipWei: Amount.least(tipWei, maxFeeWei) }
}

/** Price of a unit of gas now, in wei. */
export function priceOf(head: Head): bigint {
  return baseFeeOf(head) + head.tipWei
}

/** Whether the base fee alone is above the cap. */
export function isAboveCap(head: Head, capWei: bigint): boolean {
  return baseFeeOf(head) > capWei
}

/** The base fee of the newest block, in wei, capped by what several nodes reported. */
function baseFeeOf({ baseFeeWei, agreedBaseFeeWei }: Head): bigint {
  return agreedBaseFeeWei === 0n
    ? baseFeeWei
    : Amount.least(baseFeeWei, trustedRise * agreedBaseFeeWei)
}

function lowerMedian(values: readonly bigint[]): bigint | undefined {
  const sorted = values.toSorted((left, right) => (left < right ? -1 : left > right ? 1 : 0))
  return sorted[Math.floor((sorted.length - 1) / 2)]
}

function clamp(value: number): number {
  return Math.min(blockTimeMaxMs, Math.max(blockTimeMinMs, value))
}
