import type { Outcome } from '../../../db/admin'
import type { AssetRow } from '../../../db/sales'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { amount } from './parts'
import type { AdminContext } from './sources'

/** Names of networks and assets, of this and of earlier configurations. */
export type Names = Awaited<ReturnType<typeof readNames>>

type AssetOf = { network: string; asset: string }

/** Reads the assets of earlier configurations, too. */
export async function readNames({ config: { networks }, ...sources }: AdminContext) {
  const assets = await sources.assets()
  const asset = ({
    network,
    asset: address,
  }: AssetOf): Pick<AssetRow, 'symbol'> & { decimals?: number } => {
    const known = assets.find(
      (each) => each.network === network && each.address.toLowerCase() === address.toLowerCase(),
    )
    return known ?? { symbol: address }
  }
  return {
    network: (id: string) =>
      networks.find((each) => each.id === id)?.name ??
      assets.find((each) => each.network === id)?.networkName ??
      id,
    asset,
    amount: (atomic: bigint, of: AssetOf) => amount(atomic, { decimals: undefined, ...asset(of) }),
  }
}

const words: Readonly<Record<Outcome, readonly [Tone, string]>> = {
  pending: ['fair', 'pending'],
  delivered: ['good', 'delivered'],
  undelivered: ['bad', 'not delivered'],
  refunded: ['plain', 'refunded'],
  settled: ['good', 'settled'],
  order: ['plain', 'order placed'],
  unpaid: ['plain', 'never paid'],
}

export function outcomeBadge(outcome: Outcome): Html {
  return badge(...words[outcome])
}

export function outcomeWord(outcome: Outcome): string {
  return words[outcome][1]
}

/** What a payment is for, as a route of a merchant. */
export function purposeOf({ merchant, route }: { merchant: string; route: string }): Html {
  return merchant === '' ? html`another server (facilitator)` : html`${merchant}<wbr>${route}`
}
