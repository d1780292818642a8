import type { Hex } from 'viem'
import type { Payment } from '../../../db/Payment'
import type * as Network from '../../protocol/Network'
import type { ChannelTerms } from '../../protocol/X402'
import * as Refusals from '../read/refusals'
import type { JobCall } from '../send/Job'
import { type ChainState, type Context, chainOf } from '../state/state'
import { claimAll, claimsOf } from './claims'
import { type Refunded, type RefundOptions, refund } from './refund'
import { attemptOf, estimateGas, hasFailed, limitOf } from './send'
import { type Presented, remember, type Settled, takeTurn } from './state'
import { findChannel, findCharged, openUnknown, outOfStep } from './voucher'

/** Longest wait of a request for the turn of its channel, ms. */
const turnMs = 1_000

/** What the products have of payment channels, beside `Authorizations`. */
export function createChannelSales(context: Context) {
  const terms = new Map<Network.Id, ChannelTerms>()
  return {
    /** What an offer says of channels. Undefined: none are taken on the network now. No I/O. */
    termsOf(network: Network.Id): ChannelTerms | undefined {
      const chain = context.chains.get(network)
      const made = chain?.abilities.channelMethods.length
        ? termsOf(context, chain, terms.get(network))
        : undefined
      if (made) terms.set(network, made)
      return made
    },
    /**
     * What a credential must name. Also before a start has read the chain: then its voucher is refused for
     * now, and not as one of other terms.
     */
    namedTermsOf(network: Network.Id): ChannelTerms | undefined {
      const chain = context.chains.get(network)
      return chain && termsOf(context, chain, terms.get(network))
    },
    /**
     * Takes the turn of a channel, which has one request at a time. Undefined: it did not come in time.
     */
    takeTurn: (id: Hex) => takeTurn(context.channels, id, turnMs),
    find: (id: Hex) => findChannel(context, id),
    /** The payment that a voucher has made already. */
    findCharged: (transfer: Presented) => findCharged(context, transfer),
    /** What a payment by a channel shows of it now. */
    async settledBy(payment: Payment): Promise<Settled | undefined> {
      const channel = await findChannel(context, payment.transaction)
      return channel && { payment, channel }
    },
    /** As of `claimsOf`. */
    claimsOf(network: Network.Id) {
      const chain = context.chains.get(network)
      return chain && claimsOf(context, chain)
    },
    /** Claims all of a network now; undefined where this process makes no claims of it. */
    async claimAll(network: Network.Id): Promise<number | undefined> {
      const chain = context.chains.get(network)
      return chain && claimsOf(context, chain) && (await claimAll(context, chain))
    },
    /** The attempt of a job that is under way, or the next one; undefined after too many. */
    attemptOf: (key: string) => attemptOf(context, key, hasFailed),
    /** Gas limit of a call; undefined where it fails. Throws RpcFault. */
    async gasLimitOf(network: Network.Id, call: JobCall): Promise<bigint | undefined> {
      const gas = await estimateGas(chainOf(context, network), call)
      return gas && limitOf(gas)
    },
    /** Refunds a channel. The caller has its turn, and has checked the signature. */
    refund: (transfer: Presented, options: RefundOptions) =>
      refundChannel(context, transfer, options),
  }
}

function termsOf(
  { channels }: Context,
  { network, abilities }: ChainState,
  before: ChannelTerms | undefined,
): ChannelTerms | undefined {
  const { authorizer } = channels
  const [method = network.asset.transfer[0]] = abilities.channelMethods
  if (!network.channels || !authorizer || !method) return undefined
  // The same object as long as nothing changes, so that a change is noticed without a comparison.
  if (before?.method === method) return before
  const { withdrawDelayMs, minDepositAtomic } = network.channels
  const withdrawDelay = withdrawDelayMs / 1000
  return { receiverAuthorizer: authorizer.address, withdrawDelay, minDepositAtomic, method }
}

async function refundChannel(
  context: Context,
  transfer: Presented,
  options: RefundOptions,
): Promise<Refunded | Refusals.PaymentRefusal> {
  const { progress, ledger, channels } = context
  const { channelId, maxAtomic } = transfer.voucher
  const chain = chainOf(context, transfer.network)
  if (progress.isStopping) return Refusals.unavailable(undefined)
  if (ledger.fault() !== undefined) return Refusals.unrecordable
  let known = await findChannel(context, channelId)
  // Another process may have charged it since it was read.
  if (known && maxAtomic !== known.chargedAtomic && ledger.lanes.isShared) {
    const read = await ledger.channels.find(channelId)
    known = read && remember(channels, read)
  }
  if (known && maxAtomic !== known.chargedAtomic) {
    const detail = `The voucher of a refund must be of what was charged, ${known.chargedAtomic}.`
    return outOfStep(known, detail)
  }
  try {
    const found = known ? { channel: known } : await openUnknown(context, chain, transfer)
    if ('kind' in found) return found
    const { channel } = found
    return await refund(context, chain, { transfer, channel }, options)
  } catch (error) {
    context.log('settlement-fault', { network: transfer.network, error })
    return Refusals.unavailable(error)
  }
}
