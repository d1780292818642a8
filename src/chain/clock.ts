import type { Block } from './receipt'

/**
 * Measures how far this machine's clock is from a chain's, from new blocks alone. A new block was
 * made after the last poll that did not show it, and before the poll that shows it. Times are taken
 * from a monotonic clock (`mono`, ms from any start), so that a step of the wall clock shows
 * without a new block. On a chain that mines rarely an old newest block proves nothing.
 */
export type Clock = {
  /** Highest block seen. */
  newest: bigint | undefined
  /** Last time (mono) at which a node showed no higher block. */
  polledAt: number
  /** Chain time minus `mono`, ms: the interval that each of the last blocks allows; newest last. */
  samples: { min: number; max: number }[]
}

/** How far our clock may be ahead of the chain's, ms; negative: behind. */
type Ahead = { min: number; max: number }

/** The times of this machine: unix ms, and `mono`. */
type Clocks = { now: () => number; monotonic: () => number }

type Measured = { clock: Clock }

const samplesMax = 4
/** Longest time between a block and its announcement by a node. */
const announceMs = 2_000
/** Timestamps are whole seconds. */
const secondMs = 1_000

export function createClock(): Clock {
  return { newest: undefined, polledAt: 0, samples: [] }
}

/** Updates the clock from an answer with the newest block. Both times are `mono`, ms. */
export function observe(
  clock: Clock,
  { number, timestamp }: Pick<Block, 'number' | 'timestamp'>,
  { askedAt, answeredAt }: { askedAt: number; answeredAt: number },
): void {
  const { newest, polledAt } = clock
  // A lagging node shows an old block, which proves nothing.
  if (newest !== undefined && number < newest) return
  const blockMs = Number(timestamp) * 1000
  const since = newest === undefined ? Number.NEGATIVE_INFINITY : polledAt
  if (number !== newest) add(clock, { min: blockMs - answeredAt, max: blockMs + secondMs - since })
  clock.newest = number
  clock.polledAt = askedAt
}

/** Sets a lower highest block when the chain does not have the stored one. */
export function reconsider(clock: Clock, top: bigint): void {
  clock.newest = top
}

/** Updates the clock from a block that a node announces. `at` is `mono`, ms. */
export function announced(
  clock: Clock,
  { number, timestamp }: Pick<Block, 'number' | 'timestamp'>,
  at: number,
): void {
  if (clock.newest !== undefined && number <= clock.newest) return
  const blockMs = Number(timestamp) * 1000
  add(clock, { min: blockMs - at, max: blockMs + secondMs - (at - announceMs) })
  clock.newest = number
  clock.polledAt = at - announceMs
}

/** How far our clock may be ahead of the chain's now, by its newest blocks. */
export function aheadOf({ now, monotonic }: Clocks, { clock }: Measured): Ahead {
  return intervalOf(clock, now(), monotonic())
}

/** The least error of our clock that the newest blocks prove, ms; negative: behind. */
export function skewOf(clocks: Clocks, measured: Measured): number {
  const { min, max } = aheadOf(clocks, measured)
  if (min > 0) return Math.ceil(min)
  return max < 0 ? Math.floor(max) : 0
}

/**
 * The time of the next block by our clock (unix ms), less the proven lead of our clock. What is
 * valid by our clock alone would fail on chain.
 */
export function chainNow({ now, monotonic }: Clocks, { clock }: Measured): number {
  const at = now()
  const { min } = intervalOf(clock, at, monotonic())
  return min > 0 ? at - Math.ceil(min) : at
}

/** The most that our clock may be ahead of the chain, ms; 0 when unknown. */
export function mayBeAheadMs(clocks: Clocks, measured: Measured): number {
  const { min, max } = aheadOf(clocks, measured)
  return Number.isFinite(min) && max > 0 ? max : 0
}

/** The interval that the newest blocks allow. */
function intervalOf({ samples }: Clock, now: number, mono: number): Ahead {
  let min = Math.max(...samples.map((each) => each.min))
  let max = Math.min(...samples.map((each) => each.max))
  const last = samples.at(-1)
  // Blocks contradict each other after a sleep or a jump of the chain's clock: use the newest.
  if (last && min > max) {
    min = last.min
    max = last.max
  }
  return { min: now - mono - max, max: now - mono - min }
}

function add({ samples }: Clock, sample: { min: number; max: number }): void {
  samples.push(sample)
  if (samples.length > samplesMax) samples.shift()
}
