import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import * as Logs from '../../chain/logs'
import type { Channels as Terms } from '../../config/Config'
import * as Voucher from '../../protocol/Channel'
import { keeps } from '../state/ownership'
import type { ChainState, Context } from '../state/state'
import { createLoop } from '../state/wait'
import { claimDue, claimsOf } from './claims'
import { atOnce, pageMax } from './state'
import { askAll, syncChannels } from './watch'

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
    const { channels: watch } = chain
    const { id, channels: terms } = chain.network
    if (terms === undefined || context.channels.authorizer === undefined) return []
    let isDown = false
    let isLate = false
    const work = async () => {
      try {
        await look(context, chain, terms)
        isDown = false
      } catch (error) {
        if (!isDown) context.log('channel-fault', { network: id, error })
        isDown = true
      }
      const late = claimsOf(context, chain)?.late
      if (late && !isLate) context.log('channel-claims-late', late)
      isLate = late !== undefined
    }
    const loop = createLoop(work, Math.min(checkMs, lookMaxMs, terms.withdrawDelayMs / 100))
    watch.wake = loop.wake
    return [loop]
  })
  context.events.jobs.on((id) => onJob(context, id))
  return {
    start(): void {
      for (const loop of loops) loop.start()
    },
    /** Resolves when nothing is in progress; call it when the waits of settlement end. */
    async stop(): Promise<void> {
      await Promise.all(loops.map((loop) => loop.stop()))
      await Promise.all(context.progress.driving)
    },
  }
}

async function look(context: Context, chain: ChainState, terms: Terms): Promise<void> {
  const { ledger, monotonic } = context
  const { network, abilities, channels: watch } = chain
  const at = monotonic()
  const totals = (await ledger.channels.totals()).find((each) => each.network === network.id)
  // A charge that is not on the disk yet is in it, and is added again once it is: a claim is at most early.
  watch.unclaimedAtomic = totals?.unclaimedAtomic ?? 0n
  watch.open = totals?.channels ?? 0
  // What is open is followed also where a node hides the contracts.
  if (abilities.channelMethods.length === 0 && watch.open === 0) return
  if (!keeps(context, chain)) {
    await syncChannels(context, chain, [...watch.changed.keys()])
    // Its keeper reads what is unclaimed, and without that, or without nodes, no voucher is taken here either.
    const [dearest] = await ledger.channels.unclaimed(network.id, 1)
    const isRead = !dearest || context.now() - dearest.syncedAt < 2 * readEveryMs(terms)
    const isKept = isRead && chain.health.ready
    if (isKept) watch.seenAt = at
    Object.assign(watch, { block: undefined, readAt: atOnce })
    return
  }
  try {
    await readChanged(context, chain)
  } finally {
    // Also where nodes show no events, and before all others are read, which may take long.
    await claimDue(context, chain, terms)
  }
  await readOpen(context, chain, terms)
  watch.seenAt = at
}

function readEveryMs({ withdrawDelayMs }: Terms): number {
  return Math.min(readMaxMs, withdrawDelayMs / 10)
}

/** Reads what has changed since the last look. Throws RpcFault or RpcError. */
async function readChanged(context: Context, chain: ChainState): Promise<void> {
  const { channels: watch, network, head } = chain
  if (watch.open > 0) await readEvents(context, chain)
  else watch.block = head.number
  // An earlier process may have claimed the rest of channels that are closed, and not paid it out.
  if (watch.readAt === atOnce)
    for (const each of await context.ledger.channels.receivers(network.id))
      watch.owed.set(`${each.receiver} ${each.token}`, each)
  await syncChannels(context, chain, [...watch.changed.keys()])
}

/** Channel ids of the events since the last look go to `changed`. */
async function readEvents({ ledger }: Context, chain: ChainState): Promise<void> {
  const { head, network, client, abilities, channels: watch } = chain
  const top = head.number
  const last = watch.block !== undefined && watch.block < top ? watch.block : top
  const depth = BigInt(network.reorgDepth)
  const { settled: _, ...of } = Voucher.topics
  const query = {
    address: Voucher.settlementAddress,
    topics: [Object.values(of)],
    range: { from: last > depth ? last - depth : 0n, to: undefined },
    first: 'oldest',
  } as const
  const found = await askAll(client, async (node) => {
    const events: [string, Hex][] = []
    for await (const logs of Logs.search(node, abilities.logSpans, query))
      for (const { topics, transactionHash, index } of logs)
        if (topics[1]) events.push([`${transactionHash} ${index}`, topics[1]])
    return events
  }).catch(() => {
    // Where no node gives its events, as after a long pause, all is read instead.
    watch.readAt = atOnce
    return []
  })
  const events = new Map(found.flat())
  // An event that is gone was reorganised away, or is deep.
  const isKnown = (key: string) => events.has(key) && watch.events.has(key)
  const ids = [...events, ...watch.events].flatMap(([key, id]) => (isKnown(key) ? [] : [id]))
  for (const id of new Set(ids)) {
    // Most are of strangers.
    if (!watch.changed.has(id) && (await ledger.channels.find(id)))
      watch.changed.set(id, { blocks: false })
  }
  Object.assign(watch, { events, block: top })
}

/**
 * Reads at intervals the channels with unclaimed money, or all open ones where nothing is known. Throws
 * RpcFault or RpcError.
 */
async function readOpen(context: Context, chain: ChainState, terms: Terms): Promise<void> {
  const { ledger, progress, monotonic } = context
  const { network, channels: watch } = chain
  const before = watch.readAt
  const at = monotonic()
  if (at - before < readEveryMs(terms)) return
  watch.readAt = at
  try {
    let after: Hex | undefined
    do {
      const page: readonly Channel[] = await ledger.channels.open(network.id, pageMax, after)
      const read = page.filter((channel) => before === atOnce || isWatched(channel))
      const ids = read.map(({ id }) => id)
      await syncChannels(context, chain, ids)
      after = page.length < pageMax ? undefined : page.at(-1)?.id
    } while (after !== undefined && !progress.signal.aborted)
  } catch (error) {
    watch.readAt = Math.min(before, watch.readAt)
    throw error
  }
}

function isWatched({ chargedAtomic, claimedAtomic, withdrawAt, reserved }: Channel): boolean {
  return chargedAtomic > claimedAtomic || withdrawAt !== undefined || reserved !== undefined
}

/** A job of channels has another state: a reorganisation may have returned it, or it ends after its caller. */
async function onJob({ ledger, chains }: Context, id: string): Promise<void> {
  const [kind, channelId] = id.split(':')
  const isOfOne = kind === 'deposit' || kind === 'channel-refund'
  if (!isOfOne && kind !== 'claim') return
  // Its caller reads the channel, and may have done so when the job is read here.
  if ([...chains.values()].some(({ channels }) => channels.awaited.has(id))) return
  const job = await ledger.jobs.find(id)
  const watch = job && chains.get(job.network)?.channels
  if (!watch) return
  const blocks = kind === 'channel-refund' || job.state !== 'confirmed'
  if (isOfOne) watch.changed.set(channelId as Hex, { blocks })
  // Its channels are not known.
  else watch.readAt = atOnce
  watch.wake()
}
