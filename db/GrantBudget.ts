/** The limit of one UTC day, in grants and in wei with the gas of the transfers. */
export type Budget = { grants: number; wei: bigint }

/** Sum of the grants of one day, gas included. */
export type Tally = { grants: number; wei: bigint }

/** Room of the day's budget: `signed` is for requests that the address itself signed. */
export type Room = 'open' | 'signed' | 'spent'

/** Room of a day for one more grant that may cost `wei`, its own gas included. */
export function roomFor(tally: Tally, budget: Budget, wei: bigint): Room {
  if (tally.grants >= budget.grants || tally.wei + wei > budget.wei) return 'spent'
  const isHalf = 2 * tally.grants >= budget.grants || 2n * tally.wei >= budget.wei
  return isHalf ? 'signed' : 'open'
}
