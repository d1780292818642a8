import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import * as Logs from '../../chain/logs'
import type { Channels as Terms } from '../../config/Config'
import * as Voucher from '../../protocol/Channel'
import { keeps } from '../state/ownership'
import type { ChainState, Context } from '../state/state'
import { createLoop } from '../state/wait'
import { claimDue, lateClaims, owe } from './claims'
import { type ChannelWatch, watchOf } from './state'
import { pageMax, syncChannels } from './watch'

/*
 * Follows the channels of each network. Events tell of changes early; a node may hide them, so what is
 * unclaimed is also read from all nodes at intervals.
 */

/** Longest time between two looks, ms; at most a hundredth of the delay of a withdrawal. */
const lookMaxMs = 15_000

/** Longest time between two reads of all channels with unclaimed money, ms. */
const readMaxMs = 600_000

/** Looks after the channels from its start on. With several processes only the keeper claims. */
export function createLooks(context: Context, checkMs: number) {
  const loops = [...context.chains.values()].flatMap((chain) => {
    const { id, channels: terms } = chain.network
    if (terms === undefined || context.channels.authorizer === undefined) return []
    const watch = watchOf(context, id)
    let isDown = false
    const work = async () => {
      try {
        await look(context, chain, terms)
        isDown = false
      } catch (error) {
        if (!isDown) context.log('channel-fault', { network: id, error })
        isDown = true
      }
    }
    const loop = createLoop(work, Math.min(checkMs, lookMaxMs, terms.withdrawDelayMs / 100))
    watch.wake = loop.wake
    return [{ loop, watch }]
  })
  context.events.jobs.on((id) => onJob(context, id))
  return {
    start(): void {
      for (const { loop } of loops) loop.start()
    },
    /** Resolves when nothing is in progress; call it when the waits of settlement end. */
    async stop(): Promise<void> {
      await Promise.all(loops.map(({ loop }) => loop.stop()))
      await Promise.all(loops.flatMap(({ watch }) => [...watch.running]))
    },
  }
}

async function look(context: Context, chain: ChainState, terms: Terms): Promise<void> {
  const { ledger, channels, monotonic } = context
  const { network, abilities } = chain
  const watch = watchOf(context, network.id)
  const at = monotonic()
  const totals = (await ledger.channels.totals()).find((each) => each.network === network.id)
  channels.unclaimed.set(network.id, totals?.unclaimedAtomic ?? 0n)
  watch.open = totals?.channels ?? 0
  // What is open is followed also where a node hides the contracts.
  if (abilities.channelMethods.length === 0 && watch.open === 0) return
  if (!keeps(context, chain)) {
    await syncChannels(context, chain, [...watch.changed.keys()])
    // Its keeper reads what is unclaimed, and without that no voucher is taken here either.
    const [dearest] = await ledger.channels.unclaimed(network.id, 1)
    const isKept = !dearest || context.now() - dearest.syncedAt < 2 * readEveryMs(terms)
    if (isKept) channels.seenAt.set(network.id, at)
    Object.assign(watch, { block: undefined, isUnread: true })
    return
  }
  try {
    await follow(context, chain, terms, watch)
    channels.seenAt.set(network.id, at)
  } finally {
    // Also where nodes show no events.
    await claimDue(context, chain, terms)
    const late = lateClaims(context, chain)
    if (late && !watch.isLateLogged)
      context.log('channel-claims-late', { network: network.id, ...late })
    watch.isLateLogged = late !== undefined
  }
}

function readEveryMs({ withdrawDelayMs }: Terms): number {
  return Math.min(readMaxMs, withdrawDelayMs / 10)
}

/** Reads what has changed, and at intervals all that is unclaimed. Throws RpcFault or RpcError. */
async function follow(
  context: Context,
  chain: ChainState,
  terms: Terms,
  watch: ChannelWatch,
): Promise<void> {
  const at = context.monotonic()
  if (watch.open > 0) await readEvents(context, chain, watch)
  else watch.block = chain.head.number
  await syncChannels(context, chain, [...watch.changed.keys()])
  const isAll = watch.isUnread
  if (!isAll && at - watch.readAt < readEveryMs(terms)) return
  watch.isUnread = false
  try {
    await readOpen(context, chain, watch, isAll)
  } catch (error) {
    watch.isUnread ||= isAll
    throw error
  }
  watch.readAt = at
}

/** Channel ids of the events since the last look go to `changed`. */
async function readEvents(
  { ledger }: Context,
  chain: ChainState,
  watch: ChannelWatch,
): Promise<void> {
  const { head, network, client, abilities } = chain
  const top = head.number
  const last = watch.block !== undefined && watch.block < top ? watch.block : top
  const depth = BigInt(network.reorgDepth)
  const range = { from: last > depth ? last - depth : 0n, to: undefined }
  const { settled: _, ...of } = Voucher.topics
  const topics = [Object.values(of)]
  const answers = await Promise.allSettled(
    client.nodes.map(async (node) => {
      const query = { address: Voucher.settlementAddress, topics, range, first: 'oldest' } as const
      const found = new Map<string, Hex>()
      for await (const logs of Logs.search(node, abilities.logSpans, query)) {
        for (const { topics, transactionHash, index } of logs) {
          if (topics[1]) found.set(`${transactionHash} ${index}`, topics[1])
        }
      }
      return found
    }),
  )
  const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value] : []))
  // Where no node gives its events, as after a long pause, all is read instead.
  if (found.length === 0) watch.isUnread = true
  const events = new Map(found.flatMap((each) => [...each]))
  // An event that is gone was reorganised away, or is deep.
  const isOnlyIn = (one: ReadonlyMap<string, Hex>, other: ReadonlyMap<string, Hex>) =>
    [...one].flatMap(([key, id]) => (other.has(key) ? [] : [id]))
  const ids = new Set([...isOnlyIn(events, watch.events), ...isOnlyIn(watch.events, events)])
  for (const id of ids) {
    // Most are of strangers.
    if (!watch.changed.has(id) && (await ledger.channels.find(id)))
      watch.changed.set(id, { blocks: false })
  }
  Object.assign(watch, { events, block: top })
}

/** Reads the channels with unclaimed money, or all open ones where nothing is known. */
async function readOpen(
  context: Context,
  chain: ChainState,
  watch: ChannelWatch,
  isAll: boolean,
): Promise<void> {
  const { ledger, progress } = context
  const network = chain.network.id
  // An earlier process may have claimed the rest of channels that are closed, and not paid it out.
  if (isAll) for (const each of await ledger.channels.receivers(network)) owe(watch, each)
  let after: Hex | undefined
  for (;;) {
    const page = await ledger.channels.open({ network, after, limit: pageMax })
    const read = page.filter((channel) => isAll || isWatched(channel))
    await syncChannels(
      context,
      chain,
      read.map(({ id }) => id),
    )
    for (const { config } of read) owe(watch, config)
    after = page.at(-1)?.id
    if (page.length < pageMax || progress.signal.aborted) return
  }
}

function isWatched({ chargedAtomic, claimedAtomic, withdrawAt, reserved }: Channel): boolean {
  return chargedAtomic > claimedAtomic || withdrawAt !== undefined || reserved !== undefined
}

/** A job of channels has another state: a reorganisation may have returned it, or it ends after its caller. */
async function onJob({ ledger, chains, channels }: Context, id: string): Promise<void> {
  const [kind, channelId] = id.split(':')
  const isOfOne = kind === 'deposit' || kind === 'channel-refund'
  if (!isOfOne && kind !== 'claim') return
  const job = await ledger.jobs.find(id)
  const chain = job && chains.get(job.network)
  if (!chain) return
  const watch = watchOf({ channels }, chain.network.id)
  if (watch.awaited.has(id)) return
  const blocks = kind === 'channel-refund' || (isOfOne && job.state !== 'confirmed')
  const ids = isOfOne ? [channelId as Hex] : watch.claims.get(id)
  // Of an earlier process: its channels are not known.
  if (ids === undefined) watch.isUnread = true
  for (const each of ids ?? []) watch.changed.set(each, { blocks })
  watch.wake()
}
