import {
  type Address,
  concat,
  domainSeparator,
  encodeFunctionData,
  type Hex,
  maxUint256,
  numberToHex,
  pad,
  parseAbi,
} from 'viem'
import type { NetworkConfig } from '../config/Config'
import * as Permit from '../protocol/Permit'
import { account, accounts } from './accounts'
import { startAnvil } from './anvil'
import * as Artifacts from './contracts/artifacts'

/** A local chain. */
export type Chain = Awaited<ReturnType<typeof startChain>>

type Network = Pick<NetworkConfig, 'asset' | 'chainId'>

export type Settings = {
  /**
   * The node has the keys of the accounts 0 to 9, so that other nodes take the bytes of their
   * transactions. Deriving them takes 40 ms of processor time; without, they are impersonated.
   */
  hasKeys?: boolean
  /** Arguments of anvil. */
  args?: readonly string[]
}

/** The fields of a receipt that tests and the demo read. */
export type NodeReceipt = {
  transactionHash: Hex
  status: Hex
  blockNumber: Hex
  contractAddress: Address | null
  gasUsed: Hex
  logs: readonly { address: Address; topics: readonly Hex[]; data: Hex }[]
}

/** A transaction of an account that the node sends for. */
export type NodeTransaction = {
  from: Address
  to?: Address
  data?: Hex
  value?: bigint
  gas?: bigint
}

export type RpcCall = readonly [method: string, params: readonly unknown[]]
type RpcAnswer = { id: number; result?: unknown; error?: RpcFault }
type RpcFault = { code: number; message: string; data?: unknown }

/** The node's JSON-RPC error; `data` is the revert data of a failed eth_call. */
export class RpcError extends Error {
  readonly code: number
  readonly data: unknown

  constructor(method: string, fault: RpcFault) {
    super(`${method}: ${fault.message}`)
    this.name = 'RpcError'
    this.code = fault.code
    this.data = fault.data
  }
}

export const multicall3Address: Address = '0xcA11bde05977b3631167028862bE2a173976CA11'

/** Minted to each of the accounts 1 to 5: 10,000 of a token with 6 decimals. */
export const mintedAtomic = 10_000_000_000n

/** Balance of each of anvil's accounts: 10,000 ether. */
const fundedWei = 10n ** 22n

/** The only contract on a new anvil chain: github.com/Arachnid/deterministic-deployment-proxy. */
const create2Deployer: Address = '0x4e59b44847b379578588920cA78FbF26c0B4956C'

/** Robinhood Chain, where buyers have USDG and no gas. */
const gaslessChainId = 4663

const abi = parseAbi([
  'function initialize(string name, string symbol, string version, uint8 decimals, bool revertsOnUsedNonce)',
  'function mint(address to, uint256 value)',
  'function approve(address spender, uint256 value) returns (bool)',
  'function DOMAIN_SEPARATOR() view returns (bytes32)',
  'function aggregate3((address target, bool allowFailure, bytes callData)[] calls)',
])

/**
 * Starts a local chain without our contracts, which takes transactions of the accounts 0 to 9. Throws
 * when anvil is missing or does not start.
 */
export async function startChain(chainId: number, { hasKeys = false, args = [] }: Settings = {}) {
  const own = ['--port', '0', '--chain-id', `${chainId}`, ...(hasKeys ? [] : ['--accounts', '0'])]
  const anvil = await startAnvil([...own, ...args])
  const url = `http://127.0.0.1:${anvil.port}`
  await request(url, [
    ['anvil_setLoggingEnabled', [false]],
    ...(hasKeys ? [] : accounts).flatMap(({ address }): RpcCall[] => [
      ['anvil_impersonateAccount', [address]],
      ['anvil_setBalance', [address, numberToHex(fundedWei)]],
    ]),
  ])
  return {
    ...anvil,
    chainId,
    url,
    wsUrl: `ws://127.0.0.1:${anvil.port}`,
    /** One JSON-RPC call; throws RpcError with the node's error. */
    rpc: async (method: string, params: readonly unknown[]) =>
      (await request(url, [[method, params]]))[0],
  }
}

/**
 * Places the network's token, the contracts of payment channels, and the real Permit2, proxies of the
 * schemes `exact` and `upto`, and Multicall3 at their addresses. Mints to the accounts 1 to 5. Accounts
 * 1 and 2 approve Permit2; 3 to 5 have no gas on chain 4663. Once per chain. Throws when anything fails
 * or the token's EIP-712 domain is not the configured one.
 */
export async function prepareChain(chain: Chain, network: Network): Promise<void> {
  if (chain.chainId !== network.chainId)
    throw new Error(`chain ${chain.chainId} is not ${network.chainId}`)
  const token = network.asset.address
  const poor = network.chainId === gaslessChainId ? [3, 4, 5] : []
  const [multicall] = await request(chain.url, [
    // Without a receiver the call runs the creation code, which returns the runtime code.
    ['eth_call', [{ data: Artifacts.multicall3.bytecode }, 'latest']],
    ['anvil_setCode', [token, Artifacts.Stablecoin.deployedBytecode]],
    ...Artifacts.placed.map(({ address, artifact }): RpcCall => {
      return ['anvil_setCode', [address, artifact.deployedBytecode]]
    }),
    ...poor.map((index): RpcCall => ['anvil_setBalance', [account(index).address, '0x0']]),
  ])
  await chain.rpc('anvil_setCode', [multicall3Address, multicall])
  await execute(chain, setupCalls(network))
  await assertPrepared(chain, network)
}

/** Starts a chain and prepares it for its network. */
export async function startPrepared(network: Network, settings?: Settings): Promise<Chain> {
  const chain = await startChain(network.chainId, settings)
  try {
    await prepareChain(chain, network)
    return chain
  } catch (error) {
    await chain.stop()
    throw error
  }
}

/** Token balance, atomic. */
export async function balanceOf(chain: Chain, token: Address, holder: Address): Promise<bigint> {
  // The selector of balanceOf(address) and its argument: tests ask this thousands of times.
  const data = concat(['0x70a08231', pad(holder)])
  return BigInt((await chain.rpc('eth_call', [{ to: token, data }, 'latest'])) as Hex)
}

/** Mines n blocks now, in every mining mode. */
export async function mine(chain: Chain, n = 1): Promise<void> {
  await chain.rpc('anvil_mine', [numberToHex(n)])
}

/**
 * Sends transactions of the node's own accounts (0 to 9) and mines them, in every mining mode.
 * Throws when one of them fails.
 */
export async function execute(
  chain: Chain,
  calls: readonly NodeTransaction[],
): Promise<NodeReceipt[]> {
  const hashes: unknown[] = []
  for (const { value = 0n, gas, ...call } of calls) {
    const amounts = { value: numberToHex(value), ...(gas && { gas: numberToHex(gas) }) }
    // One after the other: two concurrent transactions of an account may get the same nonce.
    hashes.push(await chain.rpc('eth_sendTransaction', [{ ...call, ...amounts }]))
  }
  await mine(chain)
  const receipts: NodeReceipt[] = []
  for (const hash of hashes) receipts.push(await receiptOf(chain, hash as Hex))
  const failed = receipts.find(({ status }) => status !== '0x1')
  if (failed) throw new Error(`transaction ${failed.transactionHash} failed`)
  return receipts
}

/** Polls for the receipt; throws when it does not arrive. */
export async function receiptOf(chain: Chain, hash: Hex): Promise<NodeReceipt> {
  // A local answer takes less than a millisecond: about ten seconds.
  for (let attempt = 0; attempt < 20_000; attempt++) {
    const receipt = await chain.rpc('eth_getTransactionReceipt', [hash])
    if (receipt) return receipt as NodeReceipt
  }
  throw new Error(`transaction ${hash} was not mined`)
}

function setupCalls({ asset }: Network): NodeTransaction[] {
  const { address: token, eip712, symbol, decimals, revertsOnUsedNonce } = asset
  const naming = [eip712.name, symbol, eip712.version, decimals, revertsOnUsedNonce] as const
  const mints = [1, 2, 3, 4, 5].map((index) => {
    const args = [account(index).address, mintedAtomic] as const
    return encodeFunctionData({ abi, functionName: 'mint', args })
  })
  const initialize = encodeFunctionData({ abi, functionName: 'initialize', args: naming })
  const allowFailure = false
  const calls = [
    ...Artifacts.deployed.map(({ salt, bytecode }) => {
      return { target: create2Deployer, callData: concat([salt, bytecode]), allowFailure }
    }),
    ...[initialize, ...mints].map((callData) => ({ target: token, callData, allowFailure })),
  ]
  const aggregate = encodeFunctionData({ abi, functionName: 'aggregate3', args: [calls] })
  const unlimited = [Permit.permit2Address, maxUint256] as const
  const approve = encodeFunctionData({ abi, functionName: 'approve', args: unlimited })
  const gas = 10_000_000n
  return [
    { from: account(9).address, to: multicall3Address, data: aggregate, gas },
    { from: account(1).address, to: token, data: approve },
    { from: account(2).address, to: token, data: approve },
  ]
}

async function assertPrepared(chain: Chain, { asset, chainId }: Network): Promise<void> {
  const { address: verifyingContract, eip712 } = asset
  const expected = domainSeparator({ domain: { ...eip712, chainId, verifyingContract } })
  const data = encodeFunctionData({ abi, functionName: 'DOMAIN_SEPARATOR' })
  const [separator, ...codes] = await request(chain.url, [
    ['eth_call', [{ to: verifyingContract, data }, 'latest']],
    ...Artifacts.deployed.map(({ address }): RpcCall => ['eth_getCode', [address, 'latest']]),
  ])
  const missing = Artifacts.deployed.find((_, index) => codes[index] === '0x')
  if (missing) throw new Error(`no contract landed on its canonical address ${missing.address}`)
  if (separator === expected) return
  throw new Error(`chain ${chain.chainId}: the token's DOMAIN_SEPARATOR is not ${expected}`)
}

/**
 * One HTTP request for all calls, whose order of execution is not defined. Results are in the order
 * of the calls.
 */
export async function request(url: string, calls: readonly RpcCall[]): Promise<unknown[]> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(
      calls.map(([method, params], id) => ({ jsonrpc: '2.0', id, method, params })),
    ),
  })
  const answers = new Map(((await response.json()) as RpcAnswer[]).map((each) => [each.id, each]))
  return calls.map(([method], id) => {
    const answer = answers.get(id)
    if (answer?.error) throw new RpcError(method, answer.error)
    return answer?.result
  })
}
