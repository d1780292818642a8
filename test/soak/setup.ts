import { encodeFunctionData, maxUint256, multicall3Abi, parseAbi } from 'viem'
import { type PrivateKeyAccount, privateKeyToAccount } from 'viem/accounts'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import {
  balanceOf,
  type Chain,
  execute,
  mine,
  multicall3Address,
  prepareChain,
} from '../../src/demo/chains'
import type * as Network from '../../src/protocol/Network'
import * as Permit from '../../src/protocol/Permit'
import { createTurn, pause, type Turn } from '../../src/settlement/state/wait'
import { startChain } from '../harness/chains'
import { networkOf } from '../harness/settlement'
import { createRandom } from './random'

/** A chain with the network that it stands for. */
export type Site = {
  id: Network.Id
  network: NetworkConfig
  chain: Chain
  /** Runs work while the chain mines nothing. */
  turn: Turn
  stop(): Promise<void>
}

export type Payer = {
  index: number
  account: PrivateKeyAccount
  /** Whether it may pay by Permit2 on 4663. */
  hasApproved: boolean
}

/** A buyer who comes back. */
export type Wallet = {
  index: number
  account: PrivateKeyAccount
  role: 'pass' | 'again' | 'lost' | 'trial'
}

/** The networks on which money moves. */
export type Setup = {
  sites: readonly Site[]
  payers: readonly Payer[]
  /** Empty unless they are wanted. */
  returning: readonly Wallet[]
  /** Wallets for trials, which were never used. */
  fresh: readonly Wallet[]
  /** Wallets of buyers with channels, which may deposit by Permit2 on 4663. */
  channels: readonly Pick<Wallet, 'index' | 'account'>[]
  payee: `0x${string}`
  stop(): Promise<void>
}

/** Each payer's tokens on each chain at the start, atomic. */
export const mintedAtomic = 10_000_000_000n

/** Accounts with public keys; two relayers, to test several. */
export const relayers = [account(0), account(8)]
/** Of several gateways; each needs one. */
export const clusterRelayers = [...relayers, account(6), account(7)]

/** Pays refunds; its key is public, too. */
export const refunder = account(5)

const payerCount = 32
/** By role. */
const returningCounts = { pass: 6, again: 6, lost: 2, trial: 6 }
const blockTimeMs = 200
/** In one transaction. */
const mintsMax = 64
/** Deeper than any reorganisation of a test, so that the preparation stays. */
const settledBlocks = 12

const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function approve(address spender, uint256 value) returns (bool)',
])

/**
 * Starts both chains with 200 ms blocks and 32 payers with tokens, and that many fresh wallets with
 * tokens beside the buyers who come back, and wallets for channels. A seed repeats the keys.
 */
export async function startSetup(seed: string, freshCount = 0, channelCount = 0): Promise<Setup> {
  const random = createRandom(`${seed} keys`)
  const payee = privateKeyToAccount(random.bytes32()).address
  const payers = Array.from({ length: payerCount }, (_, index) => ({
    index,
    account: privateKeyToAccount(random.bytes32()),
    hasApproved: index % 2 === 0,
  }))
  const wallet = (index: number, role: Wallet['role']): Wallet => ({
    ...{ index, role },
    account: privateKeyToAccount(random.bytes32()),
  })
  const roles = Object.keys(returningCounts) as Wallet['role'][]
  const returning = roles
    .flatMap((role) => Array<Wallet['role']>(freshCount > 0 ? returningCounts[role] : 0).fill(role))
    .map((role, index) => wallet(index, role))
  const fresh = Array.from({ length: freshCount }, (_, index) => wallet(index, 'trial'))
  const channels = Array.from({ length: channelCount }, (_, index) => ({
    index,
    account: privateKeyToAccount(random.bytes32()),
  }))
  const funded = [...payers, ...returning, ...fresh, ...channels].map(
    (each) => each.account.address,
  )
  const approving = [...payers.filter(({ hasApproved }) => hasApproved), ...channels]
  const started = await Promise.allSettled(
    (['usdg', 'usdc'] as const).map((manners) => startSite(manners, approving, funded)),
  )
  const sites = started.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
  const stop = async () => void (await Promise.all(sites.map((site) => site.stop())))
  const failed = started.find((each) => each.status === 'rejected')
  if (failed === undefined) return { sites, payers, returning, fresh, channels, payee, stop }
  await stop()
  throw failed.reason
}

async function startSite(
  manners: 'usdg' | 'usdc',
  approving: readonly Pick<Payer, 'account'>[],
  funded: readonly `0x${string}`[],
): Promise<Site> {
  const { chainId } = networkOf('http://localhost', manners)
  const chain = await startChain({ chainId, mineNothing: true })
  const network = networkOf(chain.url, manners)
  try {
    await prepareChain(chain, network)
    await mint(chain, network, funded)
    await approve(chain, network, approving)
    await mine(chain, settledBlocks)
  } catch (error) {
    await chain.stop()
    throw error
  }
  return { id: network.id, network, chain, ...startMining(chain) }
}

/**
 * Mines a block each interval. The interval of anvil itself may end while anvil reorganises, and then it has
 * blocks whose transactions its state does not have.
 */
function startMining(chain: Chain): Pick<Site, 'turn' | 'stop'> {
  const turn = createTurn()
  const ending = new AbortController()
  const mining = (async () => {
    while (!ending.signal.aborted) {
      await pause(blockTimeMs, ending.signal)
      await turn(() => mine(chain))
    }
  })()
  return {
    turn,
    async stop() {
      ending.abort()
      await mining
      await chain.stop()
    },
  }
}

/** Gives each its tokens. */
async function mint(chain: Chain, { asset }: NetworkConfig, holders: readonly `0x${string}`[]) {
  for (let from = 0; from < holders.length; from += mintsMax) {
    const mints = holders.slice(from, from + mintsMax).map((holder) => ({
      target: asset.address,
      allowFailure: false,
      callData: encodeFunctionData({ abi, functionName: 'mint', args: [holder, mintedAtomic] }),
    }))
    const args = [mints] as const
    const data = encodeFunctionData({ abi: multicall3Abi, functionName: 'aggregate3', args })
    const call = { from: account(9).address, to: multicall3Address, data, gas: 9_000_000n }
    await execute(chain, [call])
  }
}

/** Lets Permit2 transfer from those that may pay by it. */
async function approve(
  chain: Chain,
  { asset }: NetworkConfig,
  approving: readonly Pick<Payer, 'account'>[],
) {
  const data = encodeFunctionData({
    abi,
    functionName: 'approve',
    args: [Permit.permit2Address, maxUint256],
  })
  for (const { account: owner } of approving) {
    await chain.rpc('anvil_setBalance', [owner.address, '0xde0b6b3a7640000'])
    await chain.rpc('anvil_impersonateAccount', [owner.address])
  }
  await execute(
    chain,
    approving.map(({ account: owner }) => ({
      from: owner.address,
      to: asset.address,
      data,
    })),
  )
}

/** Token balance on a site, atomic. */
export function tokensOf({ chain, network }: Site, holder: `0x${string}`): Promise<bigint> {
  return balanceOf(chain, network.asset.address, holder)
}
