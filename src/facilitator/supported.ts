import type { Address } from 'viem'
import type * as Network from '../protocol/Network'

export type Supported = {
  kinds: readonly { x402Version: 2; scheme: 'exact'; network: string }[]
  extensions: readonly string[]
  /** By CAIP-2 pattern. */
  signers: Readonly<Record<string, readonly Address[]>>
}

/**
 * What is settled here now, in the order of the configuration. A network that cannot settle is
 * omitted, so that no server offers a payment that would fail. Specification 2.5.
 */
export function supported(
  networks: readonly Network.Network[],
  isReady: (network: Network.Id) => boolean,
  signers: readonly Address[],
  extensions: readonly string[],
): Supported {
  return {
    kinds: networks
      .filter(({ id }) => isReady(id))
      .map(({ id }) => ({ x402Version: 2, scheme: 'exact', network: id })),
    extensions,
    signers: { 'eip155:*': signers },
  }
}
