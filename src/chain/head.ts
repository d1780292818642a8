/** What is known of a chain's newest block, kept from answers that come anyway. */
export type Head = {
  /** Highest block number seen. */
  number: bigint
  baseFeeWei: bigint
  tipWei: bigint
  /** Estimate. */
  blockTimeMs: number
  anchor: { number: bigint; timestamp: bigint } | undefined
}

const blockTimeMinMs = 100
const blockTimeMaxMs = 4_000

/** `blockTimeMs` is the estimate until blocks have been seen. */
export function createHead(blockTimeMs = 1_000): Head {
  return { number: 0n, baseFeeWei: 0n, tipWei: 0n, blockTimeMs, anchor: undefined }
}

/** Learns from a block. Timestamps are unix seconds: on fast chains many blocks share one. */
export function observe(
  head: Head,
  block: { number: bigint; timestamp: bigint; baseFeeWei: bigint },
): void {
  if (block.number >= head.number) {
    head.number = block.number
    head.baseFeeWei = block.baseFeeWei
  }
  head.anchor ??= block
  const blocks = Number(block.number - head.anchor.number)
  const seconds = Number(block.timestamp - head.anchor.timestamp)
  if (blocks < 0 || seconds < 0) head.anchor = block
  if (blocks < 2 || seconds < 2) return
  head.blockTimeMs = clamp((seconds * 1_000) / blocks)
  if (seconds > 120) head.anchor = block
}

/** Pause between two looks for a receipt. */
export function pollMs(head: Head): number {
  return Math.max(25, Math.round(head.blockTimeMs / 4))
}

/**
 * Fees of a new transaction: room for the base fee to double, never above the cap. The tip is part
 * of the cap.
 */
export function fees(head: Head, capWei: bigint): { maxFeeWei: bigint; maxTipWei: bigint } {
  const wanted = 2n * head.baseFeeWei + head.tipWei
  const maxFeeWei = wanted < capWei ? wanted : capWei
  return { maxFeeWei, maxTipWei: head.tipWei < maxFeeWei ? head.tipWei : maxFeeWei }
}

function clamp(value: number): number {
  return Math.min(blockTimeMaxMs, Math.max(blockTimeMinMs, value))
}
