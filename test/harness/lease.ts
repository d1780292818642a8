import type { NetworkConfig } from '../../src/config/Config'
import { type Chain, mine, startPrepared } from '../../src/demo/chains'
import { type ChainOptions, revert, setAutomine, snapshot } from './chains'

/*
 * Prepared chains that serve one test file after the other: to start and prepare one costs more
 * processor time than most tests.
 */

type Network = Pick<NetworkConfig, 'asset' | 'chainId'>
/** What a chain can be that served others before. */
export type LeaseOptions = Pick<ChainOptions, 'hasKeys' | 'mineNothing'>
type Idle = {
  chain: Chain
  prepared: `0x${string}`
  /** Base fee of the block after the preparation. */
  baseFee: string
}

/** Chains that no test uses now, by their terms. They end with this process. */
const idle = new Map<string, Idle[]>()
/** The state to which a lent chain returns. */
const lent = new Map<Chain, Omit<Idle, 'chain'> & { key: string }>()
/**
 * Most that wait for the next file, of each kind: as many as the tests of a file that bun runs
 * concurrently. An idle chain takes no processor time and 10 MB. In a script they would keep the
 * process running.
 */
const idleMax = process.env.NODE_ENV === 'test' ? 20 : 0

/** A chain as `startChains` prepares it, perhaps one that served another test before. */
export async function leaseChain(
  network: Network,
  { hasKeys = false, mineNothing = false }: LeaseOptions = {},
): Promise<Chain> {
  const { chainId, asset } = network
  const key = JSON.stringify([
    ...[chainId, asset.address, asset.eip712, asset.revertsOnUsedNonce],
    hasKeys,
  ])
  const found = idle.get(key)?.pop()
  const { chain, ...terms } = found ?? (await prepare(network, hasKeys))
  if (found !== undefined) {
    // The clock of a reverted chain continues from its last block, which is old, and its base fee
    // from the last block before the return.
    await chain.rpc('anvil_setNextBlockBaseFeePerGas', [terms.baseFee])
    await chain.rpc('evm_setTime', [Math.floor(Date.now() / 1000)])
    await mine(chain)
  }
  if (mineNothing) await setAutomine(chain, false)
  lent.set(chain, { key, ...terms })
  return chain
}

async function prepare(network: Network, hasKeys: boolean): Promise<Idle> {
  const chain = await startPrepared(network, { hasKeys })
  const fees = (await chain.rpc('eth_feeHistory', ['0x1', 'latest', []])) as {
    baseFeePerGas: string[]
  }
  return { chain, prepared: await snapshot(chain), baseFee: fees.baseFeePerGas.at(-1) ?? '0x0' }
}

/** Leases the chains of several networks, in their order. On a failure all are returned. */
export async function leaseChains(networks: readonly Network[]): Promise<Chain[]> {
  const leased = await Promise.allSettled(networks.map((network) => leaseChain(network)))
  const chains = leased.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  const failed = leased.find((result) => result.status === 'rejected')
  if (!failed) return chains
  await Promise.all(chains.map(returnChain))
  throw failed.reason
}

/** Returns a chain to its prepared state. One that a test has ended, or that was not leased, ends. */
export async function returnChain(chain: Chain): Promise<void> {
  const terms = lent.get(chain)
  lent.delete(chain)
  const list = idle.get(terms?.key ?? '') ?? []
  if (terms === undefined || list.length >= idleMax) return chain.stop()
  try {
    list.push({ chain, prepared: await reset(chain, terms.prepared), baseFee: terms.baseFee })
    idle.set(terms.key, list)
  } catch {
    await chain.stop()
  }
}

async function reset(chain: Chain, prepared: `0x${string}`): Promise<`0x${string}`> {
  await chain.rpc('anvil_dropAllTransactions', [])
  await chain.rpc('evm_setIntervalMining', [0])
  await chain.rpc('evm_setAutomine', [true])
  await revert(chain, prepared)
  return snapshot(chain)
}
