import type { Address } from 'viem'
import type * as Network from '../protocol/Network'

export type Supported = {
  kinds: readonly Kind[]
  extensions: readonly string[]
  /** Relayers by CAIP-2 pattern. */
  signers: Readonly<Record<string, readonly Address[]>>
}

type Kind = { x402Version: 2; network: string } & (
  | { scheme: 'exact' }
  /** The only account that may settle; the payer signs it. */
  | { scheme: 'upto'; extra: { facilitatorAddress: Address } }
)

export type SupportedOptions = {
  isReady: (network: Network.Id) => boolean
  /** The relayer to name next for `upto`; undefined where nothing settles it. */
  facilitatorOf: (network: Network.Id) => Address | undefined
  signers: readonly Address[]
  extensions: readonly string[]
}

/**
 * What is settled here now, in the order of the configuration. A network that cannot settle is
 * omitted, so that no server offers a payment that would fail. Specification 2.5.
 */
export function supported(
  networks: readonly Network.Network[],
  { isReady, facilitatorOf, signers, extensions }: SupportedOptions,
): Supported {
  const ready = networks.filter(({ id }) => isReady(id))
  const exact = ready.map(({ id }): Kind => ({ x402Version: 2, scheme: 'exact', network: id }))
  const upto = ready.flatMap(({ id }): Kind[] => {
    const facilitatorAddress = facilitatorOf(id)
    if (facilitatorAddress === undefined) return []
    return [{ x402Version: 2, scheme: 'upto', network: id, extra: { facilitatorAddress } }]
  })
  return { kinds: [...exact, ...upto], extensions, signers: { 'eip155:*': signers } }
}

/** Lets the relayers of each network take turns. */
export function createTurns(
  relayersOf: (network: Network.Id) => readonly Address[],
): SupportedOptions['facilitatorOf'] {
  const turns = new Map<Network.Id, number>()
  return (network) => {
    const relayers = relayersOf(network)
    const turn = turns.get(network) ?? 0
    turns.set(network, turn + 1)
    return relayers[turn % relayers.length]
  }
}
