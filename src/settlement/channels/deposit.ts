import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import { RpcError, RpcFault } from '../../chain/client'
import { pollMs } from '../../chain/head'
import * as Logs from '../../chain/logs'
import * as Multicall from '../../chain/multicall'
import * as Token from '../../chain/token'
import * as Voucher from '../../protocol/Channel'
import * as ChannelPayload from '../../protocol/ChannelPayload'
import * as Crypto from '../../protocol/Crypto'
import * as Explanation from '../../protocol/Explanation'
import { permit2Address } from '../../protocol/Permit'
import * as Refusals from '../read/refusals'
import { uintOf } from '../read/simulate'
import type { JobEnd } from '../send/Job'
import { waitForJob } from '../send/jobs'
import type { Reason } from '../send/Outcome'
import type { ChainState, Context } from '../state/state'
import { pause } from '../state/wait'
import { attemptOf, countSponsored, hasFailed, runChannelJob, takeSponsored } from './send'
import { type PaidDeposit, type Presented, remember, watchOf } from './state'
import { readChannels, syncChannels } from './watch'

export type Deposited = PaidDeposit & { kind: 'deposited'; channel: Channel }

/** Unused gas costs nothing, and the limit bounds what the code of a payer can use. */
const depositGas = 500_000n

/** Longest wait for a node that is behind the one that showed the deposit, ms. */
const shownMs = 10_000

/** Blocks that are searched for a deposit that another account sent. */
const searchedBlocks = 5_000n

/**
 * Pays the deposit of a credential into its channel, once. The caller has the turn of the channel, and has
 * checked the signature of the voucher.
 */
export async function deposit(
  context: Context,
  chain: ChainState,
  transfer: Presented,
  // Bounds the wait only: the deposit continues.
  { waitMs }: { waitMs: number },
): Promise<Deposited | Refusals.PaymentRefusal> {
  const { voucher, chainId } = transfer
  const { channelId, config, deposit: given } = voucher
  if (given === undefined) throw new Error('a voucher without a deposit')
  const digest = ChannelPayload.depositDigest({ config, chainId }, given, chain.network.asset)
  const isKeys = Crypto.recover(digest, given.by.signature) === config.payer
  const asked = isKeys ? withCanonicalV(given) : given
  const startedAt = context.now()
  const { by } = asked
  const key = `deposit:${channelId}:${by.method === 'eip3009' ? by.salt : by.nonce}`
  try {
    const next = await attemptOf(context, key, hasFailed)
    if (next === undefined) return failed(`The deposit of ${channelId} fails on the chain.`)
    const call = Voucher.depositCall(config, asked)
    const isNew = next.row === undefined
    const until = startedAt + waitMs
    const before = isNew ? await awaitOther(context, chain, transfer, until) : undefined
    if (before) return before
    if (isNew) {
      const refused =
        refuseTerms(context, chain, asked) ?? (await refuseState(chain, transfer, asked))
      if (refused) return refused
      if (!(await passes(chain, call))) {
        // Everybody may send it, and then the money is there.
        const channel = await readFunded(context, chain, transfer, 0)
        if (channel !== undefined) return found(chain, channel, asked)
        return explain(chain, transfer, asked, isKeys)
      }
    }
    const taken = isNew ? takeSponsored(context, chain, transfer.payer, depositGas) : undefined
    if (taken && 'kind' in taken) return taken
    const job = { id: next.id, ...call, gasLimit: depositGas, ...taken }
    const { deposits } = watchOf(context, chain.network.id)
    const charged = (await context.ledger.channels.find(channelId))?.chargedAtomic ?? 0n
    if (deposits.size >= depositsMax) deposits.clear()
    deposits.set(channelId, { id: next.id, chargedAtomic: charged })
    const leftMs = Math.max(0, Math.min(waitMs, until - context.now()))
    const end = await runChannelJob(context, chain, job, leftMs)
    if (isNew) countSponsored(context, chain, { signer: transfer.payer, gasLimit: depositGas }, end)
    if (end.kind === 'unavailable') return end
    if (end.kind === 'refused') throw new Error('a deposit has no rows')
    context.metrics.channelJob(chain.network.id, 'deposit', end.kind)
    if (end.kind === 'pending') return unconfirmed
    const known = await context.ledger.channels.find(channelId)
    const isRead = (known?.syncedAt ?? 0) > (next.row?.endedAt ?? Number.POSITIVE_INFINITY)
    const channel =
      isRead && known && known.balanceAtomic >= voucher.maxAtomic
        ? remember(context.channels, known)
        : await readFunded(context, chain, transfer, shownMs)
    if (end.kind === 'confirmed' && channel !== undefined) return depositedBy(end, channel)
    if (end.kind === 'confirmed')
      return Refusals.later('Not every node shows the deposit yet: send it again.', 2)
    if (channel !== undefined) return found(chain, channel, asked)
    return failed(`The deposit ${end.transaction} failed on the chain: sign a new one.`)
  } catch (error) {
    if (error instanceof RpcFault || error instanceof RpcError) return Refusals.unavailable(error)
    throw error
  }
}

/** Contracts refuse the signature of a key whose v is 0 or 1. */
function withCanonicalV({ amountAtomic, by }: Voucher.Deposit): Voucher.Deposit {
  return { amountAtomic, by: { ...by, signature: Crypto.withCanonicalV(by.signature) } }
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
  const last = watchOf(context, chain.network.id).deposits.get(channelId)
  const charged = (await ledger.channels.find(channelId))?.chargedAtomic ?? 0n
  const id = open ?? (last?.chargedAtomic === charged ? last.id : undefined)
  if (id === undefined || (await ledger.jobs.find(id)) === undefined) return undefined
  const end = await waitForJob(context, id, Math.max(0, until - now()))
  if (end.kind === 'pending') return unconfirmed
  if (end.kind !== 'confirmed') return undefined
  const channel = await readFunded(context, chain, transfer, shownMs)
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
  asked: Voucher.Deposit,
): Refusals.PaymentRefusal | undefined {
  const { amountAtomic } = asked
  const terms = network.channels
  if (terms === undefined || abilities.channelMethods.length === 0)
    return Refusals.later(`Channels are not taken on ${network.id} now.`, 60)
  const { minDepositAtomic } = terms
  if (amountAtomic < minDepositAtomic) {
    const least = Explanation.amount(minDepositAtomic, network.asset)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_deposit_below_min_deposit',
      `A deposit is at least ${least}.`,
    )
  }
  const [method = 'permit2'] = abilities.channelMethods
  const other = ChannelPayload.checkMethod({ deposit: asked }, method)
  const fault = other ?? ChannelPayload.checkWindow(asked, now())
  return fault && Refusals.refuse(fault.code as Reason, fault.detail)
}

/** Whether the channel with the deposit does not cover the voucher. Throws RpcFault or RpcError. */
async function refuseState(
  chain: ChainState,
  { voucher: { channelId: id, maxAtomic } }: Presented,
  { amountAtomic }: Voucher.Deposit,
): Promise<Refusals.PaymentRefusal | undefined> {
  const state = (await readChannels(chain, [id])).get(id)
  if (state === undefined) return Refusals.unavailable(undefined)
  const total = state.balanceAtomic + amountAtomic
  if (maxAtomic > total) {
    const detail = `The voucher is over ${maxAtomic}, and the channel would have ${total}.`
    return Refusals.refuse('invalid_batch_settlement_evm_cumulative_exceeds_balance', detail)
  }
  if (maxAtomic > state.claimedAtomic) return undefined
  const detail = `The voucher is over ${maxAtomic}, of which ${state.claimedAtomic} was claimed.`
  return Refusals.refuse('invalid_batch_settlement_evm_cumulative_below_claimed', detail)
}

/** Whether the deposit succeeds now. Throws RpcFault. */
async function passes(
  { client, relayers }: ChainState,
  { to, data }: { to: Hex; data: Hex },
): Promise<boolean> {
  const call = { from: relayers[0]?.address, to, data, gas: `0x${depositGas.toString(16)}` }
  try {
    await client.call('eth_call', [call, 'latest'])
    return true
  } catch (error) {
    if (error instanceof RpcError) return false
    throw error
  }
}

/** Why a deposit fails, in the order of the reference. Throws RpcFault or RpcError. */
async function explain(
  { client, network }: ChainState,
  { voucher: { config }, network: id }: Presented,
  { by, amountAtomic }: Voucher.Deposit,
  isKeys: boolean,
): Promise<Refusals.PaymentRefusal> {
  const { asset } = network
  if (!isKeys && (await Multicall.findEoas(client, [config.payer])).has(config.payer)) {
    const detail = `The payer ${config.payer} has not signed the deposit.`
    return Refusals.refuse(
      by.method === 'eip3009'
        ? 'invalid_batch_settlement_evm_receive_authorization_signature'
        : 'invalid_batch_settlement_evm_permit2_invalid_signature',
      detail,
    )
  }
  const calls = [
    Token.balanceOf(asset.address, config.payer),
    Token.allowance(asset.address, config.payer, permit2Address),
  ]
  const answer = await client.call('eth_call', [Multicall.aggregate(calls), 'latest'])
  const [balance, allowance] = (Multicall.parseResults(answer, calls.length) ?? []).map(uintOf)
  const moving = { payer: config.payer, network: id, asset: asset.address, amountAtomic }
  if (balance !== undefined && balance < amountAtomic)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_insufficient_balance',
      Explanation.lowBalance(moving, balance, asset),
    )
  const isApproved = by.method === 'eip3009' || by.permit2612 !== undefined
  if (!isApproved && allowance !== undefined && allowance < amountAtomic)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_permit2_allowance_required',
      Explanation.lowAllowance(moving, allowance, asset),
    )
  const detail = 'The deposit fails in simulation: its authorization may be used or cancelled.'
  return Refusals.refuse('invalid_batch_settlement_evm_deposit_simulation_failed', detail)
}

/**
 * The channel once every node that answers shows a balance that covers the voucher; undefined where that
 * does not come in time.
 */
async function readFunded(
  context: Context,
  chain: ChainState,
  { voucher: { channelId: id, config, maxAtomic }, network }: Presented,
  limitMs: number,
): Promise<Channel | undefined> {
  const { ledger, channels, now, progress } = context
  for (let waitedMs = 0; ; waitedMs += pollMs(chain.head)) {
    const known = await ledger.channels.find(id)
    if (known === undefined) {
      const state = (await readChannels(chain, [id])).get(id)
      if (state && state.balanceAtomic >= maxAtomic)
        await ledger.channels.insert({ id, network, config }, state, now())
    } else await syncChannels(context, chain, [id])
    const channel = await ledger.channels.find(id)
    if (channel && channel.balanceAtomic >= maxAtomic) return remember(channels, channel)
    if (waitedMs >= limitMs || progress.signal.aborted) return undefined
    await pause(pollMs(chain.head), progress.signal)
  }
}

/** A deposit that another account has sent. */
async function found(
  { client, head, abilities, network }: ChainState,
  channel: Channel,
  { amountAtomic }: Voucher.Deposit,
): Promise<Deposited> {
  const from = head.number > searchedBlocks ? head.number - searchedBlocks : 0n
  const query = {
    address: Voucher.settlementAddress,
    topics: [Voucher.topics.deposited, channel.id],
    range: { from, to: undefined },
    first: 'newest',
  } as const
  const node = { host: network.id, call: client.call }
  let transaction: Hex | undefined
  try {
    for await (const logs of Logs.search(node, abilities.logSpans, query)) {
      const paid = logs.findLast((log) => Voucher.parseEvent(log)?.amountAtomic === amountAtomic)
      transaction = paid?.transactionHash
      if (transaction !== undefined) break
    }
  } catch {
    // The money is there; only the place of the deposit is not known.
  }
  return { kind: 'deposited', channel, transaction, amountAtomic }
}
