/** When a gateway counts as alive: its signs of life, and those of the others. */

export type Times = {
  /** Interval of the signs of life, ms. */
  beatMs: number
  /** A process without a sign for this long is taken for dead, ms by the clock of the database. */
  deadMs: number
  /** Only a process with regular beats for this long may judge others, ms. */
  steadyMs: number
  /** A longer time between two beats is not regular, ms. */
  gapMs: number
  /** Without a beat for this long nothing new is sent, ms. */
  freshMs: number
}

export const usualTimes: Times = {
  beatMs: 2_000,
  deadMs: 10_000,
  steadyMs: 10_000,
  gapMs: 4_000,
  freshMs: 6_000,
}

/** Signs that this process has given, by its monotonic clock, ms. */
type Signs = {
  times: Times
  /** The last one. */
  beatAt: number
  /** The first one after a gap. */
  steadySince: number
}

/**
 * Whether this process has given signs for long and still does. After a pause of its own, or of the
 * server, the others had no chance to give theirs, and a look may come before the next own sign.
 */
export function isSteady({ times, beatAt, steadySince }: Signs, at: number): boolean {
  return at - beatAt <= times.gapMs && at - steadySince >= times.steadyMs
}

/**
 * Whether the connection may lead to another server now, which lacks the last takes of accounts. Their
 * holders must find that out first: after a take of another gateway it would look like an ordinary one.
 */
export function mayHaveChanged(
  { times, reconnectedAt }: { times: Times; reconnectedAt: number },
  at: number,
): boolean {
  return at - reconnectedAt < times.gapMs
}
