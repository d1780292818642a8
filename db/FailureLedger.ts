/**
 * Failures of payers that cost us gas, counted by all processes over one database. A bucket is full again
 * after its failures have expired; its key is an address or a code.
 */
export type FailureLedger = {
  /** When the bucket is full again, unix ms; zero when it is full. From memory, up to a second old. */
  fullAt(key: string): number
  /**
   * Adds a failure to each bucket, which is then full again `ms` later. A power loss may undo the
   * failures of the last 100 ms. `windowMs`: the time in which an empty bucket becomes full.
   */
  add(failures: readonly { key: string; ms: number }[], windowMs: number): Promise<void>
}

/**
 * How far the clocks of two gateways may differ, ms: each is ready up to five seconds from that of the
 * database. A gateway that is behind takes a full bucket for one that is fuller than full.
 */
export const apartMs = 10_000

/** Counts failures in the memory of one process. */
export const ownFailures: FailureLedger = { fullAt: () => 0, add: () => Promise.resolve() }
