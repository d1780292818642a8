import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../chain/client'
import * as Abi from '../protocol/Abi'
import * as Amount from '../protocol/Amount'
import * as Channel from '../protocol/Channel'
import * as ChannelFacilitation from '../protocol/ChannelFacilitation'
import type * as Network from '../protocol/Network'
import { type Fault, fault, isFault } from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import {
  type Checked,
  type Depositing,
  depositFails,
  depositKey,
  isDepositing,
  type Sendable,
} from '../settlement/channels/check'
import * as Refusals from '../settlement/read/refusals'
import type { Job, JobEnd } from '../settlement/send/Job'
import type { Settlement } from '../settlement/settlement'
import { type Answered, pending, type Refusal, type Success } from './answers'
import * as Policy from './Policy'
import { spendFor } from './payees'
import type { SettleOptions } from './settle-once'
import type { ChannelCall } from './verification'

/**
 * Payment channels of other resource servers. `/verify` reads the chain, and `/settle` sends what their
 * payers and authorizers have signed. Nothing is signed for them, and only the jobs are stored.
 */

type Presented = ChannelFacilitation.Presented

/** Answers a call. */
export async function answerChannelCall(
  options: SettleOptions,
  call: ChannelCall,
): Promise<Answered> {
  const { id } = call.network
  if (options.settlement.isReady(id) && !options.settlement.hasChannels(id)) {
    const detail = `The contracts of payment channels are not on ${id}.`
    return { code: 'unsupported_scheme', detail }
  }
  try {
    return await (call.operation === 'verify' ? verify(options, call) : settle(options, call))
  } catch (error) {
    if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
    return Refusals.later('The network cannot be reached now; try again.', 5)
  }
}

async function verify(options: SettleOptions, call: ChannelCall): Promise<Answered> {
  const { asked } = call
  const early = ChannelFacilitation.checkScheme(call)
  if (early !== undefined) return early
  if (asked.type !== 'presented') return otherType
  const found = await examine(options, call, asked)
  if (!('state' in found)) return found
  return { members: { extra: Channel.stateJson(asked.voucher.channelId, found.state) } }
}

/** Checks what a buyer presented, in the order of the reference facilitator. Throws RpcFault or RpcError. */
async function examine(
  options: SettleOptions,
  call: ChannelCall,
  presented: Presented,
): Promise<Checked | Refusal> {
  const { channels } = options.settlement
  if (!isDepositing(presented)) {
    const early = refuseEarly(options, call, presented)
    return early ?? channels.checkVoucher(call.network.id, presented, 0n)
  }
  const examined = await examineDeposit(options, call, presented)
  if ('state' in examined) return examined
  // Read after the simulation: a deposit that the chain has taken by then is in the state, and counts once.
  const sent = await channels.attemptOf(nameOf(presented))
  const arrived = sent?.row && (await examineSent(options, call, presented, 0n))
  return arrived && 'state' in arrived ? arrived : examined
}

/**
 * Whether a voucher beside a deposit that was sent is covered, in a block or later. What was sent under an
 * earlier configuration costs no more gas. Throws as `examine`.
 */
async function examineSent(
  { settlement }: SettleOptions,
  call: ChannelCall,
  presented: Presented,
  block: bigint,
): Promise<Checked | Refusal> {
  const { id, chainId } = call.network
  const other = ChannelFacilitation.checkChannel(call, presented, chainId)
  return other ?? settlement.channels.checkVoucher(id, presented, block)
}

/** Checks a deposit that the chain has not taken yet. Throws as `examine`. */
async function examineDeposit(
  options: SettleOptions,
  call: ChannelCall,
  presented: Depositing<Presented>,
): Promise<Sendable | Refusal> {
  const { settlement, now } = options
  const { network, requirements, extensions } = call
  const { voucher } = presented
  const refused = refuseEarly(options, call, presented) ?? refuseNow(settlement, network)
  if (refused !== undefined) return refused
  const { name = '', version = '' } = requirements
  const { payer, token: asset } = voucher.config
  const { by, amountAtomic } = voucher.deposit
  const transfer = { method: by.method, payer, asset, amountAtomic, voucher }
  const sponsored = Sponsoring.read(extensions, transfer, { now: now(), takesApprovals: false })
  const permitFault = isFault(sponsored) ? sponsored : undefined
  return settlement.channels.checkDeposit(network.id, Sponsoring.withPermit(presented, sponsored), {
    eip712: { name, version },
    permitFault,
  })
}

/** The refusals that need no chain. */
function refuseEarly(
  { policy, now }: SettleOptions,
  call: ChannelCall,
  presented: Presented,
): Fault | undefined {
  const { network, requirements } = call
  const { config, deposit } = presented.voucher
  return (
    Policy.checkPayee(policy, { ...requirements, payer: config.payer }) ??
    (deposit && Policy.checkAmount(policy, deposit.amountAtomic)) ??
    ChannelFacilitation.checkTerms(call, presented, { chainId: network.chainId, now: now() })
  )
}

/** Why nothing new is sent on a network now. */
function refuseNow({ isReady, hasBudget }: Settlement, { id }: Network.Network) {
  if (!isReady(id)) return Refusals.later('The network cannot settle now; try again.', 5)
  return hasBudget(id, 'facilitator') ? undefined : Refusals.budgetSpent
}

/** Calls for one deposit have the same name. */
function nameOf({ voucher }: Depositing<Presented>): string {
  return `f-deposit:${depositKey(voucher)}`
}

const otherType = fault(
  'invalid_batch_settlement_evm_payload_type',
  'payload.type is none that this operation takes.',
)

/** A transaction that a call asks for. */
type Plan = {
  what: 'deposit' | 'claim' | 'settlement' | 'refund'
  /** Calls with the same name have the same effect: one of them sends it. */
  name: string
  payee: Address
  /** Number of claims in it; none by default. */
  claims?: number
  /** What is sent, unless it is refused. Throws RpcFault or RpcError. */
  prepare: () => Promise<Prepared | Refusal>
  /** The event that shows what it has moved. */
  event?: Pick<Channel.Event, 'name' | 'subject'>
  /** What must be in the channel: the payload that was sent may be another one of this name. */
  deposit?: Depositing<Presented>
}

/** `amountAtomic`: what it moves; undefined where the least amount does not matter, or was checked. */
type Prepared = { call: Channel.Call & Pick<Job, 'runsCode'>; amountAtomic?: bigint | undefined }

/** Reason codes of a transaction that would fail. */
const simulationCodes = {
  deposit: 'invalid_batch_settlement_evm_deposit_simulation_failed',
  claim: 'invalid_batch_settlement_evm_claim_simulation_failed',
  settlement: 'invalid_batch_settlement_evm_settle_simulation_failed',
  refund: 'invalid_batch_settlement_evm_refund_simulation_failed',
} as const

/** Reason codes of a transaction that has failed. */
const transactionCodes = {
  deposit: 'invalid_batch_settlement_evm_deposit_transaction_failed',
  claim: 'invalid_batch_settlement_evm_claim_transaction_failed',
  settlement: 'invalid_batch_settlement_evm_settle_transaction_failed',
  refund: 'invalid_batch_settlement_evm_refund_transaction_failed',
} as const

async function settle(options: SettleOptions, call: ChannelCall): Promise<Answered> {
  const plan = await planOf(options, call)
  if (isFault(plan)) return plan
  const end = await send(options, call, plan)
  if (!('kind' in end) || end.kind === 'unavailable') return end
  switch (end.kind) {
    case 'confirmed':
      return membersOf(options, call, plan, end)
    case 'failed': {
      const failed = fault(transactionCodes[plan.what], 'The transaction failed.')
      return { ...failed, transaction: end.transaction }
    }
    case 'pending':
      return pending('transaction', end.transaction)
    case 'replaced':
      return Refusals.later('Another transaction took its place; ask again with the same call.', 2)
    case 'refused':
      throw new Error('a job without rows was refused for them')
  }
}

/** What a transaction has done. Throws RpcFault or RpcError. */
async function membersOf(
  options: SettleOptions,
  call: ChannelCall,
  { event, deposit }: Plan,
  { transaction, receipt }: Extract<JobEnd, { kind: 'confirmed' }>,
): Promise<Answered> {
  if (event === undefined) return { members: { transaction } }
  const { name, subject } = event
  const amountAtomic = Channel.amountIn(receipt.logs, name, subject) ?? 0n
  if (deposit && amountAtomic !== deposit.voucher.deposit.amountAtomic) return depositFails
  const moved = { transaction, amount: String(amountAtomic) }
  if (name === 'settled') return { members: moved }
  const { stateSince } = options.settlement.channels
  const found = deposit
    ? await examineSent(options, call, deposit, receipt.blockNumber)
    : { state: await stateSince(call.network.id, subject, receipt.blockNumber) }
  if (!('state' in found)) return found
  const channelState = Channel.stateJson(subject, found.state)
  return { members: { ...moved, extra: { channelState } } }
}

/** Sends a transaction once, or joins the one that was sent before. */
async function send(
  options: SettleOptions,
  call: ChannelCall,
  plan: Plan,
): Promise<JobEnd | Fault | Success> {
  const { settlement, settling, policy } = options
  const { attemptOf } = settlement.channels
  const network = call.network.id
  const seconds = call.requirements.maxTimeoutSeconds
  // The reference server claims and sweeps with a time of 0, and waits for the receipt.
  const waitMs = seconds > 0 ? Math.min(seconds * 1000, options.waitMs) : options.waitMs
  const first = await attemptOf(plan.name)
  if (first?.row !== undefined) return settlement.join(first.id, waitMs)
  const prepared = await prepare(options, call.network, plan)
  // An equal call may have sent it while this one asked the nodes.
  const next = await attemptOf(plan.name)
  if (next?.row !== undefined) return settlement.join(next.id, waitMs)
  if (!('gasLimit' in prepared)) return prepared
  if (next === undefined) return fails(plan)
  // A stranger has a deposit back by a refund, so the least amount does not limit it.
  const payee = policy.takesUpto ? plan.payee : Channel.settlementAddress
  const isLimited = !policy.takesUpto || Policy.isUnlisted(policy, payee)
  const terms = { kind: 'channel', product: 'facilitator', network, relayer: undefined } as const
  const job = { id: next.id, ...terms, ...prepared, valueWei: 0n }
  const { promise, resolve, reject } = Promise.withResolvers<JobEnd>()
  const work = async () => {
    const end = await settlement.run(job, { waitMs })
    resolve(end)
    // It counts as under way until its cost is known, however short the wait of its caller is.
    return end.kind === 'pending' ? settlement.join(job.id, options.waitMs) : end
  }
  const spending = { network, payee, isLimited, known: undefined, gas: prepared.gasLimit }
  spendFor(settling.payees, spending, work, (end) =>
    end === undefined || end.kind === 'unavailable' ? undefined : 'all',
  ).then(resolve, reject)
  return promise
}

/** The least amount pays for so much gas, which a payment of a wallet with code may need. */
const contractGas = 600_000n
/** Of a row whose payer has code. */
const rowGas = 150_000n
/**
 * Most bytes of a call; 100 claims of payers without code have 48,000. Nodes simulate more than they take: geth
 * takes 128 KiB (txMaxSize of core/txpool/legacypool), a sequencer of Nitro 95,000 bytes. What no node takes would
 * hold its account nonce forever, and with it all later payments of the relayer.
 */
const dataMaxBytes = 65_536

/** The transaction of a plan, unless it is refused, or would change nothing. */
async function prepare(
  { settlement, policy }: SettleOptions,
  network: Network.Network,
  plan: Plan,
): Promise<(Prepared['call'] & { gasLimit: bigint }) | Refusal | Success> {
  const prepared = refuseNow(settlement, network) ?? (await plan.prepare())
  if (!('call' in prepared)) return prepared
  const { call, amountAtomic } = prepared
  if (call.data.length > 2 + 2 * dataMaxBytes)
    return fails(plan, `The transaction is longer than ${dataMaxBytes} bytes.`)
  const gasLimit = await settlement.channels.gasLimitOf(network.id, call)
  const gasMax = contractGas + rowGas * BigInt(plan.claims ?? 0)
  if (gasLimit === undefined) return fails(plan)
  if (gasLimit > gasMax) return fails(plan, `The transaction needs more gas than ${gasMax}.`)
  // All of it was claimed before, perhaps by another sender.
  if (plan.what === 'claim' && amountAtomic === 0n) return { members: {} }
  const parts = (gasLimit + contractGas - 1n) / contractGas
  const little = amountAtomic !== undefined && Policy.checkAmount(policy, amountAtomic / parts)
  return little || { ...call, gasLimit }
}

function fails({ what }: Plan, detail = `The contract refuses the ${what}.`): Fault {
  return fault(simulationCodes[what], detail)
}

/** Throws RpcFault. */
async function planOf(options: SettleOptions, call: ChannelCall): Promise<Plan | Fault> {
  const { asked } = call
  if (asked.type === 'claim') return planOfClaim(options, call, asked.claim)
  if (asked.type === 'settle') return planOfSweep(options, call, asked)
  if (asked.type === 'other') return otherType
  if (isDepositing(asked)) return planOfDeposit(options, call, asked)
  return asked.refund ? planOfRefund(options, call, asked.voucher, asked.refund) : otherType
}

function planOfDeposit(
  options: SettleOptions,
  call: ChannelCall,
  presented: Depositing<Presented>,
): Plan {
  const { channelId, config } = presented.voucher
  return {
    what: 'deposit',
    name: nameOf(presented),
    payee: config.receiver,
    event: { name: 'deposited', subject: channelId },
    deposit: presented,
    prepare: () => examineDeposit(options, call, presented),
  }
}

function planOfClaim(
  options: SettleOptions,
  { network, requirements }: ChannelCall,
  { rows, signature }: ChannelFacilitation.Claim,
): Plan | Fault {
  if (signature === undefined) return unsigned
  const call = Channel.claimCall(rows, signature)
  return {
    what: 'claim',
    name: `f-claim:${network.id}:${Abi.hash(call.data.slice(2))}`,
    payee: rows[0]?.config.receiver ?? requirements.payTo,
    claims: rows.length,
    async prepare() {
      const configs = rows.map(({ config }) => config)
      const refused = refusePayees(options, network, configs)
      return refused ?? { call, amountAtomic: await grownBy(options, network, rows) }
    },
  }
}

/** What claims add to what was claimed of their channels. Throws RpcFault. */
async function grownBy(
  { settlement }: SettleOptions,
  network: Network.Network,
  rows: readonly Channel.ClaimRow[],
): Promise<bigint> {
  const totals = [...totalsOf(network, rows)]
  const calls = totals.map(([id]) => Channel.channelsCall(id))
  const { results } = await settlement.read(network.id, calls)
  return totals.reduce((sum, [, total], index) => {
    const [, claimed = total] = Channel.parsePair(results[index] ?? '0x') ?? []
    return total > claimed ? sum + total - claimed : sum
  }, 0n)
}

/** What rows claim of each channel in all. */
function totalsOf({ chainId }: Network.Network, rows: readonly Channel.ClaimRow[]) {
  const totals = new Map<Hex, bigint>()
  for (const { config, chargedAtomic } of rows) {
    const id = Channel.idOf(config, chainId)
    totals.set(id, Amount.greatest(totals.get(id) ?? 0n, chargedAtomic))
  }
  return totals
}

function refusePayees(
  { policy }: SettleOptions,
  { id: network }: Network.Network,
  configs: readonly Channel.Config[],
): Fault | undefined {
  return configs
    .map(({ payer, receiver: payTo, token: asset }) =>
      Policy.checkPayee(policy, { network, asset, payTo, payer }),
    )
    .find((refused) => refused !== undefined)
}

const unsigned = fault(
  'invalid_batch_settlement_evm_authorizer_not_configured',
  'This facilitator signs no claim or refund: sign it by the key of the receiver authorizer.',
)

/** A sweep has no nonce: its name is what was claimed until now. Throws RpcFault. */
async function planOfSweep(
  { settlement, policy }: SettleOptions,
  { network: { id: network } }: ChannelCall,
  { receiver, token }: { receiver: Address; token: Address },
): Promise<Plan | Fault> {
  const terms = { network, asset: token, payTo: receiver, payer: undefined }
  const refused = Policy.checkPayee(policy, terms)
  if (refused !== undefined) return refused
  const { results } = await settlement.read(network, [Channel.receiversCall(receiver, token)])
  const income = Channel.parsePair(results[0] ?? '0x')
  if (income === undefined) throw new RpcFault('the claims of a receiver cannot be read')
  const [claimedAtomic, settledAtomic] = income
  if (claimedAtomic <= settledAtomic) {
    const detail = `All that was claimed for ${receiver} was settled.`
    return fault('invalid_batch_settlement_evm_nothing_to_settle', detail)
  }
  const call = Channel.settleCall(receiver, token)
  return {
    what: 'settlement',
    name: `f-settle:${network}:${receiver}:${token}:${claimedAtomic}`,
    payee: receiver,
    event: { name: 'settled', subject: `0x${Abi.address(receiver)}` },
    prepare: async () => ({ call, amountAtomic: claimedAtomic - settledAtomic }),
  }
}

function planOfRefund(
  options: SettleOptions,
  { network }: ChannelCall,
  { config }: Channel.Voucher,
  asked: ChannelFacilitation.Refund,
): Plan {
  const { amountAtomic, nonce, claim } = asked
  const { rows } = claim
  const id = Channel.idOf(config, network.chainId)
  return {
    what: 'refund',
    name: `f-refund:${id}:${nonce}`,
    payee: config.receiver,
    claims: rows.length,
    event: { name: 'refunded', subject: id },
    async prepare() {
      const configs = [config, ...rows.map((row) => row.config)]
      const refused = refusePayees(options, network, configs)
      if (refused !== undefined) return refused
      const state = await options.settlement.channels.stateSince(network.id, id, 0n)
      const { balanceAtomic, claimedAtomic } = state
      const total = Amount.greatest(claimedAtomic, totalsOf(network, rows).get(id) ?? 0n)
      if (amountAtomic > 0n && total === balanceAtomic) {
        const detail = 'Nothing of the channel is left to refund.'
        return fault('invalid_batch_settlement_evm_refund_no_balance', detail)
      }
      const call = refundCallOf(config, asked)
      if (call === undefined) return unsigned
      // A buyer may close a channel whatever is left of it.
      const isAll = amountAtomic >= balanceAtomic - total && rows.length <= 1
      return { call, amountAtomic: isAll ? undefined : amountAtomic }
    },
  }
}

/** A claim and the refund in one transaction; undefined where either is not signed. */
function refundCallOf(
  config: Channel.Config,
  { amountAtomic, nonce, signature, claim }: ChannelFacilitation.Refund,
): Channel.Call | undefined {
  const refund = signature && Channel.refundCall(config, amountAtomic, nonce, signature)
  if (!refund || claim.rows.length === 0) return refund
  return (
    claim.signature && Channel.multicall([Channel.claimCall(claim.rows, claim.signature), refund])
  )
}
