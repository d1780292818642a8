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

/**
 * The names of EVM networks in x402 version 1. Its clients know these only, and refuse a whole list of
 * offers for any other one.
 */
const idByName: ReadonlyMap<string, Id> = new Map([
  ['base', 'eip155:8453'],
  ['base-sepolia', 'eip155:84532'],
  ['polygon', 'eip155:137'],
  ['polygon-amoy', 'eip155:80002'],
  ['avalanche', 'eip155:43114'],
  ['avalanche-fuji', 'eip155:43113'],
  ['sei', 'eip155:1329'],
  ['sei-testnet', 'eip155:1328'],
  ['abstract', 'eip155:2741'],
  ['abstract-testnet', 'eip155:11124'],
  ['iotex', 'eip155:4689'],
  ['peaq', 'eip155:3338'],
  ['story', 'eip155:1514'],
  ['educhain', 'eip155:41923'],
  ['skale-base-sepolia', 'eip155:324705682'],
])
const nameById: ReadonlyMap<string, string> = new Map(
  Array.from(idByName, ([name, id]) => [id, name]),
)

/** The network that x402 version 1 gives a name. */
export function ofV1Name(name: string): Id | undefined {
  return idByName.get(name)
}

/** The name of a network in x402 version 1; undefined: its clients do not know it. */
export function v1NameOf(id: string): string | undefined {
  return nameById.get(id)
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
