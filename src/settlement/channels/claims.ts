import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import type { JobRow } from '../../../db/schema'
import type { LateClaims } from '../../../db/WebhookEvent'
import { priceOf } from '../../chain/head'
import type { Channels as Terms } from '../../config/Config'
import * as Abi from '../../protocol/Abi'
import * as Amount from '../../protocol/Amount'
import * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import { dayMs } from '../../protocol/Time'
import type { JobEnd } from '../send/Job'
import { microUsdOf } from '../state/availability'
import { keeps } from '../state/ownership'
import type { ChainState, Context } from '../state/state'
import { attemptOf, claimBaseGas, claimRowGas, gasLimitOf, hasFailed, runChannelJob } from './send'
import { atOnce, type ChannelWatch, type Owed } from './state'
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
  { network, channels: watch }: ChainState,
  channel: Channel,
  amountAtomic: bigint,
): void {
  watch.unclaimedAtomic += amountAtomic
  // A stream may end after its channel's withdrawal has begun.
  const withdrawal = watch.withdrawals.get(channel.id)
  if (withdrawal) withdrawal.unclaimedAtomic += amountAtomic
  const terms = network.channels
  const isMuch = terms && leftOf(watch, channel) >= terms.claimAboveAtomic
  if (withdrawal || isMuch) watch.wake()
}

/** What a channel was charged that no claim has, neither on the chain nor under way. */
function leftOf(
  { claiming }: ChannelWatch,
  { id, chargedAtomic, claimedAtomic }: Pick<Channel, 'id' | 'chargedAtomic' | 'claimedAtomic'>,
): bigint {
  return chargedAtomic - (claiming.get(id) ?? claimedAtomic)
}

/** Starts the claims and the sweeps that are due. Throws when the ledger cannot be read. */
export async function claimDue(context: Context, chain: ChainState, terms: Terms): Promise<void> {
  const { monotonic, now } = context
  const { channels: watch } = chain
  const isFull = watch.unclaimedAtomic >= terms.unclaimedMaxAtomic
  const isEvery = isFull || monotonic() - watch.claimedAt >= terms.claimEveryMs
  if (isEvery) watch.claimedAt = monotonic()
  const rows = await readUnclaimed(context, chain, isEvery ? lookedMax : rowsMax)
  // Above the limit nothing is sold, so what is worth less than its gas is claimed, too.
  const isAtAnyCost = (channel: Channel) =>
    isFull ||
    channel.withdrawAt !== undefined ||
    leftOf(watch, channel) >= terms.claimAboveAtomic ||
    (isEvery && channel.usedAt < now() - dayMs)
  const due = claimable(context, chain, rows).filter((channel) => {
    const isOwed = isEvery && isWorth(chain, claimRowGas, leftOf(watch, channel))
    return isOwed || isAtAnyCost(channel)
  })
  const gas = claimBaseGas + BigInt(due.length) * claimRowGas
  const sum = due.reduce((total, channel) => total + leftOf(watch, channel), 0n)
  if (due.some(isAtAnyCost) || isWorth(chain, gas, sum)) start(context, chain, due)
  if (due.length === 0 && watch.claiming.size === 0) watch.late = undefined
  if (isEvery) track(context, sweep(context, chain))
}

/**
 * The channels with unclaimed money, the dearest first, and all of those with a withdrawal: also where a
 * node shows too little of one.
 */
async function readUnclaimed(
  { ledger }: Context,
  { network, channels: { withdrawals } }: ChainState,
  limit: number,
): Promise<readonly Channel[]> {
  const dearest = await ledger.channels.unclaimed(network.id, limit)
  const rows = dearest.filter(({ id }) => !withdrawals.has(id))
  for (const [id, { unclaimedAtomic }] of withdrawals) {
    const channel = unclaimedAtomic > 0n ? await ledger.channels.find(id) : undefined
    if (channel) rows.push(channel)
  }
  return rows
}

/**
 * What can be claimed of channels now. One that has less than it was charged, after a withdrawal or a
 * reorganisation, must not make the claim of the others fail. A node that shows too little only delays the
 * rest, which must not be while a withdrawal runs.
 */
function claimable(
  { channels: { authorizer } }: Context,
  { channels: watch }: ChainState,
  rows: readonly Channel[],
): readonly Channel[] {
  return rows.flatMap((row) => {
    if (row.config.receiverAuthorizer !== authorizer?.address || !row.signed) return []
    const funded = Amount.least(row.chargedAtomic, row.balanceAtomic)
    const channel = row.withdrawAt === undefined ? { ...row, chargedAtomic: funded } : row
    return leftOf(watch, channel) > 0n ? [channel] : []
  })
}

/** Whether gas costs at most an amount. */
export function isWorth({ network, head }: ChainState, gas: bigint, amountAtomic: bigint): boolean {
  return microUsdOf({ gas, priceWei: priceOf(head) }, network) <= Number(amountAtomic)
}

/** Work that never rejects, and that a stop waits for. */
function track({ progress }: Context, work: Promise<void>): void {
  progress.driving.add(work)
  void work.finally(() => progress.driving.delete(work))
}

function start(context: Context, chain: ChainState, channels: readonly Channel[]): void {
  for (let at = 0; at < channels.length; at += rowsMax)
    track(context, claim(context, chain, channels.slice(at, at + rowsMax)))
}

/** Claims channels in one transaction; those that the chain refuses apart. Never rejects. */
async function claim(
  context: Context,
  chain: ChainState,
  channels: readonly Channel[],
): Promise<void> {
  const { claiming } = chain.channels
  for (const { id, chargedAtomic } of channels) claiming.set(id, chargedAtomic)
  try {
    await sendClaim(context, chain, channels)
  } catch (error) {
    fallBehind(context, chain, 'no node answers')
    context.log('settlement-fault', { network: chain.network.id, error })
  } finally {
    for (const { id, chargedAtomic } of channels)
      if (claiming.get(id) === chargedAtomic) claiming.delete(id)
  }
}

async function sendClaim(
  context: Context,
  chain: ChainState,
  channels: readonly Channel[],
): Promise<void> {
  const { network, channels: watch } = chain
  const call = claimCallOf(context, chain, channels)
  const gasLimit = await gasLimitOf(chain, call)
  if (gasLimit === undefined) return divideClaim(context, chain, channels)
  const key = `claim:${network.id}:${Abi.hash(call.data.slice(2))}`
  let end: JobEnd | undefined
  while (end === undefined || end.kind === 'pending') {
    const withdrawn = channels.find(({ id }) => watch.withdrawals.has(id))
    const next = await attemptOf(context, key, isClaimOver(context, withdrawn))
    if (next === undefined) return fallBehind(context, chain, 'claims fail on the chain')
    const job = { id: next.id, ...call, gasLimit, takesLast: true } as const
    end = await runChannelJob(context, chain, job, { waitMs })
    if (context.progress.signal.aborted) return
  }
  if (end.kind === 'unavailable') return fallBehind(context, chain, end.detail)
  context.metrics.channelJob(network.id, 'claim', end.kind)
  if (end.kind !== 'confirmed') watch.claimedAt = atOnce
  watch.late = undefined
  const ids = channels.map(({ id }) => id)
  for (const id of ids) watch.refused.delete(id)
  await syncChannels(context, chain, ids)
  await sweep(context, chain)
}

/**
 * Claims one by one what the chain refuses together. Of a channel that has less than it was charged, after
 * a reorganisation or a withdrawal that came first, all of it is claimed.
 */
async function divideClaim(
  context: Context,
  chain: ChainState,
  channels: readonly Channel[],
): Promise<void> {
  const [first] = channels
  if (first === undefined) return
  if (channels.length > 1) {
    const half = Math.ceil(channels.length / 2)
    const halves = [channels.slice(0, half), channels.slice(half)]
    // At once: one that stays out must not delay a withdrawal in the other.
    await Promise.all(halves.map((each) => claim(context, chain, each)))
    return
  }
  const { id, chargedAtomic } = first
  await syncChannels(context, chain, [id])
  const channel = await context.ledger.channels.find(id)
  if (channel === undefined || channel.claimedAtomic >= chargedAtomic) return
  const { balanceAtomic, claimedAtomic } = channel
  if (claimedAtomic < balanceAtomic && balanceAtomic < chargedAtomic)
    return sendClaim(context, chain, [{ ...channel, chargedAtomic: balanceAtomic }])
  const { refused } = chain.channels
  if (!refused.has(id))
    context.log('channel-claim-refused', { channel: id, network: chain.network.id })
  refused.add(id)
}

/** The call that claims all that channels were charged. */
export function claimCallOf(
  { channels: { authorizer, unpublished } }: Context,
  { network }: ChainState,
  of: readonly Channel[],
) {
  if (authorizer === undefined) throw new Error('claims need RECEIVER_AUTHORIZER_KEY')
  for (const { id } of of) unpublished.delete(id)
  const rows = of.flatMap(({ config, signed, chargedAtomic }): Voucher.ClaimRow[] =>
    signed ? [{ config, ...signed, chargedAtomic }] : [],
  )
  const digest = Voucher.claimDigest(network.chainId, rows)
  return Voucher.claimCall(rows, Crypto.sign(digest, authorizer.key))
}

/**
 * Whether a claim is sent once more, though its rows are the same: it failed, or the chain does not show
 * what it did, or it stays out for a tenth of the delay while a withdrawal runs.
 */
function isClaimOver({ now }: Pick<Context, 'now'>, withdrawn?: Channel) {
  const patienceMs = withdrawn ? withdrawn.config.withdrawDelay * 100 : Number.POSITIVE_INFINITY
  return (row: JobRow, attempt: number): boolean => {
    if (row.state === 'broadcast') return now() - row.createdAt > patienceMs
    // A node that is stuck never shows it, so each attempt waits twice as long as the one before.
    return hasFailed(row) || now() - (row.endedAt ?? now()) > shownMs * 2 ** (attempt - 1)
  }
}

/** Notes that claims which are due could not be sent; they are tried again at the next look. */
function fallBehind({ now }: Context, { channels: watch }: ChainState, reason: string): void {
  watch.claimedAt = atOnce
  watch.late = { since: watch.late?.since ?? now(), reason }
}

/** Pays out what was claimed. Never rejects. */
async function sweep(context: Context, chain: ChainState): Promise<void> {
  const { owed } = chain.channels
  for (const [key, payee] of [...owed]) {
    try {
      if (await payOut(context, chain, payee)) owed.delete(key)
    } catch (error) {
      context.log('settlement-fault', { network: chain.network.id, error })
    }
  }
}

/** Whether a receiver has now what was claimed for it. */
async function payOut(
  context: Context,
  chain: ChainState,
  { receiver, token }: Owed,
): Promise<boolean> {
  const { network, client } = chain
  const asked = Voucher.receiversCall(receiver, token)
  const pair = Voucher.parsePair((await client.call('eth_call', [asked, 'latest'])) as Hex)
  if (pair === undefined) return false
  const [claimed, settled] = pair
  if (claimed <= settled) return true
  if (!isWorth(chain, sweepUsedGas, claimed - settled)) return false
  const key = `sweep:${network.id}:${receiver}:${token}:${claimed}`.toLowerCase()
  const next = await attemptOf(context, key, isClaimOver(context))
  const call = Voucher.settleCall(receiver, token)
  // The token may refuse to pay its receiver.
  const isSendable = next?.row !== undefined || (await gasLimitOf(chain, call)) !== undefined
  if (next === undefined || !isSendable) return false
  const job = { id: next.id, ...call, gasLimit: sweepGas, takesLast: true } as const
  const end = await runChannelJob(context, chain, job, { waitMs })
  context.metrics.channelJob(network.id, 'sweep', end.kind)
  return end.kind === 'confirmed'
}

/** Undefined while claims come in time. */
function lateClaims(
  { now }: Context,
  { network: { id: network }, channels: { unclaimedAtomic, withdrawals, late } }: ChainState,
  { withdrawDelayMs, claimEveryMs }: Terms,
): LateClaims | undefined {
  for (const { at, unclaimedAtomic: left } of withdrawals.values()) {
    if (left <= 0n || now() - at < withdrawDelayMs / 10) continue
    const reason = `a withdrawal has begun, and ${late?.reason ?? 'the claim is not on the chain'}`
    return { network, since: at, reason, unclaimedAtomic: left }
  }
  if (late === undefined || now() - late.since < claimEveryMs) return undefined
  return { network, ...late, unclaimedAtomic }
}

/**
 * When what is unclaimed on a network is claimed next (unix ms), and what is late. Undefined where this
 * process makes no claims of it.
 */
export function claimsOf(
  context: Context,
  chain: ChainState,
): { nextAt: number; late: LateClaims | undefined } | undefined {
  const { network, channels: watch } = chain
  const terms = network.channels
  if (terms === undefined || !keeps(context, chain)) return undefined
  const waitMs = watch.claimedAt + terms.claimEveryMs - context.monotonic()
  return { nextAt: context.now() + Math.max(0, waitMs), late: lateClaims(context, chain, terms) }
}

/** Claims what is unclaimed on a network now, whatever that costs. Returns the number of channels. */
export async function claimAll(context: Context, chain: ChainState): Promise<number> {
  const rows = await readUnclaimed(context, chain, lookedMax)
  start(context, chain, claimable(context, chain, rows))
  return rows.length
}
