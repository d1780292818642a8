import type { Address } from 'viem'
import { type Node, RpcError, RpcFault } from '../../chain/client'
import * as Clock from '../../chain/clock'
import { isAboveCap, learnFees, observeBlock, observeTime, reconsiderHead } from '../../chain/head'
import * as Multicall from '../../chain/multicall'
import * as Receipt from '../../chain/receipt'
import * as Token from '../../chain/token'
import { scrub } from '../../log'
import * as Abi from '../../protocol/Abi'
import * as Permit from '../../protocol/Permit'
import * as Upto from '../../protocol/Upto'
import { channelContracts, readChannelMethods } from '../channels/ability'
import { readCount } from '../read/reads'
import { hasCode } from '../read/simulate'
import { lowestOf } from '../repair/reorg'
import { pausedBy } from '../send/relayer'
import { remedyFor, remedyOfReason } from './availability'
import { isPoor } from './out-of-gas'
import type { ChainState, Context, Relayer } from './state'

/** Checks between two reads of what rarely changes: code and signing domain. */
const rareEvery = 20
/** Short, so that other URLs do not delay the check of the URL in use. */
const otherMs = 2_000

/**
 * Checks whether the network can settle, reads each relayer's account, and stores the results in
 * `chain.health` and the relayers. Reasons name hosts and addresses only. Never rejects.
 */
export async function checkHealth(context: Context, chain: ChainState): Promise<void> {
  const { health } = chain
  const before = reasonsOf(chain)
  let reason: string | undefined
  try {
    reason = await findTrouble(context, chain)
    health.checks++
  } catch (error) {
    // A node may repeat its URL, whose path is a key. The reason is in webhooks and on the terminal.
    const isTold = error instanceof RpcFault || error instanceof RpcError
    const why = isTold ? scrub(error.message) : 'fault'
    reason = `no usable answer of ${chain.client.hosts.join(', ')}: ${why}`
  }
  health.reason = reason
  health.ready = reason === undefined
  if (!health.isQuiet) announce(context, chain, before)
}

/** Why each relayer of a network sends nothing new; undefined for those that send. */
export function reasonsOf({ health, relayers }: ChainState): readonly (string | undefined)[] {
  return relayers.map((relayer) => health.reason ?? pausedBy(relayer))
}

/** Logs each relayer whose reason is another one than `before`, which has them in the same order. */
export function announce(
  context: Pick<Context, 'log'>,
  chain: ChainState,
  before: readonly (string | undefined)[],
): void {
  const { health, network, relayers } = chain
  const { reason } = health
  const now = reasonsOf(chain)
  for (const [index, relayer] of relayers.entries()) {
    const after = now[index]
    if (before[index] === after) continue
    const fields = { network: network.id, relayer: relayer.address, balanceWei: relayer.balanceWei }
    if (after === undefined) context.log('network-ready', fields)
    else {
      const remedy = reason === undefined ? remedyFor(chain, relayer) : remedyOfReason(reason)
      context.log('network-not-ready', { ...fields, reason: after, ...(remedy && { remedy }) })
    }
  }
}

async function findTrouble(context: Context, chain: ChainState): Promise<string | undefined> {
  const { client, relayers, head, network, health } = chain
  const { monotonic } = context
  // Every nonce of ours below this number is decided; undefined before the first check.
  const expected = relayers.map(({ slots, next }) =>
    slots.size === 0 ? next : Math.min(...slots.keys()),
  )
  const askedAt = monotonic()
  const [chainId, block, tip, others, balances, counts] = await Promise.all([
    client.call('eth_chainId', []),
    client.call('eth_getBlockByNumber', ['latest', false]).then((answer) => ({
      newest: Receipt.parseBlock(answer),
      times: { askedAt, answeredAt: monotonic() },
    })),
    client.call('eth_maxPriorityFeePerGas', []).catch(ignoreRpcError),
    Promise.all(client.others().map((node) => askOther(chain, node))),
    Promise.all(relayers.map(({ address }) => client.call('eth_getBalance', [address, 'latest']))),
    Promise.all(relayers.map((relayer) => readCount(chain, relayer, 'pending'))),
  ])
  const answers = others.filter((each) => each !== undefined)
  // The number of other URLs that answer for this chain.
  health.others = answers.length
  if (!Receipt.isHex(chainId) || Number(chainId) !== network.chainId) {
    return `${client.hosts.join(', ')} is not chain ${network.chainId}`
  }
  const { newest, times } = block
  if (!newest || !balances.every(Receipt.isHex)) throw new RpcFault('not a block or not a balance')
  observeBlock(head, newest)
  const leapt = head.number
  if (reconsiderHead(head, newest.number)) {
    Clock.reconsider(chain.clock, newest.number)
    const fields = { network: network.id, told: leapt, newest: newest.number }
    context.log('block-number-taken-back', fields)
  }
  Clock.observe(chain.clock, newest, times)
  observeTime(head, newest.timestamp, Clock.chainNow(context, chain))
  const said: OtherFees[] = [{ tip, block: newest }, ...answers]
  learnFees(head, {
    tips: said.flatMap((each) => (Receipt.isHex(each.tip) ? [BigInt(each.tip)] : [])),
    baseFees: said.flatMap(({ block }) => block?.baseFeeWei ?? []),
  })
  if (health.checks % rareEvery === 0 || !health.ready) {
    const fault = await checkRarely(chain)
    if (fault !== undefined) return fault
  }
  for (const [index, relayer] of relayers.entries()) {
    follow(chain, relayer, counts[index] ?? 0, expected[index])
    assess(chain, relayer, BigInt(balances[index] ?? 0))
  }
  const skewMs = Clock.skewOf(context, chain)
  if (Math.abs(skewMs) > context.policy.clockSkewMaxMs) {
    const seconds = Math.round(Math.abs(skewMs) / 1000)
    const side = skewMs > 0 ? 'ahead of' : 'behind'
    return `the clock of this machine is ${seconds} s ${side} the newest block of ${network.id}`
  }
  if (isAboveCap(head, network.feeCapWei))
    return `the base fee is above the fee cap of ${network.id}`
  return undefined
}

/** Fees as another node reports them, so that no single node decides what we pay. */
type OtherFees = { tip: unknown; block: Receipt.Block | undefined }

/** Undefined for a node that does not answer for this chain. Never rejects. */
async function askOther({ network }: ChainState, node: Node): Promise<OtherFees | undefined> {
  const ask = (method: string, params: readonly unknown[]) =>
    node.call(method, params, { timeoutMs: otherMs }).catch(() => undefined)
  const [chainId, tip, latest] = await Promise.all([
    ask('eth_chainId', []),
    ask('eth_maxPriorityFeePerGas', []),
    ask('eth_getBlockByNumber', ['latest', false]),
  ])
  if (!Receipt.isHex(chainId) || Number(chainId) !== network.chainId) return undefined
  return { tip, block: Receipt.parseBlock(latest) }
}

function assess({ head, network }: ChainState, relayer: Relayer, balanceWei: bigint): void {
  relayer.balanceWei = balanceWei
  relayer.poor = isPoor(balanceWei, head, network.feeCapWei)
    ? `relayer ${relayer.address} holds ${balanceWei} wei, too little for gas`
    : undefined
  if (relayer.slots.size > 0) return
  relayer.refused = undefined
  relayer.stuck = undefined
}

async function checkRarely(chain: ChainState): Promise<string | undefined> {
  const { client, network } = chain
  const { asset } = network
  const contracts: [string, Address][] = [
    [asset.symbol, asset.address],
    ['Multicall3', Multicall.multicallAddress],
  ]
  if (asset.transfer.includes('permit2')) {
    contracts.push(['Permit2', Permit.permit2Address])
    contracts.push(['x402ExactPermit2Proxy', Permit.proxyAddress])
  }
  const own = contracts.map(([, address]) => address)
  const asked = [...new Set([...own, ...uptoContracts, ...channelContracts])]
  const found = await Multicall.findMissing(client, asked)
  const missing = found ?? (await findEmpty(chain, asked))
  chain.abilities.readsCode = found !== undefined
  chain.abilities.hasUpto = uptoContracts.every((each) => !missing.has(each))
  chain.abilities.channelMethods = await readChannelMethods(client, asset, missing)
  for (const [name, address] of contracts)
    if (missing.has(address)) return `${name} is not at ${address} on ${network.id}`
  const expected = Abi.domainSeparator(network.chainId, asset.address, asset.eip712)
  const answer = await client
    .call('eth_call', [Token.domainSeparator(asset.address), 'latest'])
    .catch(ignoreRpcError)
  // The token would reject buyers' signatures, so sell nothing.
  if (answer === `0x${expected}`) return undefined
  return `DOMAIN_SEPARATOR of ${asset.symbol} is not that of "${asset.eip712.name}" "${asset.eip712.version}"`
}

/** The contracts that the scheme `upto` needs. */
const uptoContracts = [Permit.permit2Address, Upto.proxyAddress]

/** The addresses without code. For a node that must be asked for each. Throws RpcFault or RpcError. */
async function findEmpty(
  chain: ChainState,
  addresses: readonly Address[],
): Promise<ReadonlySet<Address>> {
  const isThere = await Promise.all(addresses.map((address) => hasCode(chain, address)))
  return new Set(addresses.filter((_, index) => !isThere[index]))
}

/**
 * Follows the chain's count of the relayer's transactions. Raises the nonce at once. A count below
 * what was decided before the read means that the node lags or the chain lost blocks. It counts
 * when two checks agree.
 */
function follow(
  chain: ChainState,
  relayer: Relayer,
  count: number,
  expected: number | undefined,
): void {
  if (relayer.next === undefined || count > relayer.next) {
    relayer.next = Math.max(relayer.next ?? 0, count, relayer.floor)
  }
  const isLow = expected !== undefined && count < expected
  const isSure = relayer.lag?.count === count && relayer.lag.expected === expected
  // The blocks of the last check before the first low count, because blocks come meanwhile.
  const from = relayer.lag?.from ?? chain.watch.from ?? lowestOf(chain)
  relayer.lag = isLow ? { count, expected, isSure, from } : undefined
}

function ignoreRpcError(error: unknown): undefined {
  if (!(error instanceof RpcError)) throw error
  return undefined
}
