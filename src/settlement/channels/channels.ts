import type { Hex } from 'viem'
import type { Payment } from '../../../db/Payment'
import type * as Network from '../../protocol/Network'
import type { ChannelTerms } from '../../protocol/X402'
import { type ChainState, type Context, chainOf } from '../state/state'
import { checkDeposit, checkVoucher, readStateSince } from './check'
import { claimAll, claimsOf } from './claims'
import { type RefundOptions, refund } from './refund'
import { attemptOf, gasLimitOf, hasFailed } from './send'
import { type Presented, type Settled, takeTurn } from './state'
import { findChannel, findCharged, outOfStep } from './voucher'

/** Longest wait of a request for the turn of its channel, ms. */
const turnMs = 1_000

/** What the products have of payment channels, beside `Authorizations`. */
export function createChannelSales(context: Context) {
  const onNetwork =
    <Given extends unknown[], Result>(work: (chain: ChainState, ...given: Given) => Result) =>
    (network: Network.Id, ...given: Given): Result =>
      work(chainOf(context, network), ...given)
  return {
    /** What an offer says of channels. Undefined: none are taken on the network now. No I/O. */
    termsOf(network: Network.Id): ChannelTerms | undefined {
      const chain = context.chains.get(network)
      return chain?.abilities.channelMethods.length ? termsOf(context, chain) : undefined
    },
    /**
     * What a credential must name. Also before a start has read the chain: then its voucher is refused for
     * now, and not as one of other terms.
     */
    namedTermsOf(network: Network.Id): ChannelTerms | undefined {
      const chain = context.chains.get(network)
      return chain && termsOf(context, chain)
    },
    /**
     * Takes the turn of a channel, which has one request at a time. Undefined: it did not come in time.
     */
    takeTurn: (id: Hex) => takeTurn(context.channels, id, turnMs),
    /** As of `outOfStep`. */
    outOfStep: async (id: Hex, detail: string) =>
      outOfStep(context, await findChannel(context, id), detail),
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
    checkVoucher: onNetwork(checkVoucher),
    checkDeposit: onNetwork(checkDeposit),
    /** What the chain has of a channel in a block or later. Throws RpcFault. */
    stateSince: onNetwork(readStateSince),
    /** Gas limit of a call; undefined where it fails. Throws RpcFault. */
    gasLimitOf: onNetwork(gasLimitOf),
    /** As of `refund`. */
    refund: (transfer: Presented, options: RefundOptions) => refund(context, transfer, options),
  }
}

function termsOf(
  { channels: { authorizer } }: Context,
  { network, abilities, channels: watch }: ChainState,
): ChannelTerms | undefined {
  const [method = network.asset.transfer[0]] = abilities.channelMethods
  if (!network.channels || !authorizer || !method) return undefined
  // The same object as long as nothing changes, so that a change is noticed without a comparison.
  if (watch.terms?.method === method) return watch.terms
  const { withdrawDelayMs, minDepositAtomic } = network.channels
  const withdrawDelay = withdrawDelayMs / 1000
  watch.terms = { receiverAuthorizer: authorizer.address, withdrawDelay, minDepositAtomic, method }
  return watch.terms
}
