import type { Address, Hex } from 'viem'
import { RpcError, RpcFault } from '../chain/client'
import type { Receipt } from '../chain/receipt'
import { zero } from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import * as Channel from '../protocol/Channel'
import type { Presented } from '../protocol/ChannelFacilitation'
import * as ChannelFacilitation from '../protocol/ChannelFacilitation'
import type { OfChannel, Operation } from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import { type Fault, fault, isFault } from '../protocol/Problem'
import * as Refusals from '../settlement/read/refusals'
import type { JobEnd } from '../settlement/send/Job'
import { pause } from '../settlement/state/wait'
import {
  type ChannelCall,
  type CheckOptions,
  depositFails,
  depositName,
  examine,
  type Refusal,
  readState,
  refuseNow,
  type Unavailable,
  unlessSpent,
} from './channel-checks'
import * as Policy from './Policy'
import { overShare, type SettleRuns } from './settle-once'

/**
 * Payment channels of other resource servers. `/verify` reads the chain, and `/settle` sends what their
 * payers and authorizers have signed. Nothing is signed for them, and only the jobs are stored.
 */

type Options = CheckOptions & {
  /** Longest wait of a call, ms. */
  waitMs: number
  settling: Pick<SettleRuns, 'payees'>
}

/** Reads a call. Faults are answered 400. */
export function openChannelCall(
  networks: readonly Network.Network[],
  unread: OfChannel,
  operation: Operation,
): ChannelCall | Fault {
  const request = ChannelFacilitation.read(unread)
  if (isFault(request)) return request
  const network = networks.find(({ id }) => id === request.requirements.network)
  if (network !== undefined) return { ...request, operation, network }
  const ids = networks.map(({ id }) => id).join(', ')
  return { code: 'invalid_network', detail: `This facilitator settles on ${ids} only.` }
}

type Answered =
  | Refusal
  | { kind: 'good' | 'success'; members: object }
  | { kind: 'pending'; transaction: Hex }
  | { kind: 'failed'; fault: Fault; transaction: Hex }

type Kind = 'good' | 'bad' | 'success' | 'pending' | 'failed'

/** Answers a call. `kind` is for metrics, and `answer` for the log. */
export async function answerChannelCall(
  options: Options,
  call: ChannelCall,
): Promise<{ kind: Kind; answer: string; json: object } | Unavailable> {
  const answered = await answerTo(options, call)
  const payer = call.asked.type === 'presented' ? call.asked.payer : undefined
  const isVerify = call.operation === 'verify'
  const refused = ({ code, detail }: Fault, transaction = '', status?: 'pending') => ({
    kind: status ?? (isVerify ? ('bad' as const) : ('failed' as const)),
    answer: code,
    json: isVerify
      ? { isValid: false, invalidReason: code, invalidMessage: detail, payer }
      : {
          ...{ success: false, status, errorReason: code, errorMessage: detail },
          ...{ transaction, network: call.network.id, payer },
        },
  })
  if (isFault(answered)) return refused(answered)
  const { kind } = answered
  switch (kind) {
    case 'good':
      return { kind, answer: kind, json: { isValid: true, payer, ...answered.members } }
    case 'success': {
      const parties = { transaction: '', network: call.network.id, payer }
      return { kind, answer: kind, json: { success: true, ...parties, ...answered.members } }
    }
    case 'pending':
      return refused(pending, answered.transaction, kind)
    case 'failed':
      return refused(answered.fault, answered.transaction)
    case 'unavailable':
      return answered
  }
}

const pending: Fault = {
  code: 'settlement_pending',
  detail: 'The transaction is not confirmed yet; ask again with the same call.',
}

async function answerTo(options: Options, call: ChannelCall): Promise<Answered> {
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

async function verify(options: Options, call: ChannelCall): Promise<Answered> {
  const { asked } = call
  const early = ChannelFacilitation.checkScheme(call)
  if (early !== undefined) return early
  if (asked.type !== 'presented') return otherType
  const found = await examine(options, call, asked)
  if (!('state' in found)) return found
  return {
    kind: 'good',
    members: { extra: Channel.stateJson(asked.voucher.channelId, found.state) },
  }
}

const otherType = fault(
  'invalid_batch_settlement_evm_payload_type',
  'payload.type is none that this operation takes.',
)

/** `amountAtomic`: what it moves; undefined where the least amount does not matter. */
type Prepared = { call: Channel.Call; amountAtomic: bigint | undefined }

/** Reason codes of a transaction that would fail, and of one that has failed. */
const failures = {
  deposit: {
    simulated: 'invalid_batch_settlement_evm_deposit_simulation_failed',
    sent: 'invalid_batch_settlement_evm_deposit_transaction_failed',
  },
  claim: {
    simulated: 'invalid_batch_settlement_evm_claim_simulation_failed',
    sent: 'invalid_batch_settlement_evm_claim_transaction_failed',
  },
  settle: {
    simulated: 'invalid_batch_settlement_evm_settle_simulation_failed',
    sent: 'invalid_batch_settlement_evm_settle_transaction_failed',
  },
  refund: {
    simulated: 'invalid_batch_settlement_evm_refund_simulation_failed',
    sent: 'invalid_batch_settlement_evm_refund_transaction_failed',
  },
} as const

/** A transaction that a call asks for. */
type Plan = {
  /** Calls with the same name have the same effect: one of them sends it. */
  name: string
  what: keyof typeof failures
  payee: Address
  /** The most gas that it may need. */
  gasMax: bigint
  /** What is sent, unless it is refused, or has no effect any more. Throws RpcFault. */
  prepare: () => Promise<Prepared | Refusal | 'nothing'>
  /** Members of the answer to its success. Throws RpcFault. */
  finish: (receipt: Receipt) => Promise<object | Fault>
}

async function settle(options: Options, call: ChannelCall): Promise<Answered> {
  const plan = await planOf(options, call)
  if (isFault(plan)) return plan
  const end = await send(options, call, plan)
  if (end === 'nothing') return { kind: 'success', members: {} }
  if (isFault(end)) return end
  const { kind } = end
  switch (kind) {
    case 'confirmed': {
      const { transaction } = end
      const members = await plan.finish(end.receipt)
      return isFault(members) ? members : { kind: 'success', members: { transaction, ...members } }
    }
    case 'failed': {
      const failed = fault(failures[plan.what].sent, 'The transaction failed.')
      return { kind, fault: failed, transaction: end.transaction }
    }
    case 'pending':
    case 'unavailable':
      return end
    case 'replaced':
      return Refusals.later('Another transaction took its place; ask again with the same call.', 2)
    case 'refused':
      throw new Error('a job without rows was refused for them')
  }
}

/** The call of a job that was written before does not count. */
const ofBefore: Channel.Call = { to: zero, data: '0x' }

/** Sends a transaction once, or joins the one that was sent before. */
async function send(
  options: Options,
  { network: { id: network }, requirements }: ChannelCall,
  plan: Plan,
): Promise<JobEnd | Fault | 'nothing'> {
  const { settlement, policy, settling } = options
  const { attemptOf, gasLimitOf } = settlement.channels
  const { payees } = settling
  const seconds = requirements.maxTimeoutSeconds
  // The reference server claims and sweeps with a time of 0, and waits for the receipt.
  const waitMs = seconds > 0 ? Math.min(seconds * 1000, options.waitMs) : options.waitMs
  const run = (id: string, call: Channel.Call, gasLimit: bigint) => {
    const job = { id, kind: 'channel', product: 'facilitator', network } as const
    return settlement.run(
      { ...job, ...call, relayer: undefined, valueWei: 0n, gasLimit },
      { waitMs },
    )
  }
  const first = await attemptOf(plan.name)
  if (first?.row !== undefined) return run(first.id, ofBefore, 0n)
  const prepared = refuseNow(options, network) ?? (await plan.prepare())
  const isSent = prepared !== 'nothing' && 'call' in prepared
  const gasLimit = isSent ? await gasLimitOf(network, prepared.call) : undefined
  // An equal call may have sent it while this one asked the nodes.
  const next = await attemptOf(plan.name)
  if (next?.row !== undefined) return run(next.id, ofBefore, 0n)
  if (!isSent) return prepared
  if (gasLimit === undefined || gasLimit > plan.gasMax || next === undefined) {
    const detail = `The transaction fails, or needs more gas than ${plan.gasMax}.`
    return fault(failures[plan.what].simulated, detail)
  }
  const { call, amountAtomic } = prepared
  const parts = (gasLimit + contractGas - 1n) / contractGas
  const little = amountAtomic !== undefined && Policy.checkAmount(policy, amountAtomic / parts)
  if (little) return little
  // A stranger has a deposit back by a refund, so the least amount does not limit it.
  const payee = policy.takesUpto ? plan.payee : Channel.settlementAddress
  const isShared = !policy.takesUpto || Policy.isUnlisted(policy, payee)
  if (isShared) await payees.load()
  // Do not await from here to the count: calls for one payee must not pass its share together.
  if (isShared && payees.isSpent(network, payee)) return overShare
  const count = payees.begin({ network, payee, known: undefined })
  let end: JobEnd | undefined
  try {
    await count.ready
    end = await run(next.id, call, gasLimit)
    return end
  } finally {
    await count.end(end === undefined || end.kind === 'unavailable' ? undefined : gasLimit)
  }
}

/** Throws RpcFault. */
async function planOf(options: Options, call: ChannelCall): Promise<Plan | Fault> {
  const { asked } = call
  if (asked.type === 'claim') return planOfClaim(options, call, asked.claim)
  if (asked.type === 'settle') return planOfSweep(options, call, asked)
  if (asked.type !== 'presented') return otherType
  if (asked.voucher.deposit) return planOfDeposit(options, call, asked, asked.voucher.deposit)
  return asked.refund === undefined ? otherType : planOfRefund(options, call, asked, asked.refund)
}

/** The least amount pays for so much gas, which a payment of a wallet with code may need. */
const contractGas = 600_000n
/** Of a row whose payer has code. */
const rowGas = 150_000n

function planOfDeposit(
  options: Options,
  call: ChannelCall,
  presented: Presented,
  { amountAtomic }: Channel.Deposit,
): Plan {
  const { voucher } = presented
  const { channelId, config } = voucher
  return {
    name: depositName(voucher),
    what: 'deposit',
    payee: config.receiver,
    gasMax: contractGas,
    async prepare() {
      const examined = await examine(options, call, presented)
      if (!('state' in examined)) return examined
      return examined.call ? { call: examined.call, amountAtomic } : 'nothing'
    },
    async finish(receipt) {
      const amount = Channel.amountIn(receipt.logs, 'deposited', channelId)
      // Another payload with the same nonce was sent before.
      if (amount !== amountAtomic) return depositFails
      const state = await readAfter(options, call, channelId, receipt)
      return {
        amount: String(amount),
        extra: { channelState: Channel.stateJson(channelId, state) },
      }
    },
  }
}

function planOfClaim(
  options: Options,
  { network, requirements }: ChannelCall,
  { rows, signature }: ChannelFacilitation.Claim,
): Plan | Fault {
  if (signature === undefined) return unsigned
  const claim = Channel.claimCall(rows, signature)
  return {
    name: `f-claim:${network.id}:${hashOf(claim)}`,
    what: 'claim',
    payee: rows[0]?.config.receiver ?? requirements.payTo,
    gasMax: contractGas + rowGas * BigInt(rows.length),
    async prepare() {
      const refused = refuseRows(options, network, rows)
      if (refused !== undefined) return refused
      const totals = totalsOf(network, rows)
      const asked = [...totals.keys()].map(Channel.channelsCall)
      const read = await unlessSpent(options.settlement.read(network.id, [...asked, claim]))
      if (read?.results.at(-1) === undefined) {
        return fault(failures.claim.simulated, 'The contract refuses the claim.')
      }
      const grownAtomic = [...totals.values()].reduce((sum, total, index) => {
        const [, claimed = total] = Channel.parsePair(read.results[index] ?? '0x') ?? []
        return total > claimed ? sum + total - claimed : sum
      }, 0n)
      // All of it was claimed before, perhaps by another sender.
      if (grownAtomic === 0n) return 'nothing'
      return { call: claim, amountAtomic: grownAtomic }
    },
    finish: async () => ({}),
  }
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

function refuseRows(
  { policy }: Options,
  { id }: Network.Network,
  rows: readonly Pick<Channel.ClaimRow, 'config'>[],
): Fault | undefined {
  for (const { config } of rows) {
    const { payer, receiver, token } = config
    const refused = Policy.checkPayee(policy, { network: id, asset: token, payTo: receiver, payer })
    if (refused !== undefined) return refused
  }
  return undefined
}

const unsigned = fault(
  'invalid_batch_settlement_evm_authorizer_not_configured',
  'This facilitator signs no claim or refund: sign it by the key of the receiver authorizer.',
)

/** A sweep has no nonce: its name is what was claimed until now. Throws RpcFault. */
async function planOfSweep(
  options: Options,
  { network: { id: network } }: ChannelCall,
  { receiver, token }: { receiver: Address; token: Address },
): Promise<Plan | Fault> {
  const other = { network, asset: token, payTo: receiver, payer: undefined }
  const refused = Policy.checkPayee(options.policy, other)
  if (refused !== undefined) return refused
  const sweep = Channel.settleCall(receiver, token)
  const { results } = await options.settlement.read(network, [
    Channel.receiversCall(receiver, token),
    sweep,
  ])
  const income = Channel.parsePair(results[0] ?? '0x')
  if (income === undefined) throw new RpcFault('the claims of a receiver cannot be read')
  const [claimedAtomic, settledAtomic] = income
  if (claimedAtomic <= settledAtomic) {
    return fault(
      'invalid_batch_settlement_evm_nothing_to_settle',
      `All that was claimed for ${receiver} was settled.`,
    )
  }
  return {
    name: `f-settle:${network}:${receiver}:${token}:${claimedAtomic}`,
    what: 'settle',
    payee: receiver,
    gasMax: contractGas,
    async prepare() {
      if (results[1] !== undefined)
        return { call: sweep, amountAtomic: claimedAtomic - settledAtomic }
      return fault(failures.settle.simulated, 'The contract refuses the settlement.')
    },
    async finish(receipt) {
      const amount = Channel.amountIn(receipt.logs, 'settled', receiver)
      return { amount: String(amount ?? 0n) }
    },
  }
}

function planOfRefund(
  options: Options,
  call: ChannelCall,
  { voucher }: Presented,
  asked: ChannelFacilitation.Refund,
): Plan {
  const { network } = call
  const { config } = voucher
  const { amountAtomic, nonce, claim } = asked
  const { rows } = claim
  const id = Channel.idOf(config, network.chainId)
  return {
    name: `f-refund:${id}:${nonce}`,
    what: 'refund',
    payee: config.receiver,
    gasMax: contractGas + rowGas * BigInt(rows.length),
    async prepare() {
      const refused = refuseRows(options, network, [{ config }, ...rows])
      if (refused !== undefined) return refused
      const sent = refundCallOf(config, asked)
      const found = await unlessSpent(readState(options, network.id, id, sent && [sent]))
      const fails = fault(failures.refund.simulated, 'The contract refuses the refund.')
      if (found === undefined) return fails
      const { balanceAtomic, claimedAtomic } = found.state
      const total = Amount.greatest(claimedAtomic, totalsOf(network, rows).get(id) ?? 0n)
      if (amountAtomic > 0n && total === balanceAtomic) {
        return fault(
          'invalid_batch_settlement_evm_refund_no_balance',
          'Nothing of the channel is left to refund.',
        )
      }
      if (sent === undefined) return unsigned
      if (found.results[0] === undefined) return fails
      // A buyer may close a channel whatever is left of it.
      const isAll = amountAtomic >= balanceAtomic - total && rows.length <= 1
      return { call: sent, amountAtomic: isAll ? undefined : amountAtomic }
    },
    async finish(receipt) {
      const amount = Channel.amountIn(receipt.logs, 'refunded', id)
      const state = await readAfter(options, call, id, receipt)
      return { amount: String(amount ?? 0n), extra: { channelState: Channel.stateJson(id, state) } }
    },
  }
}

/** A claim and the refund in one transaction; undefined where either is not signed. */
function refundCallOf(
  config: Channel.Config,
  { amountAtomic, nonce, signature, claim }: ChannelFacilitation.Refund,
): Channel.Call | undefined {
  if (signature === undefined) return undefined
  const refund = Channel.refundCall(config, amountAtomic, nonce, signature)
  if (claim.rows.length === 0) return refund
  return (
    claim.signature && Channel.multicall([Channel.claimCall(claim.rows, claim.signature), refund])
  )
}

/** Longest wait for a node that is behind, ms. */
const behindMs = 2_000

/** A channel in the block of a receipt or later. Throws RpcFault. */
async function readAfter(
  options: Options,
  { network }: ChannelCall,
  id: Hex,
  receipt: Receipt,
): Promise<Channel.OnChain> {
  const signal = AbortSignal.timeout(behindMs)
  for (;;) {
    const { state, blockNumber } = await readState(options, network.id, id)
    if (blockNumber >= receipt.blockNumber) return state
    if (signal.aborted) throw new RpcFault('the node is behind the receipt')
    await pause(100, signal)
  }
}

function hashOf({ data }: Channel.Call): string {
  return new Bun.CryptoHasher('sha256').update(data).digest('hex')
}
