/** Median and extremes of a series. */
export type Summary = { median: number; min: number; max: number }

/** Throws a RangeError for an empty series. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const low = sorted[(sorted.length - 1) >> 1]
  const high = sorted[sorted.length >> 1]
  if (low === undefined || high === undefined) throw new RangeError('no values')
  return (low + high) / 2
}

/** Throws a RangeError for an empty series. */
export function summarize(values: readonly number[]): Summary {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) }
}

/** Ratio of each round, both measured in the same round; the series have the same length. */
export function ratios(ours: readonly number[], theirs: readonly number[]): Summary {
  return summarize(ours.map((value, round) => value / (theirs[round] ?? Number.NaN)))
}

/** The value below which a share of a series is. Throws a RangeError for an empty series. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  const value = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
  if (value === undefined) throw new RangeError('no values')
  return value
}
