import { type Address, encodeDeployData, type Hex } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Chains from '../../src/demo/chains'
import type { Artifact } from '../../src/demo/contracts/artifacts'

type Chain = Chains.Chain

export type ChainOptions = {
  chainId: number
  /** Mine a block each interval; absent: a block per transaction. */
  blockTimeMs?: number
  /** Mine only by `mine`. */
  mineNothing?: boolean
  hasKeys?: boolean
  extraArgs?: readonly string[]
}

/** Starts a local chain without our contracts. */
export function startChain(options: ChainOptions): Promise<Chain> {
  return Chains.startChain(options.chainId, settingsOf(options))
}

function settingsOf(options: Omit<ChainOptions, 'chainId'>): Chains.Settings {
  const { blockTimeMs, mineNothing = false, hasKeys = false, extraArgs = [] } = options
  const args = [...extraArgs]
  if (blockTimeMs !== undefined) args.push('--block-time', `${blockTimeMs / 1000}`)
  if (mineNothing) args.push('--no-mining')
  return { hasKeys, args }
}

/**
 * Starts and prepares the chains of several networks concurrently, in their order. On a failure all
 * are stopped.
 */
export async function startChains(
  networks: readonly Pick<NetworkConfig, 'asset' | 'chainId'>[],
  options: Omit<ChainOptions, 'chainId'> = {},
): Promise<Chain[]> {
  const started = await Promise.allSettled(
    networks.map((network) => Chains.startPrepared(network, settingsOf(options))),
  )
  const chains = started.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  const failed = started.find((result) => result.status === 'rejected')
  if (!failed) return chains
  await Promise.all(chains.map((chain) => chain.stop()))
  throw failed.reason
}

/** Off: transactions wait for `mine`. */
export async function setAutomine(chain: Chain, on: boolean): Promise<void> {
  await chain.rpc('evm_setAutomine', [on])
}

/** Saves the chain's state for `revert`. */
export async function snapshot(chain: Chain): Promise<Hex> {
  return (await chain.rpc('evm_snapshot', [])) as Hex
}

/** Returns to a snapshot, which can be used once. Throws when there is none of this id. */
export async function revert(chain: Chain, id: Hex): Promise<void> {
  if (!(await chain.rpc('evm_revert', [id]))) throw new Error(`no snapshot ${id}`)
}

/** Deploys from account 9 and mines it. Throws when the constructor reverts. */
export async function deploy(
  chain: Chain,
  artifact: Artifact,
  args: readonly unknown[] = [],
): Promise<Address> {
  const data = encodeDeployData({ abi: artifact.abi, bytecode: artifact.bytecode, args })
  const [receipt] = await Chains.execute(chain, [{ from: account(9).address, data }])
  if (!receipt?.contractAddress) throw new Error('the receipt names no contract')
  return receipt.contractAddress
}
