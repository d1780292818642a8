import type { Config } from './Config'
import type { Path } from './lines'

/** What is allowed and yet may cost the operator money, with the place in the file that says so. */
export function warningsOf({ facilitator, networks }: Config): { path: Path; message: string }[] {
  const { apiKeyHashes, minAmountAtomic } = facilitator
  const spends = networks.some(({ gasPerDayWei }) => gasPerDayWei.facilitator > 0n)
  if (!spends || apiKeyHashes.length > 0 || minAmountAtomic > 0n) return []
  const path = ['facilitator', 'min_amount']
  const message =
    "min_amount is 0: anybody can spend the facilitator's gas of a day on payments of next to " +
    'nothing; write the least that you sell for, or api_keys'
  return [{ path, message }]
}
