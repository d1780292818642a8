import * as Amount from '../protocol/Amount'

/** Millionths of a USD as a decimal, such as `-0.004200`. */
export function usdText(micro: bigint): string {
  return micro < 0n ? `-${Amount.toDecimal(-micro, 6)}` : Amount.toDecimal(micro, 6)
}
