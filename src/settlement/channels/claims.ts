import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import type { JobRow } from '../../../db/schema'
import { priceOf } from '../../chain/head'
import type { Channels as Terms } from '../../config/Config'
import * as Abi from '../../protocol/Abi'
import * as Amount from '../../protocol/Amount'
import * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import { dayMs } from '../../protocol/Time'
import { microUsdOf } from '../state/availability'
import { keeps } from '../state/ownership'
import type { ChainState, Context } from '../state/state'
import {
  attemptOf,
  claimBaseGas,
  claimRowGas,
  estimateGas,
  hasFailed,
  limitOf,
  runChannelJob,
} from './send'
import { type ChannelWatch, watchOf } from './state'
import { syncChannels } from './watch'

/*
 * Claims bring what was charged onto the chain, and sweeps pay it out. Both are sent at any cost, by any
 * relayer: the gas budget does not count, only what a claim is worth does.
 */

/** Channels that one transaction claims. */
const rowsMax = 100

/** Channels that are claimed at one look; the dearest come first. */
const lookedMax = 1_000

/** Longest wait for a claim before it is looked at again, ms. */
const waitMs = 60_000

/** After this time the chain shows what a confirmed claim has done, ms. */
const shownMs = 60_000

/** Gas limit of a sweep, and what it uses. */
const sweepGas = 200_000n
const sweepUsedGas = 60_000n

/** A channel was charged this much more; `channel` is as it is now. Claims it where that is due. */
export function noteCharged(
  context: Context,
  { network }: ChainState,
  { id, chargedAtomic, claimedAtomic }: Channel,
  amountAtomic: bigint,
): void {
  const { unclaimed } = context.channels
  unclaimed.set(network.id, (unclaimed.get(network.id) ?? 0n) + amountAtomic)
  const watch = watchOf(context, network.id)
  const claimed = watch.claiming.get(id)?.amountAtomic ?? claimedAtomic
  if (network.channels === undefined || chargedAtomic - claimed < network.channels.claimAboveAtomic)
    return
  watch.due.add(id)
  watch.wake()
}

/** Starts the claims and the sweeps that are due. Throws when the ledger cannot be read. */
export async function claimDue(context: Context, chain: ChainState, terms: Terms): Promise<void> {
  const { ledger, monotonic, now } = context
  const { network } = chain
  const watch = watchOf(context, network.id)
  const urgent: Channel[] = []
  if (ledger.lanes.isShared) {
    // What other processes have charged.
    for (const { id, chargedAtomic, claimedAtomic } of await ledger.channels.unclaimed(
      network.id,
      rowsMax,
    ))
      if (chargedAtomic - claimedAtomic >= terms.claimAboveAtomic) watch.due.add(id)
  }
  for (const id of watch.due) {
    const channel = await ledger.channels.find(id)
    if (channel && isNext(context, watch, channel)) urgent.push(channel)
    // A withdrawal stays due until the chain has all of it.
    if (channel?.withdrawAt === undefined) watch.due.delete(id)
  }
  start(context, chain, urgent)
  const isEvery = monotonic() - watch.claimedAt >= terms.claimEveryMs
  // Above the limit nothing is sold, so what is worth less than its gas is claimed, too.
  const isFull = (context.channels.unclaimed.get(network.id) ?? 0n) >= terms.unclaimedMaxAtomic
  if (!isEvery && !isFull && !watch.isClaimDue) return
  Object.assign(watch, { isClaimDue: false, claimedAt: monotonic() })
  const rows = (await ledger.channels.unclaimed(network.id, lookedMax)).filter(
    (channel) =>
      isNext(context, watch, channel) &&
      (isFull ||
        channel.usedAt < now() - dayMs ||
        isWorth(chain, claimRowGas, channel.chargedAtomic - channel.claimedAtomic)),
  )
  const gas = claimBaseGas + BigInt(rows.length) * claimRowGas
  const sum = rows.reduce((total, each) => total + each.chargedAtomic - each.claimedAtomic, 0n)
  const isOld = rows.some(({ usedAt }) => usedAt < now() - dayMs)
  // A channel that has less than it was charged, after a withdrawal or a reorganisation, must not make the
  // claim of the others fail. A node that shows too little only delays the rest.
  const capped = rows.map((each) => {
    const chargedAtomic = Amount.least(each.chargedAtomic, each.balanceAtomic)
    return { ...each, chargedAtomic }
  })
  if (isFull || isOld || isWorth(chain, gas, sum)) start(context, chain, capped)
  if (rows.length === 0 && watch.claiming.size === 0) watch.late = undefined
  track(watch, sweep(context, chain, watch))
}

/** Whether gas costs at most an amount. */
function isWorth({ network, head }: ChainState, gas: bigint, amountAtomic: bigint): boolean {
  return microUsdOf({ gas, priceWei: priceOf(head) }, network) <= Number(amountAtomic)
}

/** Whether a channel has something to claim that no claim under way has. */
function isNext(
  { channels, now }: Context,
  watch: ChannelWatch,
  { id, config, chargedAtomic, claimedAtomic, signed, withdrawAt }: Channel,
): boolean {
  const isOurs = config.receiverAuthorizer === channels.authorizer?.address
  if (!isOurs || signed === undefined || chargedAtomic <= claimedAtomic) return false
  const running = watch.claiming.get(id)
  if (running === undefined || running.amountAtomic < chargedAtomic) return true
  return withdrawAt !== undefined && now() - running.at > patienceMs(config)
}

/** How long a claim may stay out before another account sends it, while a withdrawal runs, ms. */
function patienceMs({ withdrawDelay }: Voucher.Config): number {
  return withdrawDelay * 100
}

function track(watch: ChannelWatch, work: Promise<void>): void {
  watch.running.add(work)
  void work.finally(() => watch.running.delete(work))
}

function start(context: Context, chain: ChainState, channels: readonly Channel[]): void {
  const watch = watchOf(context, chain.network.id)
  for (let at = 0; at < channels.length; at += rowsMax)
    track(watch, claim(context, chain, watch, channels.slice(at, at + rowsMax)))
}

/** Claims channels in one transaction; those that the chain refuses apart. Never rejects. */
async function claim(
  context: Context,
  chain: ChainState,
  watch: ChannelWatch,
  channels: readonly Channel[],
): Promise<void> {
  const ids = channels.map(({ id }) => id)
  const at = context.now()
  for (const { id, chargedAtomic } of channels)
    watch.claiming.set(id, { amountAtomic: chargedAtomic, at })
  try {
    await sendClaim(context, chain, watch, channels)
  } catch (error) {
    fallBehind(context, watch, 'no node answers')
    context.log('settlement-fault', { network: chain.network.id, error })
  } finally {
    for (const id of ids) if (watch.claiming.get(id)?.at === at) watch.claiming.delete(id)
  }
}

async function sendClaim(
  context: Context,
  chain: ChainState,
  watch: ChannelWatch,
  channels: readonly Channel[],
): Promise<void> {
  const { network } = chain
  const [first] = channels
  const ids = channels.map(({ id }) => id)
  const call = claimCallOf(context, chain, channels)
  const estimate = await estimateGas(chain, call)
  if (estimate === undefined) return divideClaim(context, chain, watch, channels)
  const rows = channels.map(({ id, chargedAtomic }) => id.slice(2) + Abi.uint(chargedAtomic))
  const key = `claim:${network.id}:${Abi.hash(rows.join(''))}`
  const isUrgent = channels.some(({ withdrawAt }) => withdrawAt !== undefined)
  const staleMs = first && isUrgent ? patienceMs(first.config) : Number.POSITIVE_INFINITY
  const next = await attemptOf(context, key, isClaimOver(context.now(), staleMs))
  if (next === undefined) return fallBehind(context, watch, 'claims fail on the chain')
  watch.claims.set(next.id, ids)
  const [oldest] = watch.claims.keys()
  if (watch.claims.size > lookedMax && oldest !== undefined) watch.claims.delete(oldest)
  const gasLimit = limitOf(estimate)
  for (;;) {
    const job = { id: next.id, ...call, gasLimit, takesLast: true } as const
    const end = await runChannelJob(context, chain, job, waitMs)
    if (context.progress.signal.aborted) return
    if (end.kind === 'pending') continue
    if (end.kind === 'unavailable') return fallBehind(context, watch, end.detail)
    context.metrics.channelJob(network.id, 'claim', end.kind)
    if (end.kind !== 'confirmed') watch.isClaimDue = true
    break
  }
  watch.late = undefined
  for (const { id, config } of channels) {
    watch.refused.delete(id)
    owe(watch, config)
  }
  await syncChannels(context, chain, ids)
  await sweep(context, chain, watch)
}

/**
 * Claims one by one what the chain refuses together. Of a channel that has less than it was charged, after
 * a reorganisation or a withdrawal that came first, all of it is claimed.
 */
async function divideClaim(
  context: Context,
  chain: ChainState,
  watch: ChannelWatch,
  channels: readonly Channel[],
): Promise<void> {
  const [first] = channels
  if (channels.length > 1) {
    const half = Math.ceil(channels.length / 2)
    await sendClaim(context, chain, watch, channels.slice(0, half))
    return sendClaim(context, chain, watch, channels.slice(half))
  }
  if (first === undefined) return
  await syncChannels(context, chain, [first.id])
  const channel = await context.ledger.channels.find(first.id)
  if (channel === undefined || channel.claimedAtomic >= first.chargedAtomic) return
  const { balanceAtomic, claimedAtomic } = channel
  if (claimedAtomic < balanceAtomic && balanceAtomic < first.chargedAtomic)
    return sendClaim(context, chain, watch, [{ ...channel, chargedAtomic: balanceAtomic }])
  const isNew = !watch.refused.has(first.id)
  watch.refused.add(first.id)
  if (isNew) context.log('channel-claim-refused', { channel: first.id, network: chain.network.id })
}

/** The call that claims all that channels were charged. */
export function claimCallOf(
  { channels: { authorizer } }: Context,
  { network }: ChainState,
  of: readonly Channel[],
) {
  if (authorizer === undefined) throw new Error('claims need RECEIVER_AUTHORIZER_KEY')
  const rows = of.flatMap(({ config, signed, chargedAtomic }): Voucher.ClaimRow[] =>
    signed ? [{ config, ...signed, chargedAtomic }] : [],
  )
  const digest = Voucher.claimDigest(network.chainId, rows)
  return Voucher.claimCall(rows, Crypto.sign(digest, authorizer.key))
}

/**
 * Whether a claim is sent once more, though its rows are the same: it failed, or the chain does not show
 * what it did, or it stays out while a withdrawal runs.
 */
function isClaimOver(now: number, staleMs: number) {
  return (row: JobRow, attempt: number): boolean => {
    if (row.state === 'broadcast') return now - row.createdAt > staleMs
    // A node that is stuck never shows it, so each attempt waits twice as long as the one before.
    return hasFailed(row) || now - (row.endedAt ?? now) > shownMs * 2 ** (attempt - 1)
  }
}

/** Notes that claims which are due could not be sent; they are tried again at the next look. */
function fallBehind({ now }: Context, watch: ChannelWatch, reason: string): void {
  watch.isClaimDue = true
  watch.late = { since: watch.late?.since ?? now(), reason }
}

/** A sweep of a receiver is to be looked at. */
export function owe(
  watch: ChannelWatch,
  { receiver, token }: Pick<Voucher.Config, 'receiver' | 'token'>,
): void {
  watch.owed.set(`${receiver} ${token}`, { receiver, token })
}

/** Pays out what was claimed. Never rejects. */
async function sweep(context: Context, chain: ChainState, watch: ChannelWatch): Promise<void> {
  const { network, client } = chain
  for (const [key, { receiver, token }] of [...watch.owed]) {
    try {
      const answer = await client.call('eth_call', [
        Voucher.receiversCall(receiver, token),
        'latest',
      ])
      const pair = Voucher.parsePair(answer as Hex)
      if (pair === undefined) continue
      const [claimed, settled] = pair
      if (claimed <= settled) watch.owed.delete(key)
      else if (isWorth(chain, sweepUsedGas, claimed - settled)) {
        const id = `sweep:${network.id}:${receiver}:${token}:${claimed}`.toLowerCase()
        const isOver = isClaimOver(context.now(), Number.POSITIVE_INFINITY)
        const next = await attemptOf(context, id, isOver)
        const call = Voucher.settleCall(receiver, token)
        const job = next && { id: next.id, ...call, gasLimit: sweepGas, takesLast: true as const }
        // The token may refuse to pay its receiver.
        const isSendable = next?.row !== undefined || (await estimateGas(chain, call)) !== undefined
        if (job === undefined || !isSendable) continue
        const end = await runChannelJob(context, chain, job, waitMs)
        if (end.kind === 'confirmed') watch.owed.delete(key)
        context.metrics.channelJob(network.id, 'sweep', end.kind)
      }
    } catch (error) {
      context.log('settlement-fault', { network: network.id, error })
    }
  }
}

/** What an operator must know of the claims of a network: why they are late, and since when. */
export type LateClaims = { since: number; reason: string; unclaimedAtomic: bigint }

/** Undefined while claims come in time. */
export function lateClaims(context: Context, chain: ChainState): LateClaims | undefined {
  const { now, channels } = context
  const { network } = chain
  if (network.channels === undefined) return undefined
  const watch = watchOf(context, network.id)
  const unclaimedAtomic = channels.unclaimed.get(network.id) ?? 0n
  for (const { at, unclaimedAtomic: left } of watch.withdrawals.values()) {
    if (left <= 0n || now() - at < network.channels.withdrawDelayMs / 10) continue
    const reason = watch.late?.reason ?? 'the claim is not on the chain'
    return { since: at, reason: `a withdrawal has begun, and ${reason}`, unclaimedAtomic: left }
  }
  if (watch.late === undefined || now() - watch.late.since < network.channels.claimEveryMs)
    return undefined
  return { ...watch.late, unclaimedAtomic }
}

/**
 * When what is unclaimed on a network is claimed next (unix ms), and what is late. Undefined where this
 * process makes no claims of it.
 */
export function claimsOf(
  context: Context,
  chain: ChainState,
): { nextAt: number; late: LateClaims | undefined } | undefined {
  const { id, channels } = chain.network
  if (channels === undefined || !keeps(context, chain)) return undefined
  const waitMs = watchOf(context, id).claimedAt + channels.claimEveryMs - context.monotonic()
  return { nextAt: context.now() + Math.max(0, waitMs), late: lateClaims(context, chain) }
}

/** Claims what is unclaimed on a network now, whatever that costs. Returns the number of channels. */
export async function claimAll(context: Context, { network }: ChainState): Promise<number> {
  const watch = watchOf(context, network.id)
  const rows = await context.ledger.channels.unclaimed(network.id, lookedMax)
  for (const { id } of rows) watch.due.add(id)
  watch.wake()
  return rows.length
}
