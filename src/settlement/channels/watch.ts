import type { Hex } from 'viem'
import type { Channel, OnChain } from '../../../db/Channel'
import { type CallOptions, type Node, RpcFault } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import * as Amount from '../../protocol/Amount'
import * as Voucher from '../../protocol/Channel'
import * as Refusals from '../read/refusals'
import type { ChainState, Context } from '../state/state'
import { attemptOf, hasFailed } from './send'
import { type ChannelWatch, remember, watchOf } from './state'

/*
 * The state of channels on the chain. What a voucher is worth depends on it, and only what was claimed
 * is safe from a withdrawal, so no URL alone is believed where another one is worse.
 */

/** Channels that one call reads. */
export const pageMax = 100

/** Longest wait for one answer, where there is another node, ms. */
const answerMs = 2_000

/**
 * What the nodes of a network have of channels, of all URLs that answer the worst for the payee: the
 * least balance, a withdrawal that any shows. Also the least claimed: a node that shows more than there is
 * must not keep us from claiming. Throws RpcFault or RpcError when none answers.
 */
export async function readChannels(
  { client, network }: Pick<ChainState, 'client' | 'network'>,
  ids: readonly Hex[],
): Promise<ReadonlyMap<Hex, OnChain>> {
  const { nodes } = client
  const options = nodes.length > 1 ? { timeoutMs: answerMs } : {}
  const answers = await Promise.allSettled(nodes.map((node) => readFrom(node, ids, options)))
  const read = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value] : []))
  const [failed] = answers
  if (read.length === 0)
    throw failed?.status === 'rejected' ? failed.reason : new RpcFault(`no node of ${network.id}`)
  const states = new Map<Hex, OnChain>()
  for (const [index, id] of ids.entries()) {
    const worst = read.flatMap((each) => each[index] ?? []).reduce(worse)
    states.set(id, worst)
  }
  return states
}

function worse(one: OnChain, other: OnChain): OnChain {
  return {
    balanceAtomic: Amount.least(one.balanceAtomic, other.balanceAtomic),
    claimedAtomic: Amount.least(one.claimedAtomic, other.claimedAtomic),
    withdrawAt: one.withdrawAt ?? other.withdrawAt,
    refundNonce: Amount.greatest(one.refundNonce, other.refundNonce),
  }
}

async function readFrom(
  node: Pick<Node, 'call'>,
  ids: readonly Hex[],
  options: CallOptions,
): Promise<readonly OnChain[]> {
  const calls = ids.flatMap(Voucher.stateCalls)
  const answer = await node.call('eth_call', [Multicall.aggregate(calls), 'latest'], options)
  const results = Multicall.parseResults(answer, calls.length)
  return ids.map((_, index) => {
    const own = results?.slice(index * 3, index * 3 + 3) ?? []
    const state = Voucher.parseState(own.map(({ success, data }) => (success ? data : undefined)))
    // The contract keeps a balance at or above what was claimed of it.
    if (state === undefined || state.balanceAtomic < state.claimedAtomic)
      throw new RpcFault('not the state of a channel')
    return state
  })
}

/** Reads channels that are known, and writes them to the ledger and the memory. Rejects as `readChannels`. */
export async function syncChannels(
  context: Context,
  chain: ChainState,
  ids: readonly Hex[],
): Promise<void> {
  const watch = watchOf(context, chain.network.id)
  for (let start = 0; start < ids.length; start += pageMax) {
    const page = ids.slice(start, start + pageMax)
    await watch.turn(async () => {
      const marks = page.map((id) => watch.changed.get(id))
      const at = context.now()
      const states = await readChannels(chain, page)
      for (const [index, id] of page.entries()) {
        const state = states.get(id)
        const safe = state && (await withoutRefund(context, id, state))
        const read = safe && (await context.ledger.channels.sync(id, safe, at))
        // What has changed since the read is read once more.
        if (watch.changed.get(id) === marks[index]) watch.changed.delete(id)
        if (read) await note(context, watch, remember(context.channels, read))
      }
    })
  }
}

/**
 * A refund that a reorganisation has removed returns, though its reservation has ended. Until then the
 * channel has no more than after it.
 */
async function withoutRefund({ ledger }: Context, id: Hex, state: OnChain): Promise<OnChain> {
  const next = await attemptOf({ ledger }, refundJob(id, state.refundNonce), hasFailed)
  const known = next?.row && (await ledger.channels.find(id))
  if (known === undefined) return state
  return { ...state, balanceAtomic: Amount.least(state.balanceAtomic, known.balanceAtomic) }
}

/** Sees to what follows from the state of a channel. */
async function note(context: Context, watch: ChannelWatch, channel: Channel): Promise<void> {
  const { id, network, chargedAtomic, claimedAtomic, withdrawAt } = channel
  const unclaimedAtomic = chargedAtomic - claimedAtomic
  if (unclaimedAtomic <= 0n) watch.due.delete(id)
  await endRefund(context, channel)
  if (withdrawAt === undefined) {
    watch.withdrawals.delete(id)
    return
  }
  const isNew = !watch.withdrawals.has(id)
  watch.withdrawals.set(id, { at: withdrawAt, unclaimedAtomic })
  if (unclaimedAtomic > 0n) watch.due.add(id)
  if (!isNew) return
  context.log('channel-withdrawal', { channel: id, network, unclaimedAtomic })
  watch.wake()
}

/** A reservation of a refund that never reached its job ends after this time, ms. */
const refundLostMs = 120_000

/** Ends the reservation of a refund that the chain has, or that will never be sent. */
async function endRefund(
  { ledger, now }: Context,
  { id, reserved, refundNonce }: Channel,
): Promise<void> {
  const nonce = reserved && nonceOfRefund(reserved)
  if (reserved === undefined || nonce === undefined) return
  const job = await ledger.jobs.find(refundJob(id, nonce))
  const isOver = job === undefined ? now() - reserved.at > refundLostMs : hasFailed(job)
  if (refundNonce > nonce || isOver) await ledger.channels.release(id, reserved.id)
}

const refundPrefix = 'refund:'

/** The id of the reservation of a refund. */
export function refundReservation(nonce: bigint): string {
  return `${refundPrefix}${nonce}`
}

/** The nonce of the refund that a channel is reserved for; undefined for a request. */
export function nonceOfRefund({ id }: { id: string }): bigint | undefined {
  return id.startsWith(refundPrefix) ? BigInt(id.slice(refundPrefix.length)) : undefined
}

export function refundJob(id: Hex, nonce: bigint): string {
  return `channel-refund:${id}:${nonce}`
}

/** Why no voucher of a channel is taken now. No I/O. */
export function mayTake(
  context: Context,
  { network, abilities }: ChainState,
  { id, withdrawAt, syncedAt }: Channel,
): Refusals.PaymentRefusal | undefined {
  const { channels, monotonic, now } = context
  const terms = network.channels
  if (terms === undefined || abilities.channelMethods.length === 0)
    return Refusals.later(`Channels are not taken on ${network.id} now.`, 60)
  if (withdrawAt !== undefined) {
    const detail = `A withdrawal of the channel ${id} has begun: no voucher is taken until it is over.`
    return Refusals.refuse('invalid_batch_settlement_evm_withdrawal_pending', detail)
  }
  const watch = watchOf(context, network.id)
  const seenMs = monotonic() - (channels.seenAt.get(network.id) ?? Number.NEGATIVE_INFINITY)
  if (Math.min(seenMs, now() - syncedAt) > terms.withdrawDelayMs / 10)
    return Refusals.later('The nodes do not show the state of channels now; try again.', 10)
  if (watch.changed.get(id)?.blocks)
    return Refusals.later('The channel is being read from the chain; try again.', 1)
  if ((channels.unclaimed.get(network.id) ?? 0n) < terms.unclaimedMaxAtomic) return undefined
  // One look for all requests that are refused while a claim is under way.
  if (watch.claiming.size === 0 && !watch.isClaimDue) watch.wake()
  watch.isClaimDue = true
  return Refusals.later('Vouchers of this network are being claimed; send the same one again.', 5)
}
