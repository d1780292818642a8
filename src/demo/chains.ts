import {
  type Address,
  concat,
  domainSeparator,
  encodeDeployData,
  encodeFunctionData,
  type Hex,
  maxUint256,
  numberToHex,
  pad,
  parseAbi,
} from 'viem'
import type { NetworkConfig } from '../config/Config'
import * as Permit from '../protocol/Permit'
import * as Upto from '../protocol/Upto'
import { account, accounts } from './accounts'
import { startAnvil } from './anvil'
import * as Artifacts from './contracts/artifacts'

/** A local chain. `wsUrl` is the same port's WebSocket. */
export type Chain = {
  chainId: number
  url: string
  wsUrl: string
  port: number
  pid: number
  /** One JSON-RPC call; throws RpcError with the node's error. */
  rpc(method: string, params: readonly unknown[]): Promise<unknown>
  /** Ends the process; resolves when it has ended. */
  stop(): Promise<void>
}

export type ChainOptions = {
  chainId: number
  /** 0 or absent: a free port. */
  port?: number
  /** Mine a block each interval; absent: a block per transaction. */
  blockTimeMs?: number
  /** Mine only by `mine`. */
  mineNothing?: boolean
  /**
   * The node has the keys of the accounts 0 to 9, so that other nodes take the bytes of their
   * transactions. Deriving them takes 40 ms of processor time; without, they are impersonated.
   */
  hasKeys?: boolean
  extraArgs?: readonly string[]
}

/** The fields of a receipt that tests and the demo read. */
export type Receipt = {
  transactionHash: Hex
  status: Hex
  blockNumber: Hex
  contractAddress: Address | null
  gasUsed: Hex
  logs: readonly { address: Address; topics: readonly Hex[]; data: Hex }[]
}

/** A transaction of an account that the node sends for. */
export type Call = { from: Address; to?: Address; data?: Hex; value?: bigint; gas?: bigint }

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
export async function startChain(options: ChainOptions): Promise<Chain> {
  const { chainId, port = 0, blockTimeMs, mineNothing = false, hasKeys = false } = options
  const args = ['--port', `${port}`, '--chain-id', `${chainId}`, ...(options.extraArgs ?? [])]
  if (!hasKeys) args.push('--accounts', '0')
  if (blockTimeMs !== undefined) args.push('--block-time', `${blockTimeMs / 1000}`)
  if (mineNothing) args.push('--no-mining')
  const anvil = await startAnvil(args)
  const url = `http://127.0.0.1:${anvil.port}`
  const chain: Chain = {
    chainId,
    url,
    wsUrl: `ws://127.0.0.1:${anvil.port}`,
    port: anvil.port,
    pid: anvil.pid,
    rpc: async (method, params) => (await request(url, [[method, params]]))[0],
    stop: anvil.stop,
  }
  await request(url, [
    ['anvil_setLoggingEnabled', [false]],
    ...(hasKeys ? [] : accounts).flatMap(({ address }): RpcCall[] => [
      ['anvil_impersonateAccount', [address]],
      ['anvil_setBalance', [address, numberToHex(fundedWei)]],
    ]),
  ])
  return chain
}

/**
 * Places the network's token, Permit2, the proxies of the schemes `exact` and `upto`, and Multicall3
 * at their real addresses. Mints to the accounts 1 to 5. Accounts 1 and 2 approve Permit2; 3 to 5
 * have no gas on chain 4663. Once per chain. Throws when anything fails or the token's EIP-712
 * domain is not the configured one.
 */
export async function prepareChain(
  chain: Chain,
  network: Pick<NetworkConfig, 'asset' | 'chainId'>,
): Promise<void> {
  if (chain.chainId !== network.chainId) {
    throw new Error(`chain ${chain.chainId} is not ${network.chainId}`)
  }
  const token = network.asset.address
  const poor = network.chainId === gaslessChainId ? [3, 4, 5] : []
  const [multicall] = await request(chain.url, [
    // Without a receiver the call runs the creation code, which returns the runtime code.
    ['eth_call', [{ data: Artifacts.multicall3.bytecode }, 'latest']],
    ['anvil_setCode', [token, Artifacts.Stablecoin.deployedBytecode]],
    ['anvil_setCode', [Permit.proxyAddress, Artifacts.ExactPermit2Proxy.deployedBytecode]],
    ['anvil_setCode', [Upto.proxyAddress, Artifacts.UptoPermit2Proxy.deployedBytecode]],
    ...poor.map((index): RpcCall => ['anvil_setBalance', [account(index).address, '0x0']]),
  ])
  await chain.rpc('anvil_setCode', [multicall3Address, multicall])
  await execute(chain, setupCalls(network))
  await assertPrepared(chain, network)
}

/**
 * Starts and prepares the chains of several networks concurrently, in their order. On a failure all
 * are stopped.
 */
export async function startChains(
  networks: readonly Pick<NetworkConfig, 'asset' | 'chainId'>[],
  options: Omit<ChainOptions, 'chainId' | 'port'> = {},
): Promise<Chain[]> {
  const started = await Promise.allSettled(
    networks.map(async (network) => {
      const chain = await startChain({ ...options, chainId: network.chainId })
      return prepareChain(chain, network).then(
        () => chain,
        async (error) => {
          await chain.stop()
          throw error
        },
      )
    }),
  )
  const chains = started.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  const failed = started.find((result) => result.status === 'rejected')
  if (!failed) return chains
  await Promise.all(chains.map((chain) => chain.stop()))
  throw failed.reason
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
  artifact: Artifacts.Artifact,
  args: readonly unknown[] = [],
): Promise<Address> {
  const data = encodeDeployData({ abi: artifact.abi, bytecode: artifact.bytecode, args })
  const [receipt] = await execute(chain, [{ from: account(9).address, data }])
  if (!receipt?.contractAddress) throw new Error('the receipt names no contract')
  return receipt.contractAddress
}

/**
 * Sends transactions of the node's own accounts (0 to 9) and mines them, in every mining mode.
 * Throws when one of them fails.
 */
export async function execute(chain: Chain, calls: readonly Call[]): Promise<Receipt[]> {
  const hashes: unknown[] = []
  for (const { value = 0n, gas, ...call } of calls) {
    const amounts = { value: numberToHex(value), ...(gas && { gas: numberToHex(gas) }) }
    // One after the other: two concurrent transactions of an account may get the same nonce.
    hashes.push(await chain.rpc('eth_sendTransaction', [{ ...call, ...amounts }]))
  }
  await mine(chain)
  const receipts: Receipt[] = []
  for (const hash of hashes) receipts.push(await receiptOf(chain, hash as Hex))
  const failed = receipts.find(({ status }) => status !== '0x1')
  if (failed) throw new Error(`transaction ${failed.transactionHash} failed`)
  return receipts
}

/** Polls for the receipt; throws when it does not arrive. */
export async function receiptOf(chain: Chain, hash: Hex): Promise<Receipt> {
  // A local answer takes less than a millisecond: about ten seconds.
  for (let attempt = 0; attempt < 20_000; attempt++) {
    const receipt = await chain.rpc('eth_getTransactionReceipt', [hash])
    if (receipt) return receipt as Receipt
  }
  throw new Error(`transaction ${hash} was not mined`)
}

function setupCalls(network: Pick<NetworkConfig, 'asset'>): Call[] {
  const { address: token, eip712, symbol, decimals, revertsOnUsedNonce } = network.asset
  const initialize = encodeFunctionData({
    abi,
    functionName: 'initialize',
    args: [eip712.name, symbol, eip712.version, decimals, revertsOnUsedNonce],
  })
  const mints = [1, 2, 3, 4, 5].map((index) =>
    encodeFunctionData({
      abi,
      functionName: 'mint',
      args: [account(index).address, mintedAtomic],
    }),
  )
  const aggregate = encodeFunctionData({
    abi,
    functionName: 'aggregate3',
    args: [
      [initialize, ...mints].map((callData) => ({ target: token, allowFailure: false, callData })),
    ],
  })
  const approve = encodeFunctionData({
    abi,
    functionName: 'approve',
    args: [Permit.permit2Address, maxUint256],
  })
  const { salt, bytecode } = Artifacts.permit2
  const gas = 5_000_000n
  return [
    { from: account(9).address, to: create2Deployer, data: concat([salt, bytecode]), gas },
    { from: account(9).address, to: multicall3Address, data: aggregate, gas },
    { from: account(1).address, to: token, data: approve, gas },
    { from: account(2).address, to: token, data: approve, gas },
  ]
}

async function assertPrepared(
  chain: Chain,
  network: Pick<NetworkConfig, 'asset' | 'chainId'>,
): Promise<void> {
  const { address: verifyingContract, eip712 } = network.asset
  const expected = domainSeparator({
    domain: { ...eip712, chainId: network.chainId, verifyingContract },
  })
  const data = encodeFunctionData({ abi, functionName: 'DOMAIN_SEPARATOR' })
  const [permit2, separator] = await request(chain.url, [
    ['eth_getCode', [Permit.permit2Address, 'latest']],
    ['eth_call', [{ to: verifyingContract, data }, 'latest']],
  ])
  if (permit2 === '0x') throw new Error('Permit2 did not land on its canonical address')
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
