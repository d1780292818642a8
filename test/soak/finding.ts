/**
 * `lost`: the money moved, and the buyer can neither get the answer nor redeem it. `double`: money
 * moved twice, or the upstream got more requests than there were attempts. `unpaid`: an answer
 * without a payment. `refused`: a valid credential was refused as invalid. `stuck`: something has
 * not ended. `mismatch`: database and chain differ. `program`: the program ended unexpectedly.
 */
export const kinds = [
  'lost',
  'double',
  'unpaid',
  'refused',
  'stuck',
  'mismatch',
  'program',
] as const
export type Kind = (typeof kinds)[number]
export type Finding = { kind: Kind; text: string }
