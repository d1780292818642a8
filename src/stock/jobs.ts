import type { Order } from '../../db/Order'
import * as Creation from '../chain/creation'
import * as Authorization from '../protocol/Authorization'
import type { Job } from '../settlement/send/Job'
import { type Context, tokenOf } from './context'
import { nonceOf, refundId, swapId } from './Order'

/**
 * Swap and refund, the two transactions that move an order's money out of the desk. Both use one
 * EIP-3009 nonce, so at most one of them moves money on any fork of the chain, in any order of
 * inclusion. A reorganisation may include a failed swap after the refund.
 *
 * A signature is public once it is sent, and stays valid when its transaction fails. The refund
 * names the payer, so another sender can only make the same refund. The swap names the address of
 * the swap's own contract creation (`receiveWithAuthorization`, see creation.ts). With a signature
 * for the router or for Multicall3 any account could take the money.
 */

/** The swap reverts after this time, and then the money is refunded. */
const swapSeconds = 120n
/**
 * After this time a failed refund can no longer be sent, so an operator may safely pay by other
 * means. Far longer than low fees can delay a transaction.
 */
const refundSeconds = 7n * 24n * 3600n
export const swapGas = 1_600_000n
export const refundGas = 400_000n

/** The job of the swap: one transaction takes the money, pays the router and swaps, or reverts. */
export function swapOf(context: Context, order: Order): Job {
  const { market } = context
  const validBefore = secondsOf(context) + swapSeconds
  return {
    ...jobOf(context, order),
    id: swapId(order),
    kind: 'swap',
    gasLimit: swapGas,
    compose(sender) {
      const token = tokenOf(context, order)
      if (token === undefined) throw new Error(`${order.token} is no longer listed`)
      const { to: payee } = Creation.create(sender, [])
      const terms = termsOf(context, order, { payee, amountAtomic: order.usdgAtomic, validBefore })
      const signature = sender.sign(Authorization.receiveDigest(terms, context.asset))
      return Creation.create(sender, [
        Authorization.receiveCall({ ...terms, signature }),
        ...market.swap({ ...order, token, deadline: validBefore }),
      ])
    },
  }
}

/** Returns the whole payment to the payer of record. */
export function refundOf(context: Context, order: Order): Job {
  const { payer: payee, totalAtomic: amountAtomic } = order
  const validBefore = secondsOf(context) + refundSeconds
  return {
    ...jobOf(context, order),
    id: refundId(order),
    kind: 'refund',
    gasLimit: refundGas,
    compose(sender) {
      const terms = termsOf(context, order, { payee, amountAtomic, validBefore })
      const signature = sender.sign(Authorization.digest(terms, context.asset))
      return Authorization.call({ ...terms, signature })
    },
  }
}

type Terms = Omit<Parameters<typeof Authorization.call>[0], 'signature'>

function termsOf(
  { settlement, asset, chainId }: Context,
  order: Order,
  terms: Pick<Terms, 'payee' | 'amountAtomic' | 'validBefore'>,
): Terms {
  const nonce = nonceOf(order)
  const payer = settlement.desk
  return { ...terms, payer, nonce, chainId, asset: asset.address, validAfter: 0n }
}

function jobOf({ settlement }: Context, { network }: Order) {
  return { product: 'desk', network, relayer: settlement.desk, valueWei: 0n } as const
}

function secondsOf({ now }: Context): bigint {
  return BigInt(Math.floor(now() / 1000))
}
