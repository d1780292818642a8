import type { Outcome } from '../../../db/admin'
import type { AssetRow } from '../../../db/sales'
import type { Config } from '../../config/Config'
import { type Html, html } from '../html'
import { badge, type Tone } from '../parts'
import { amount } from './parts'

/** Names of networks and assets, of this and of earlier configurations. */
export type Names = ReturnType<typeof createNames>

type AssetOf = { network: string; asset: string }

export function createNames({ networks }: Config, assets: readonly AssetRow[]) {
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
  settled: ['good', 'settled'],
  order: ['plain', 'order placed'],
  unpaid: ['plain', 'never paid'],
}

export function outcomeBadge(outcome: Outcome): Html {
  const [tone, word] = words[outcome]
  return badge(tone, word)
}

export function outcomeWord(outcome: Outcome): string {
  return words[outcome][1]
}

/** What a payment is for, as a route of a merchant. */
export function purposeOf({ merchant, route }: { merchant: string; route: string }): Html {
  return merchant === '' ? html`another server (facilitator)` : html`${merchant}<wbr>${route}`
}
