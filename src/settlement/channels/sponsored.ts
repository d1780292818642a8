import type { Channel, OnChain } from '../../../db/Channel'
import type { JobRider } from '../../../db/Ledger'
import { fees, pollMs, priceOf } from '../../chain/head'
import { zero } from '../../protocol/Address'
import * as Refusals from '../read/refusals'
import type { Job, JobCall, JobEnd } from '../send/Job'
import { microUsdOf } from '../state/availability'
import type { ChainState, Context } from '../state/state'
import { pause } from '../state/wait'
import { claimBaseGas, claimRowGas, runChannelJob } from './send'
import { type Presented, perHour, remember } from './state'
import { readChannels, syncChannels } from './watch'

/*
 * Deposits and refunds: jobs that payers ask for and that cost them nothing. So their number and their gas are
 * limited, and their request waits until the nodes show them.
 */

type Sponsored = {
  kind: 'deposit' | 'refund'
  id: string
  /** Whose jobs in an hour are limited. */
  signer: string
  /** Undefined where it was sent before. */
  call: (JobCall & Pick<Job, 'gasLimit' | 'runsCode'>) | undefined
  rider?: JobRider | undefined
}

/** The call of a job that was sent before does not count. */
const sentBefore = { to: zero, data: '0x', gasLimit: 0n } as const

const changed = Refusals.later('The channel has changed: ask again.', 1)

/**
 * Sends a job that a payer asks for, unless such jobs have cost too much, and waits for its end. Their budget
 * is their own, so that strangers cannot stop payments that settle at once.
 */
export async function runSponsored(
  context: Context,
  chain: ChainState,
  { kind, id, signer, call, rider }: Sponsored,
  waitMs: number,
): Promise<Exclude<JobEnd, { kind: 'refused' }>> {
  const { signers } = chain.channels
  const waitSeconds = call ? signers.waitSeconds(signer) : 0
  if (waitSeconds > 0) {
    const detail = `A signer may send ${perHour} deposits or refunds in an hour; try again later.`
    return Refusals.later(detail, waitSeconds)
  }
  if (call) signers.add(signer)
  // The code of a payer can use all of the gas, and refunds can be asked for again and again: both leave half of
  // the budget to other deposits.
  const sparesHalf = kind === 'refund' || call?.runsCode === true
  const budget = { product: 'channels', sparesHalf, keepsWei: claimsWei(chain) } as const
  const job = { id, ...(call ?? sentBefore), ...budget }
  const options = { waitMs: Math.max(0, waitMs), ...(rider && { rider }) }
  const ended = await runChannelJob(context, chain, job, options)
  const end = ended.kind === 'refused' ? changed : ended
  if (call && end.kind === 'unavailable') signers.takeBack(signer)
  if (end.kind !== 'unavailable') context.metrics.channelJob(chain.network.id, kind, end.kind)
  return end
}

/** Claims of this many channels are what an account keeps gas for. */
const reservedRowsMax = 500

/**
 * Native coin that claims need, of the account that would send them, wei. A claim that is worth less than its
 * gas needs none, so that channels without a charge do not count.
 */
function claimsWei({ head, network, channels: { open, unclaimedAtomic } }: ChainState): bigint {
  const rowMicros = microUsdOf({ gas: claimRowGas, priceWei: priceOf(head) }, network)
  const worthIt = Number(unclaimedAtomic) / rowMicros || 0
  const rows = BigInt(Math.floor(Math.min(open, reservedRowsMax, worthIt)))
  const { maxFeeWei } = fees(head, network.feeCapWei)
  return (claimBaseGas + rows * claimRowGas) * maxFeeWei
}

/** Longest wait for a node that is behind the one that showed the end of a job, ms. */
const shownMs = 10_000

/**
 * The channel of a voucher once every node that answers shows it as wanted; undefined where that does not come
 * in time. Throws RpcFault or RpcError.
 */
export async function readUntil(
  context: Context,
  chain: ChainState,
  { voucher: { channelId: id, config }, network }: Presented,
  { isShown, limitMs = shownMs }: { isShown: (state: OnChain) => boolean; limitMs?: number },
): Promise<Channel | undefined> {
  const { ledger, channels, now, progress } = context
  for (let waitedMs = 0; ; waitedMs += pollMs(chain.head)) {
    if ((await ledger.channels.find(id)) === undefined) {
      const state = (await readChannels(chain, [id])).get(id)
      if (state && isShown(state))
        await ledger.channels.insert({ id, network, config }, state, now())
    } else await syncChannels(context, chain, [id])
    const channel = await ledger.channels.find(id)
    if (channel && isShown(channel)) return remember(channels, channel)
    if (waitedMs >= limitMs || progress.signal.aborted) return undefined
    await pause(pollMs(chain.head), progress.signal)
  }
}
