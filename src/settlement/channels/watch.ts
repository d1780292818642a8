import type { Hex } from 'viem'
import type { Channel, OnChain } from '../../../db/Channel'
import { type CallOptions, type Client, type Node, RpcFault } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import * as Amount from '../../protocol/Amount'
import * as Voucher from '../../protocol/Channel'
import * as Refusals from '../read/refusals'
import type { ChainState, Context } from '../state/state'
import { attemptOf, hasFailed } from './send'
import { atOnce, type ChannelWatch, remember } from './state'

/*
 * The state of channels on the chain. What a voucher is worth depends on it, and only what was claimed
 * is safe from a withdrawal, so no URL alone is believed where another one is worse.
 */

/** Longest wait for one answer, where there is another node, ms. */
const answerMs = 2_000

/**
 * What the nodes of a network have of channels, of all URLs that answer the worst for the payee: the
 * least balance, a withdrawal that any shows. Also the least claimed: a node that shows more than there is
 * must not keep us from claiming. And the least nonce of refunds, whose signatures may still be used.
 * Throws RpcFault or RpcError when none answers.
 */
export async function readChannels(
  { client }: Pick<ChainState, 'client'>,
  ids: readonly Hex[],
): Promise<ReadonlyMap<Hex, OnChain>> {
  const options = client.nodes.length > 1 ? { timeoutMs: answerMs } : {}
  const read = await askAll(client, (node) => readFrom(node, ids, options))
  const worstOf = (index: number) => read.flatMap((each) => each[index] ?? []).reduce(worse)
  return new Map(ids.map((id, index) => [id, worstOf(index)]))
}

/** What the nodes answer that answer. Rejects as the first one where none does. */
export async function askAll<T>(
  { nodes }: Pick<Client, 'nodes'>,
  ask: (node: Node) => Promise<T>,
): Promise<readonly T[]> {
  const asked = nodes.map(ask)
  const answers = await Promise.allSettled(asked)
  const given = answers.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
  if (given.length === 0) await asked[0]
  return given
}

function worse(one: OnChain, other: OnChain): OnChain {
  return {
    balanceAtomic: Amount.least(one.balanceAtomic, other.balanceAtomic),
    claimedAtomic: Amount.least(one.claimedAtomic, other.claimedAtomic),
    withdrawAt: one.withdrawAt ?? other.withdrawAt,
    refundNonce: Amount.least(one.refundNonce, other.refundNonce),
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
export function syncChannels(
  context: Context,
  chain: ChainState,
  ids: readonly Hex[],
): Promise<void> {
  return chain.channels.reads(ids, (page) => syncPage(context, chain, page))
}

/** `isAgain`: this is the second read, because another process has written one during the first. */
async function syncPage(
  context: Context,
  chain: ChainState,
  ids: readonly Hex[],
  isAgain = false,
): Promise<void> {
  const { changed } = chain.channels
  const { find, sync } = context.ledger.channels
  const before = await Promise.all(ids.map(find))
  const marks = ids.map((id) => changed.get(id))
  const at = context.now()
  const states = await readChannels(chain, ids)
  const write = async (id: Hex, index: number) => {
    const state = states.get(id)
    const known = before[index]
    if (known && state) {
      const safe = await withoutRefund(context, known, state)
      const stored = await sync(known, safe, at)
      // Another process has read the chain meanwhile, before this one or after it.
      if (stored === undefined && !isAgain) return [id]
      // What was written during the second read began after the call, at the latest. Further reads could be
      // overtaken without an end, and other channels wait for them.
      const read = stored ?? (await find(id))
      if (read) note(context, chain.channels, remember(context.channels, read))
      if (stored === undefined) return []
    }
    // What has changed since the read is read once more.
    if (changed.get(id) === marks[index]) changed.delete(id)
    return []
  }
  const again = (await Promise.all(ids.map(write))).flat()
  if (again.length > 0) await syncPage(context, chain, again, true)
}

/**
 * A refund that a reorganisation has removed returns, though its reservation has ended. Until then the
 * channel has no more than after it.
 */
async function withoutRefund(
  { ledger }: Context,
  { id, balanceAtomic }: Channel,
  state: OnChain,
): Promise<OnChain> {
  const next = await attemptOf({ ledger }, refundJob(id, state.refundNonce), hasFailed)
  if (next?.row === undefined) return state
  return { ...state, balanceAtomic: Amount.least(state.balanceAtomic, balanceAtomic) }
}

/** Sees to what follows from the state of a channel. */
function note(context: Context, watch: ChannelWatch, channel: Channel): void {
  const { id, network, config, chargedAtomic, claimedAtomic, withdrawAt } = channel
  const { receiver, token } = config
  // Also another account may have claimed something of it.
  watch.owed.set(`${receiver} ${token}`, { receiver, token })
  if (withdrawAt === undefined) {
    watch.withdrawals.delete(id)
    return
  }
  const isNew = !watch.withdrawals.has(id)
  const unclaimedAtomic = chargedAtomic - claimedAtomic
  watch.withdrawals.set(id, { at: withdrawAt, unclaimedAtomic })
  if (!isNew) return
  context.log('channel-withdrawal', { channel: id, network, unclaimedAtomic })
  watch.wake()
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
  { monotonic, now }: Context,
  { network, abilities, channels: watch }: ChainState,
  { id, withdrawAt, syncedAt }: Channel,
): Refusals.PaymentRefusal | undefined {
  const terms = network.channels
  if (terms === undefined || abilities.channelMethods.length === 0)
    return Refusals.later(`Channels are not taken on ${network.id} now.`, 60)
  if (withdrawAt !== undefined) {
    const detail = `A withdrawal of the channel ${id} has begun: no voucher is taken until it is over.`
    return Refusals.refuse('invalid_batch_settlement_evm_withdrawal_pending', detail)
  }
  const seenMs = monotonic() - watch.seenAt
  if (Math.min(seenMs, now() - syncedAt) > terms.withdrawDelayMs / 10)
    return Refusals.later('The nodes do not show the state of channels now; try again.', 10)
  if (watch.changed.get(id)?.blocks)
    return Refusals.later('The channel is being read from the chain; try again.', 1)
  if (watch.unclaimedAtomic < terms.unclaimedMaxAtomic) return undefined
  // One look for all requests that are refused while a claim is under way.
  if (watch.claiming.size === 0 && watch.claimedAt !== atOnce) watch.wake()
  watch.claimedAt = atOnce
  return Refusals.later('Vouchers of this network are being claimed; send the same one again.', 5)
}
