/** What may be given on one UTC day, and what was: with the gas of the transfers. */
export type Budget = { grants: number; wei: bigint }

/** What was given on one day, gas included. */
export type Tally = { grants: number; wei: bigint }

/** How much of the day's budget is left: `signed` is for requests that the address itself signed. */
export type Room = 'open' | 'signed' | 'spent'

/** How much room a day has for one more grant that may cost `wei` with its own gas. */
export function roomFor(tally: Tally, budget: Budget, wei: bigint): Room {
  if (tally.grants >= budget.grants || tally.wei + wei > budget.wei) return 'spent'
  const isHalf = 2 * tally.grants >= budget.grants || 2n * tally.wei >= budget.wei
  return isHalf ? 'signed' : 'open'
}
