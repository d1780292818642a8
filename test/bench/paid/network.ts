import type { NetworkConfig } from '../../../src/config/Config'
import { shippedConfig } from '../shipped'

/** The network of all payments: the only one whose token all candidates have built in. */
export const networkId = 'eip155:8453'

/** The item, for one cent, of every candidate. */
export const path = '/m/catjoke/joke'

let known: NetworkConfig | undefined

/** The shipped configuration's entry. */
export function network(): NetworkConfig {
  known ??= shippedConfig().networks.find(({ id }) => id === networkId)
  if (known === undefined) throw new Error(`${networkId} is not in merchants.toml`)
  return known
}
