import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import { RpcError, RpcFault } from '../../chain/client'
import { pollMs } from '../../chain/head'
import * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import * as Refusals from '../read/refusals'
import type { ChainState, Context } from '../state/state'
import { pause } from '../state/wait'
import { claimCallOf, owe } from './claims'
import {
  attemptOf,
  countSponsored,
  estimateGas,
  hasFailed,
  limitOf,
  runChannelJob,
  takeSponsored,
} from './send'
import { type Presented, watchOf } from './state'
import { nonceOfRefund, refundJob, refundReservation, syncChannels } from './watch'

export type Refunded = {
  kind: 'refunded'
  channel: Channel
  transaction: Hex
  amountAtomic: bigint
}

export type RefundOptions = {
  /** Bounds the wait only: the refund continues. */
  waitMs: number
}

/** Longest wait for a node that is behind the one that showed the refund, ms. */
const shownMs = 10_000

/** Time in which a client that asks again gets the result of the refund of all that there was, ms. */
const askedAgainMs = 600_000

/**
 * Reserves, claims and refunds what a credential of kind `refund` asks for. The caller has the turn of
 * the channel, and has checked the signature and that the voucher is all that was charged.
 */
export async function refund(
  context: Context,
  chain: ChainState,
  { transfer, channel: { id } }: { transfer: Presented; channel: Channel },
  { waitMs }: RefundOptions,
): Promise<Refunded | Refusals.PaymentRefusal> {
  const startedAt = context.now()
  try {
    const begun = await begin(context, chain, transfer, id)
    if (!('job' in begun)) return begun
    const { job, nonce, gasLimit } = begun
    const leftMs = Math.max(0, waitMs - Math.max(0, context.now() - startedAt))
    const end = await runChannelJob(context, chain, job, leftMs)
    const signer = refunderOf(transfer.voucher)
    if (gasLimit !== undefined) countSponsored(context, chain, { signer, gasLimit }, end)
    const reservation = refundReservation(nonce)
    if (end.kind === 'unavailable' || end.kind === 'refused') {
      await context.ledger.channels.release(id, reservation)
      return end.kind === 'unavailable' ? end : Refusals.unavailable(undefined)
    }
    context.metrics.channelJob(chain.network.id, 'refund', end.kind)
    if (end.kind === 'pending')
      return Refusals.later('The refund is sent and not confirmed yet: ask for it again.', 2)
    const channel = await readRefunded(
      context,
      chain,
      id,
      end.kind === 'confirmed' ? nonce : undefined,
    )
    await context.ledger.channels.release(id, reservation)
    if (end.kind === 'confirmed' && channel) {
      owe(watchOf(context, chain.network.id), channel.config)
      const amountAtomic = Voucher.amountIn(end.receipt.logs, 'refunded', id) ?? 0n
      return { kind: 'refunded', channel, transaction: end.transaction, amountAtomic }
    }
    const detail = `The refund ${end.transaction} failed on the chain: ask for it again.`
    return Refusals.refuse('invalid_batch_settlement_evm_refund_transaction_failed', detail)
  } catch (error) {
    if (error instanceof RpcFault || error instanceof RpcError) return Refusals.unavailable(error)
    throw error
  }
}

/**
 * By whom refunds are counted. Whoever reads the newest voucher on the chain can ask for one, which must not
 * use up the deposits of its signer.
 */
function refunderOf({ config }: Pick<Voucher.Voucher, 'config'>): string {
  return `refund ${config.payerAuthorizer}`
}

type Begun = {
  job: { id: string; to: Hex; data: Hex; gasLimit: bigint; keepsWei?: bigint }
  nonce: bigint
  /** Undefined for a refund that was begun before. */
  gasLimit?: bigint
}

/** The job of the refund that is under way, or of a new one that the ledger has reserved. */
async function begin(
  context: Context,
  chain: ChainState,
  { voucher: { refundAtomic, maxAtomic }, signature }: Presented,
  id: Hex,
): Promise<Begun | Refusals.PaymentRefusal> {
  const {
    ledger,
    channels: { authorizer },
    now,
  } = context
  if (authorizer === undefined) throw new Error('refunds need RECEIVER_AUTHORIZER_KEY')
  await syncChannels(context, chain, [id])
  const channel = await ledger.channels.find(id)
  if (channel === undefined) throw new Error(`channel ${id} is not in the ledger`)
  const underWay = channel.reserved && nonceOfRefund(channel.reserved)
  const { config, balanceAtomic, chargedAtomic, claimedAtomic } = channel
  if (config.receiverAuthorizer !== authorizer.address)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_receiver_authorizer_mismatch',
      'The channel is of another key.',
    )
  const leftAtomic = balanceAtomic - chargedAtomic
  const amountAtomic = refundAtomic ?? leftAtomic
  // A client without an answer asks again.
  const lastNonce = channel.refundNonce - 1n
  const last = await attemptOf(context, refundJob(id, lastNonce), hasFailed)
  const lastAt = last?.row && (last.row.endedAt ?? now())
  const isLast = leftAtomic <= 0n && lastAt !== undefined && lastAt > now() - askedAgainMs
  if (underWay === undefined && !isLast) {
    if (leftAtomic <= 0n)
      return Refusals.refuse(
        'invalid_batch_settlement_evm_refund_no_balance',
        `The channel ${id} has nothing to refund.`,
      )
    if (amountAtomic <= 0n || amountAtomic > leftAtomic)
      return Refusals.refuse(
        'invalid_batch_settlement_evm_refund_amount_invalid',
        `The channel ${id} has ${leftAtomic} to refund.`,
      )
  }
  const nonce = isLast ? lastNonce : (underWay ?? channel.refundNonce)
  const next = isLast ? last : await attemptOf(context, refundJob(id, nonce), hasFailed)
  if (next === undefined)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_refund_transaction_failed',
      'It fails on the chain.',
    )
  const digest = Voucher.refundDigest(chain.network.chainId, id, nonce, amountAtomic)
  const refunding = Voucher.refundCall(
    config,
    amountAtomic,
    nonce,
    Crypto.sign(digest, authorizer.key),
  )
  const claiming = chargedAtomic > claimedAtomic ? [claimCallOf(context, chain, [channel])] : []
  const call = Voucher.multicall([...claiming, refunding])
  if (next.row !== undefined) return { job: { id: next.id, ...call, gasLimit: 0n }, nonce }
  const estimate = await estimateGas(chain, call)
  if (estimate === undefined)
    return Refusals.refuse(
      'invalid_batch_settlement_evm_refund_simulation_failed',
      'The refund fails in simulation.',
    )
  const gasLimit = limitOf(estimate)
  const reserved = {
    id: refundReservation(nonce),
    maxAtomic,
    signature,
    fingerprint: '',
    at: now(),
  }
  if (underWay === undefined) {
    const written = await ledger.channels.reserve(id, { baseAtomic: maxAtomic, reserved })
    if (written !== 'reserved')
      return Refusals.refuse(
        'invalid_batch_settlement_evm_cumulative_amount_mismatch',
        'The channel has changed.',
      )
  }
  const taken = takeSponsored(context, chain, refunderOf({ config }), gasLimit)
  if ('kind' in taken) {
    await ledger.channels.release(id, reserved.id)
    return taken
  }
  return { job: { id: next.id, ...call, gasLimit, ...taken }, nonce, gasLimit }
}

/** The channel once every node that answers shows the refund, or after a time. */
async function readRefunded(
  context: Context,
  chain: ChainState,
  id: Hex,
  nonce: bigint | undefined,
): Promise<Channel | undefined> {
  const { ledger, progress } = context
  for (let waitedMs = 0; ; waitedMs += pollMs(chain.head)) {
    await syncChannels(context, chain, [id])
    const channel = await ledger.channels.find(id)
    const isShown = nonce === undefined || (channel?.refundNonce ?? 0n) > nonce
    if (isShown || waitedMs >= shownMs || progress.signal.aborted) return channel
    await pause(pollMs(chain.head), progress.signal)
  }
}
