import * as Creation from '../chain/creation'
import * as Authorization from '../protocol/Authorization'
import type { Errand } from '../settlement/Errand'
import { type Context, tokenOf } from './context'
import { nonceOf, type Order, refundId, swapId } from './Order'

/**
 * The two ways in which the money of an order leaves the desk. Both spend one EIP-3009 nonce, so that
 * on every fork of the chain at most one of them moves money, in whatever order they are included: a
 * reorganisation may bring a swap back that had failed, after the refund.
 *
 * What is signed is public as soon as it is sent, and stays valid when its transaction fails. The
 * refund names the payer: another sender can only make the same refund. The swap names an address that
 * exists in no transaction but the swap itself (`receiveWithAuthorization`, see creation.ts). Signed for
 * the router or for Multicall3, it would let everybody take the money in a transaction of their own.
 */

/** The swap reverts after this, and then the money goes back. */
const swapSeconds = 120n
/**
 * Afterwards a refund that has failed can be made by nobody: an operator that pays by other means must
 * know that. Far beyond the time that fees can hold a transaction up.
 */
const refundSeconds = 7n * 24n * 3600n
export const swapGas = 1_600_000n
export const refundGas = 400_000n

/** One transaction of the desk: it takes the money, gives it to the router, swaps; or nothing happens. */
export function swapOf(context: Context, order: Order): Errand {
  const { market } = context
  const validBefore = secondsOf(context) + swapSeconds
  return {
    ...jobOf(context, order),
    id: swapId(order),
    kind: 'swap',
    gasLimit: swapGas,
    compose(sender) {
      const token = tokenOf(context, order)
      if (token === undefined) throw new Error(`${order.token} is not listed any more`)
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

/** All that was paid goes to the payer of record. */
export function refundOf(context: Context, order: Order): Errand {
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
