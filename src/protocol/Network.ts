import type { Asset } from './Asset'

/** CAIP-2 id of an EVM network. */
export type Id = `eip155:${number}`

/** An EVM network as challenges name it. */
export type Network = {
  id: Id
  chainId: number
  name: string
  /** Only merchants that opt in offer a testnet. */
  testnet: boolean
  asset: Asset
}

/** https://standards.chainagnostic.org/CAIPs/caip-2 */
const caip2 = /^[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}$/

/** Whether a text names a network, EVM or not. */
export function isCaip2(id: unknown): id is string {
  return typeof id === 'string' && caip2.test(id)
}

const pattern = /^eip155:([1-9]\d{0,15})$/

/** Chain id of a CAIP-2 `eip155` id; undefined for any other text. */
export function chainIdOf(id: string): number | undefined {
  const match = pattern.exec(id)
  return match ? Number(match[1]) : undefined
}
