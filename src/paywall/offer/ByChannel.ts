import type { NetworkConfig, Route } from '../../config/Config'
import * as Amount from '../../protocol/Amount'
import { inWords } from '../../protocol/Time'

/** What documents and pages say of routes that are paid by a channel (x402 scheme `batch-settlement`). */

type Scheme = NonNullable<Route['schemes']>[number]

/** Whether a route is offered by a scheme where that is possible. */
export function takes({ schemes }: Pick<Route, 'schemes'>, scheme: Scheme): boolean {
  return schemes?.includes(scheme) ?? true
}

/** The least deposit of a channel on a network, which pays for one request. */
export function leastDepositAtomic(
  { priceAtomic }: Pick<Route, 'priceAtomic'>,
  { channels }: NetworkConfig,
): bigint {
  return Amount.greatest(channels?.minDepositAtomic ?? 0n, priceAtomic)
}

/** One sentence or more about a route whose channels are on these networks; '' for none. */
export function sentence(
  route: Pick<Route, 'priceAtomic'>,
  networks: readonly NetworkConfig[],
): string {
  const terms = networks.flatMap((network) => {
    const { name, asset, channels } = network
    if (channels === undefined) return []
    const amount = Amount.toShort(leastDepositAtomic(route, network), asset.decimals)
    const delay = inWords(channels.withdrawDelayMs)
    return [`${amount} ${asset.symbol} on ${name}, withdrawal in ${delay}`]
  })
  if (terms.length === 0) return ''
  return (
    'By a channel (x402 scheme batch-settlement) the price is the most that a request costs: one ' +
    `deposit (from ${terms.join('; or ')}), then a signed voucher for each request, without a ` +
    'transaction. A signed refund request gives back what is left.'
  )
}
