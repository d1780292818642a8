import type { Asset } from './Asset'

/** CAIP-2 id of an EVM network. */
export type Id = `eip155:${number}`

/** An EVM network as challenges name it. */
export type Network = {
  id: Id
  chainId: number
  name: string
  /** A testnet is offered only by merchants that opt in. */
  testnet: boolean
  asset: Asset
}

const pattern = /^eip155:([1-9]\d{0,15})$/

/** Chain id of a CAIP-2 `eip155` id; undefined when the text is none. */
export function chainIdOf(id: string): number | undefined {
  const match = pattern.exec(id)
  return match ? Number(match[1]) : undefined
}
