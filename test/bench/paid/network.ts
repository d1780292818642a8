import type { NetworkConfig } from '../../../src/config/Config'
import { shippedConfig } from '../shipped'

/** Where everybody is paid: the only network whose token all candidates know by themselves. */
export const networkId = 'eip155:8453'

/** What is sold, for one cent, by every candidate. */
export const path = '/m/catjoke/joke'

let known: NetworkConfig | undefined

/** The shipped configuration's entry. */
export function network(): NetworkConfig {
  known ??= shippedConfig().networks.find(({ id }) => id === networkId)
  if (known === undefined) throw new Error(`${networkId} is not in merchants.toml`)
  return known
}
