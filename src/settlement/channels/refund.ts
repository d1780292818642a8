import type { Hex } from 'viem'
import type { Channel, OnChain } from '../../../db/Channel'
import type { JobRider } from '../../../db/Ledger'
import { RpcError, RpcFault } from '../../chain/client'
import * as Voucher from '../../protocol/Channel'
import * as Crypto from '../../protocol/Crypto'
import * as Refusals from '../read/refusals'
import type { JobCall } from '../send/Job'
import { type ChainState, type Context, chainOf } from '../state/state'
import { claimCallOf, isWorth } from './claims'
import { attemptOf, gasLimitOf, hasFailed } from './send'
import { readUntil, runSponsored } from './sponsored'
import type { Presented } from './state'
import { outOfStep, refuseChannel } from './voucher'
import { nonceOfRefund, refundJob, refundReservation } from './watch'

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

/** Time in which a client that asks again gets the result of the refund of all that there was, ms. */
const askedAgainMs = 600_000

/**
 * Claims and refunds what a credential of kind `refund` asks for. The caller has the turn of the channel, and
 * has checked the signature.
 */
export async function refund(
  context: Context,
  transfer: Presented,
  { waitMs }: RefundOptions,
): Promise<Refunded | Refusals.PaymentRefusal> {
  const { ledger, progress, log } = context
  const { network, voucher } = transfer
  const { channelId: id, maxAtomic } = voucher
  const chain = chainOf(context, network)
  if (progress.isStopping) return Refusals.unavailable(undefined)
  if (ledger.fault() !== undefined) return Refusals.unrecordable
  try {
    const refused = await refuseChannel(context, chain, transfer, (channel) => {
      if (maxAtomic === channel.chargedAtomic) return undefined
      const detail = `The voucher of a refund must be of what was charged, ${channel.chargedAtomic}.`
      return outOfStep(context, channel, detail)
    })
    if (refused) return refused
    const until = context.now() + waitMs
    const begun = await begin(context, chain, transfer)
    if ('kind' in begun) return begun
    const { nonce, ...job } = begun
    // Every reader of the chain can ask for a refund by the newest voucher, which must not use up the
    // deposits of its signer.
    const signer = `refund ${voucher.config.payerAuthorizer}`
    const sponsored = { kind: 'refund', signer, ...job } as const
    const end = await runSponsored(context, chain, sponsored, until - context.now())
    if (end.kind === 'pending')
      return Refusals.later('The refund is sent and not confirmed yet: ask for it again.', 2)
    if (end.kind === 'unavailable') return end
    const isShown = ({ refundNonce }: OnChain) => end.kind !== 'confirmed' || refundNonce > nonce
    await readUntil(context, chain, transfer, { isShown })
    const channel = await ledger.channels.find(id)
    if (end.kind !== 'confirmed' || channel === undefined) {
      const detail = `The refund ${end.transaction} failed on the chain: ask for it again.`
      return Refusals.refuse('invalid_batch_settlement_evm_refund_transaction_failed', detail)
    }
    const amountAtomic = Voucher.amountIn(end.receipt.logs, 'refunded', id) ?? 0n
    return { kind: 'refunded', channel, transaction: end.transaction, amountAtomic }
  } catch (error) {
    const isOfNodes = error instanceof RpcFault || error instanceof RpcError
    if (!isOfNodes) log('settlement-fault', { network, error })
    return Refusals.unavailable(error)
  }
}

type Begun = {
  id: string
  nonce: bigint
  /** Undefined for a refund that was begun before. */
  call: (JobCall & { gasLimit: bigint }) | undefined
  rider?: JobRider
}

/**
 * The job of the refund that is under way, or of a new one. Anybody who reads the signature of a refund can
 * send it, as long as its nonce is unused, and the contract pays back what is not claimed then. So the channel
 * is reserved before a node sees the signature, and only a used nonce ends the reservation.
 */
async function begin(
  context: Context,
  chain: ChainState,
  transfer: Presented,
): Promise<Begun | Refusals.PaymentRefusal> {
  const { voucher, signature } = transfer
  const { channelId: id, refundAtomic, maxAtomic } = voucher
  const { channels, now } = context
  const { authorizer } = channels
  if (authorizer === undefined) throw new Error('refunds need RECEIVER_AUTHORIZER_KEY')
  // Also one that only the memory has: a crash of the database has undone it.
  const channel = await readUntil(context, chain, transfer, { isShown: () => true, limitMs: 0 })
  if (channel === undefined) throw new Error(`channel ${id} is not in the ledger`)
  const { config, balanceAtomic, chargedAtomic, claimedAtomic, refundNonce } = channel
  if (config.receiverAuthorizer !== authorizer.address) {
    const detail = 'The channel is of another key.'
    return Refusals.refuse('invalid_batch_settlement_evm_receiver_authorizer_mismatch', detail)
  }
  const leftAtomic = balanceAtomic - chargedAtomic
  const amountAtomic = refundAtomic ?? leftAtomic
  // A client without an answer asks again.
  const last = await attemptOf(context, refundJob(id, refundNonce - 1n), hasFailed)
  const lastAt = last?.row && (last.row.endedAt ?? now())
  const isLast = leftAtomic <= 0n && lastAt !== undefined && lastAt > now() - askedAgainMs
  const nonce = isLast
    ? refundNonce - 1n
    : ((channel.reserved && nonceOfRefund(channel.reserved)) ?? refundNonce)
  const next = isLast ? last : await attemptOf(context, refundJob(id, nonce), hasFailed)
  if (next === undefined) {
    const detail = 'It fails on the chain.'
    return Refusals.refuse('invalid_batch_settlement_evm_refund_transaction_failed', detail)
  }
  if (next.row !== undefined) return { id: next.id, nonce, call: undefined }
  if (leftAtomic <= 0n) {
    const detail = `The channel ${id} has nothing to refund.`
    return Refusals.refuse('invalid_batch_settlement_evm_refund_no_balance', detail)
  }
  if (amountAtomic <= 0n || amountAtomic > leftAtomic) {
    const detail = `The channel ${id} has ${leftAtomic} to refund.`
    return Refusals.refuse('invalid_batch_settlement_evm_refund_amount_invalid', detail)
  }
  const claiming = chargedAtomic > claimedAtomic ? [claimCallOf(context, chain, [channel])] : []
  const unsigned = Voucher.multicall([...claiming, Voucher.ownRefundCall(config, amountAtomic)])
  const gasLimit = await gasLimitOf(chain, { ...unsigned, from: authorizer.address })
  if (gasLimit === undefined) {
    const detail = 'The refund fails in simulation.'
    return Refusals.refuse('invalid_batch_settlement_evm_refund_simulation_failed', detail)
  }
  // Everybody who reads a claim can ask for one, again and again.
  const isRepeated = refundNonce > 0n && amountAtomic < leftAtomic
  if (isRepeated && !isWorth(chain, gasLimit, amountAtomic)) {
    const detail = `A refund of ${amountAtomic} costs more gas than that. Ask for more, or for all.`
    return Refusals.refuse('invalid_batch_settlement_evm_refund_amount_invalid', detail)
  }
  const digest = Voucher.refundDigest(chain.network.chainId, id, nonce, amountAtomic)
  const signed = Crypto.sign(digest, authorizer.key)
  const refunding = Voucher.refundCall(config, amountAtomic, nonce, signed)
  const call = { ...Voucher.multicall([...claiming, refunding]), gasLimit }
  const reserved = {
    id: refundReservation(nonce),
    ...{ maxAtomic, signature, fingerprint: '', at: now() },
  }
  const rider = { kind: 'reserve', channelId: id, baseAtomic: maxAtomic, reserved } as const
  return { id: next.id, nonce, call, rider }
}
