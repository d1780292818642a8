import type { PaceMin } from '../paywall/pace'

/** Limits of the resources that peers can hold. */
export type Limits = {
  /** Requests that this process may send by `fetch` at once; the runtime's own limit by default. */
  fetchesMax?: number | undefined
  /** How fast buyers must read streams. */
  paceMin?: Partial<PaceMin>
  /** Longest silence of a connection, unless a sale is under way on it. */
  idleSeconds?: number
}
