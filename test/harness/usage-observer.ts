import type { Authorization } from '../../db/Authorization'
import type { UsageObserver } from '../../src/paywall/usage/usage'

/** An observer of a stream by use that charges nothing and never interrupts. */
export const quietly: UsageObserver = {
  afterPause: () => undefined,
  isFresh: () => true,
  limitMs: 60_000,
  onEnd: undefined,
  watch: () => ({ put: () => {}, taken: () => {}, hasStoodStill: () => false, stop: () => {} }),
  kept: { add: () => {} },
  onStart: () => {},
  charge: async () => ({}) as Authorization,
  settle: async () => {},
  finish: () => {},
  log: (error) => console.error(error),
}
