import type { Block } from './receipt'

/**
 * Measures how far this machine's clock is from a chain's, from new blocks alone. A new block was
 * made after the last poll that did not show it and before the poll that does. Times are taken from
 * a monotonic clock (`mono`, ms from any start), so that a step of the wall clock shows without a
 * new block. On a chain that mines rarely an old newest block proves nothing.
 */
export type Clock = {
  /** Highest block seen. */
  newest: bigint | undefined
  /** Last time (mono) at which a node showed no higher block. */
  lookedAt: number
  /** Chain time minus `mono`, ms: what each of the last blocks allows; newest last. */
  samples: { min: number; max: number }[]
}

/** How far our clock may be ahead of the chain's, ms; negative: behind. */
export type Ahead = { min: number; max: number }

const samplesMax = 4
/** A node announces a block within this time. */
const announceMs = 2_000
/** Timestamps are whole seconds. */
const secondMs = 1_000

export function createClock(): Clock {
  return { newest: undefined, lookedAt: 0, samples: [] }
}

/** Learns from the answer to "which is the newest block?". Both times are `mono`, ms. */
export function observe(
  clock: Clock,
  { number, timestamp }: Pick<Block, 'number' | 'timestamp'>,
  { askedAt, answeredAt }: { askedAt: number; answeredAt: number },
): void {
  const { newest, lookedAt } = clock
  // A lagging node shows a block that was old before: it proves nothing.
  if (newest !== undefined && number < newest) return
  const blockMs = Number(timestamp) * 1000
  const since = newest === undefined ? Number.NEGATIVE_INFINITY : lookedAt
  if (number !== newest) add(clock, { min: blockMs - answeredAt, max: blockMs + secondMs - since })
  clock.newest = number
  clock.lookedAt = askedAt
}

/** Takes a highest block back that the chain turned out not to have. */
export function reconsider(clock: Clock, top: bigint): void {
  clock.newest = top
}

/** Learns from a block that a node announces when it has it. `at` is `mono`, ms. */
export function announced(
  clock: Clock,
  { number, timestamp }: Pick<Block, 'number' | 'timestamp'>,
  at: number,
): void {
  if (clock.newest !== undefined && number <= clock.newest) return
  const blockMs = Number(timestamp) * 1000
  add(clock, { min: blockMs - at, max: blockMs + secondMs - (at - announceMs) })
  clock.newest = number
  clock.lookedAt = at - announceMs
}

/** What the newest blocks allow. `now` is unix ms, `mono` of the same moment. */
export function aheadOf(clock: Clock, now: number, mono: number): Ahead {
  const { samples } = clock
  let min = Math.max(...samples.map((each) => each.min))
  let max = Math.min(...samples.map((each) => each.max))
  const last = samples.at(-1)
  // Blocks contradict each other after a sleep or a jump of the chain's clock: keep the newest.
  if (last && min > max) {
    min = last.min
    max = last.max
  }
  return { min: now - mono - max, max: now - mono - min }
}

/** The least that our clock is off, ms: 0 when the blocks allow that it is right. */
export function skewOf({ min, max }: Ahead): number {
  if (min > 0) return Math.ceil(min)
  return max < 0 ? Math.floor(max) : 0
}

/** The most that our clock may be ahead of a chain whose blocks have been seen when they were new. */
export function mayBeAheadMs({ min, max }: Ahead): number {
  return Number.isFinite(min) && max > 0 ? max : 0
}

function add({ samples }: Clock, sample: { min: number; max: number }): void {
  samples.push(sample)
  if (samples.length > samplesMax) samples.shift()
}
