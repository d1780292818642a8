import type { Channel } from '../../../db/Channel'
import { RpcError, RpcFault } from '../../chain/client'
import type { Asset } from '../../protocol/Asset'
import * as Voucher from '../../protocol/Channel'
import * as ChannelPayload from '../../protocol/ChannelPayload'
import * as Crypto from '../../protocol/Crypto'
import * as Explanation from '../../protocol/Explanation'
import { type Fault, isFault } from '../../protocol/Problem'
import * as Refusals from '../read/refusals'
import type { JobEnd } from '../send/Job'
import { waitForJob } from '../send/jobs'
import type { Reason } from '../send/Outcome'
import type { ChainState, Context } from '../state/state'
import {
  checkDeposit,
  type DepositCall,
  type Depositing,
  depositFails,
  depositKey,
  isDepositing,
  readStateSince,
} from './check'
import { attemptOf, gasLimitOf, hasFailed } from './send'
import { readUntil, runSponsored } from './sponsored'
import type { PaidDeposit, Presented } from './state'

export type Deposited = PaidDeposit & { kind: 'deposited'; channel: Channel }

/** The most gas of a deposit, which bounds what the code of a payer can use. */
const depositGasMax = 600_000n

/**
 * Pays the deposit of a credential into its channel, once. The caller has the turn of the channel, and has
 * checked the signature of the voucher.
 */
export async function deposit(
  context: Context,
  chain: ChainState,
  presented: Presented,
  // Bounds the wait only: the deposit continues.
  { waitMs }: { waitMs: number },
): Promise<Deposited | Refusals.PaymentRefusal> {
  const transfer = withCanonicalV(presented, chain.network.asset)
  const { channelId, config } = transfer.voucher
  const until = context.now() + waitMs
  try {
    const next = await attemptOf(context, `deposit:${depositKey(transfer.voucher)}`, hasFailed)
    if (next === undefined) return failed(`The deposit of ${channelId} fails on the chain.`)
    const { id, row } = next
    const call = row ? undefined : await prepare(context, chain, transfer, until)
    if (call && 'kind' in call) return call
    const charged = (await context.ledger.channels.find(channelId))?.chargedAtomic ?? 0n
    const job = { kind: 'deposit', id, signer: config.payer, call } as const
    const end = await runSponsored(context, chain, job, until - context.now())
    if (end.kind === 'unavailable') return end
    const { deposits } = chain.channels
    if (deposits.size >= depositsMax) deposits.clear()
    deposits.set(channelId, { id, chargedAtomic: charged })
    if (end.kind === 'pending') return unconfirmed
    if (end.kind === 'confirmed') {
      const isShown = isCovered(transfer.voucher)
      const channel = await readUntil(context, chain, transfer, { isShown })
      const unseen = Refusals.later('Not every node shows the deposit yet: send it again.', 2)
      return channel ? depositedBy(end, channel) : unseen
    }
    const block = end.kind === 'failed' ? end.receipt.blockNumber : 0n
    const channel = await findCovering(context, chain, transfer, block)
    if (channel) return paidBefore(channel)
    return failed(`The deposit ${end.transaction} failed on the chain: sign a new one.`)
  } catch (error) {
    if (error instanceof RpcFault || error instanceof RpcError) return Refusals.unavailable(error)
    throw error
  }
}

/** Whether a channel covers a voucher. */
function isCovered({ maxAtomic }: Voucher.Voucher) {
  return ({ balanceAtomic }: Voucher.OnChain) => balanceAtomic >= maxAtomic
}

/**
 * The channel of a voucher, where it covers that in a block or later. Only then are nodes that are behind
 * worth a wait. Throws RpcFault or RpcError.
 */
async function findCovering(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  block: bigint,
): Promise<Channel | undefined> {
  const isShown = isCovered(transfer.voucher)
  const state = await readStateSince(chain, transfer.voucher.channelId, block)
  return isShown(state) ? readUntil(context, chain, transfer, { isShown }) : undefined
}

/** The money of the voucher is there: this deposit has added nothing to it. */
function paidBefore(channel: Channel): Deposited {
  return { kind: 'deposited', channel, transaction: undefined, amountAtomic: 0n }
}

/** What sends a new deposit, unless it is refused, or its money is there. Throws RpcFault or RpcError. */
async function prepare(
  context: Context,
  chain: ChainState,
  transfer: Depositing<Presented>,
  until: number,
): Promise<(DepositCall & { gasLimit: bigint }) | Deposited | Refusals.PaymentRefusal> {
  const refused =
    (await awaitOther(context, chain, transfer, until)) ?? refuseTerms(context, chain, transfer)
  if (refused) return refused
  const checked = await checkDeposit(chain, transfer, chain.network.asset)
  const gasLimit = isFault(checked) ? undefined : await gasLimitOf(chain, checked.call)
  const isSendable = gasLimit !== undefined && gasLimit <= depositGasMax
  if (!isFault(checked) && isSendable) return { ...checked.call, gasLimit }
  // Everybody may send it, and then the money is there.
  const channel = await findCovering(context, chain, transfer, 0n)
  if (channel) return paidBefore(channel)
  return refuseBy(isFault(checked) ? checked : depositFails)
}

/** The deposit as the contracts take it: they refuse the signature of a key whose v is 0 or 1. */
function withCanonicalV(presented: Presented, asset: Asset): Depositing<Presented> {
  if (!isDepositing(presented)) throw new Error('a voucher without a deposit')
  const { voucher, chainId } = presented
  const { config, deposit } = voucher
  const { by } = deposit
  const digest = ChannelPayload.depositDigest({ config, chainId }, deposit, asset)
  const isKeys = Crypto.recover(digest, by.signature) === config.payer
  const signature = isKeys ? Crypto.withCanonicalV(by.signature) : by.signature
  return {
    ...presented,
    voucher: { ...voucher, deposit: { ...deposit, by: { ...by, signature } } },
  }
}

const unconfirmed = Refusals.later(
  'A deposit of this channel is sent and not confirmed yet: send the same one again.',
  2,
)

/** Channels whose newest deposit is kept. */
const depositsMax = 10_000

/**
 * Waits for another deposit of the channel that is under way, or that ended without a request which used it:
 * a client that got no answer to it must not pay twice. Undefined where there is none, or where its money
 * does not cover the voucher.
 */
async function awaitOther(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  until: number,
): Promise<Deposited | Refusals.PaymentRefusal | undefined> {
  const { ledger, now } = context
  const { channelId } = transfer.voucher
  const sent = await ledger.transactions.unfinished()
  const open = sent.find(({ job }) => job?.startsWith(`deposit:${channelId}:`))?.job
  const last = chain.channels.deposits.get(channelId)
  const charged = (await ledger.channels.find(channelId))?.chargedAtomic ?? 0n
  const id = open ?? (last?.chargedAtomic === charged ? last.id : undefined)
  if (id === undefined || (await ledger.jobs.find(id)) === undefined) return undefined
  const end = await waitForJob(context, id, Math.max(0, until - now()))
  if (end.kind === 'pending') return unconfirmed
  if (end.kind !== 'confirmed') return undefined
  const channel = await findCovering(context, chain, transfer, end.receipt.blockNumber)
  return channel && depositedBy(end, channel)
}

function depositedBy(
  { transaction, receipt }: Extract<JobEnd, { kind: 'confirmed' }>,
  channel: Channel,
): Deposited {
  const amountAtomic = Voucher.amountIn(receipt.logs, 'deposited', channel.id) ?? 0n
  return { kind: 'deposited', channel, transaction, amountAtomic }
}

function failed(detail: string): Refusals.PaymentRefusal {
  return Refusals.refuse('invalid_batch_settlement_evm_deposit_transaction_failed', detail)
}

/** The refusals that need no node. */
function refuseTerms(
  { now }: Context,
  { network, abilities }: ChainState,
  { voucher: { deposit } }: Depositing<Presented>,
): Refusals.PaymentRefusal | undefined {
  const terms = network.channels
  const [method] = abilities.channelMethods
  if (terms === undefined || method === undefined)
    return Refusals.later(`Channels are not taken on ${network.id} now.`, 60)
  const { minDepositAtomic } = terms
  if (deposit.amountAtomic < minDepositAtomic) {
    const detail = `A deposit is at least ${Explanation.amount(minDepositAtomic, network.asset)}.`
    return Refusals.refuse('invalid_batch_settlement_evm_deposit_below_min_deposit', detail)
  }
  const fault =
    ChannelPayload.checkMethod({ deposit }, method) ?? ChannelPayload.checkWindow(deposit, now())
  return fault && refuseBy(fault)
}

function refuseBy({ code, detail }: Fault): Refusals.PaymentRefusal {
  return Refusals.refuse(code as Reason, detail)
}
