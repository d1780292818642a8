import * as Clock from '../chain/clock'
import type { ChainState, Context } from './context'

type Clocks = Pick<Context, 'now' | 'monotonic'>

/** How far our clock may be ahead of the chain's now, by its newest blocks. */
export function aheadOf(
  { now, monotonic }: Clocks,
  { clock }: Pick<ChainState, 'clock'>,
): Clock.Ahead {
  return Clock.aheadOf(clock, now(), monotonic())
}

/** The least error of our clock that the newest blocks prove, ms; negative: behind. */
export function skewOf(clocks: Clocks, chain: Pick<ChainState, 'clock'>): number {
  return Clock.skewOf(aheadOf(clocks, chain))
}

/**
 * The time of the next block by our clock (unix ms), less what the newest blocks prove that it is
 * ahead: what is valid by ours alone would fail on chain.
 */
export function chainNow({ now, monotonic }: Clocks, chain: Pick<ChainState, 'clock'>): number {
  const at = now()
  return at - Math.max(0, skewOf({ now: () => at, monotonic }, chain))
}
