import { priceOf } from '../chain/head'
import type { ChainState, Context, Slot } from './context'
import type { Product, Purpose } from './Payment'
import type { Refusal } from './verify'
import * as Work from './work'

/** Failed payments of payers with code may cost this fraction (1/n) of the daily budget. */
const codeParts = 10n

type For = Pick<Purpose, 'product'>

/** Whether a product has spent what it may spend on gas today. From memory. */
export function isSpent(
  { store, now }: Pick<Context, 'store' | 'now'>,
  { network }: Pick<ChainState, 'network'>,
  product: Product,
): boolean {
  return store.gasSpentOn(network.id, product, now()) >= network.gasPerDayWei[product]
}

/**
 * Why a product may send nothing more now; undefined when it may. Signed transactions that are not
 * included count as spent, so that concurrent ones cannot exceed the budget together.
 */
export function refuse(context: Context, chain: ChainState, { product }: For): Refusal | undefined {
  if (isSpent(context, chain, product)) return spent('The gas budget of today is spent.')
  const { network } = chain
  const open = underWayWei(chain, product)
  if (open === 0n) return undefined
  const wei = open + context.store.gasSpentOn(network.id, product, context.now())
  if (wei < network.gasPerDayWei[product]) return undefined
  const detail = 'Transactions under way may spend the gas budget of today; try again.'
  return { kind: 'unavailable', detail, retryAfterSeconds: 2 }
}

/**
 * Why nothing is sent for a payer with code now; undefined when it may be. Its code may burn all
 * gas of the transaction whatever the simulation showed. Other payers are not affected.
 */
export function refuseCode(
  context: Context,
  chain: ChainState,
  { product }: For,
): Refusal | undefined {
  const { network } = chain
  const most = network.gasPerDayWei[product] / codeParts
  const wasted = context.store.gasWastedOn(network.id, product, context.now())
  const detail = 'Failed payments of wallets with code have spent the gas that they may cost today.'
  if (wasted > 0n && wasted >= most) return spent(detail)
  const open = underWayWei(chain, product, ({ code }) => typeof code === 'object')
  if (open === 0n || wasted + open < most) return undefined
  return {
    kind: 'unavailable',
    detail: 'Payments of wallets with code are under way.',
    retryAfterSeconds: 2,
  }
}

/** Cost of a product's transactions under way if each uses its gas limit. */
function underWayWei(
  { relayers, head }: ChainState,
  product: Product,
  filter: (slot: Slot) => boolean = () => true,
): bigint {
  let wei = 0n
  const price = priceOf(head)
  for (const { slots } of relayers) {
    for (const slot of slots.values()) {
      const newest = slot.transactions.at(-1)
      if (newest?.product !== product || !filter(slot)) continue
      wei +=
        newest.gasLimit * least(newest.maxFeeWei, price) + (slot.job ? Work.givenWei(slot.job) : 0n)
    }
  }
  return wei
}

function least(left: bigint, right: bigint): bigint {
  return left < right ? left : right
}

function spent(detail: string): Refusal {
  return { kind: 'unavailable', detail, retryAfterSeconds: 600 }
}
