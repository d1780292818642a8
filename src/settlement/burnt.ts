import type { ChainState, Context } from './context'
import type { Product } from './Payment'

/** What batches may burn a day before there are no more: one part in so many of the budget. */
const parts = 10n

/**
 * Whether payments of a product may share transactions. An account without code can delegate to some
 * that burns all gas in the very block, and costs its maker next to nothing: once batches have burnt
 * their part of the budget so, payments leave alone for the rest of the day, where each burns its own
 * limit. In memory: a restart forgives.
 */
export function mayShare(
  { now }: Pick<Context, 'now'>,
  { network, burnt }: Pick<ChainState, 'network' | 'burnt'>,
  product: Product,
): boolean {
  const wei = burnt.get(dayKey(product, now())) ?? 0n
  return wei === 0n || wei < network.gasPerDayWei[product] / parts
}

/** Takes note of a batch that burnt its gas in vain. */
export function add(
  { now }: Pick<Context, 'now'>,
  { burnt }: Pick<ChainState, 'burnt'>,
  product: Product,
  wei: bigint,
): void {
  const key = dayKey(product, now())
  const before = burnt.get(key) ?? 0n
  // Days that are over are of no use.
  for (const each of burnt.keys())
    if (!each.endsWith(key.slice(key.indexOf(' ')))) burnt.delete(each)
  burnt.set(key, before + wei)
}

function dayKey(product: Product, at: number): string {
  return `${product} ${Math.floor(at / 86_400_000)}`
}
