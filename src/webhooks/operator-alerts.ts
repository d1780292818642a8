import {
  certificateChanged,
  claimsChanged,
  gasChanged,
  type LateClaims,
  networkPaused,
  networkResumed,
  refundsChanged,
  type StuckRefunds,
  upstreamChanged,
} from '../../db/WebhookEvent'
import type { WebhookEvent, WebhookLedger } from '../../db/webhooks'
import type { AlertKind } from '../protocol/Webhook'
import type { Details } from '../settlement/state/availability'

/** Least time between two events of one condition that is not met, ms. */
const betweenMs = 60_000
/** A relayer has little gas when it can pay for fewer lone payments than this. */
const paymentsMin = 200n
/** It has enough again from here, so that a fee that moves does not end and repeat it. */
const paymentsEnough = 2n * paymentsMin

/** Something that an operator must know when it fails, and when it is well again. */
export type Condition = {
  /** Begins with its kind, and is the same for the failure and for its end. */
  name: `${AlertKind} ${string}`
  isMet: boolean
  event(at: number): WebhookEvent
}

type NetworkState = Pick<Details, 'network' | 'ready' | 'reason' | 'relayers' | 'cost'>

export type Watched = {
  networks(): readonly NetworkState[]
  /** Routes that sell nothing because the upstream refuses the key of their merchant. */
  refused(): readonly { merchant: string; reason: string }[]
  /** Refunds of each network that wait for an operator. */
  refunds(): readonly StuckRefunds[]
  /** Networks whose claims of payment channels are late. */
  claims(): readonly LateClaims[]
  /** Each domain of HTTPS; with a reason where clients cannot use it. */
  certificates(): readonly { domain: string; reason: string | undefined }[]
}

/**
 * Writes the events of conditions that are no row of the database. They are found by looking at the
 * states; what is not met at the start counts, too.
 */
export function createConditionWatch(options: {
  ledger: Pick<WebhookLedger, 'add'>
  watched: Watched
  /** Unix ms. */
  now: () => number
}): () => Promise<void> {
  const { ledger, watched, now } = options
  /** When a failure was last reported, and whether its end is still to be reported. */
  const known = new Map<string, { at: number; isOpen: boolean }>()
  return async () => {
    const at = now()
    const open = [...known].filter(([, { isOpen }]) => isOpen).map(([name]) => name)
    for (const { name, isMet, event } of conditionsOf(watched, open)) {
      const last = known.get(name)
      if (isMet ? !last?.isOpen : last?.isOpen || (last && at < last.at + betweenMs)) continue
      // Set before it is written: after a fault of the storage it is tried again after the same time.
      known.set(name, { at: isMet ? (last?.at ?? at) : at, isOpen: false })
      await ledger.add(event(at))
      if (!isMet) known.set(name, { at, isOpen: true })
    }
  }
}

/** The present conditions. `known`: names of those that were not met at the last look. */
export function conditionsOf(watched: Watched, known: readonly string[]): Condition[] {
  const networks = watched.networks()
  return [
    ...networks.map(ofNetwork),
    ...networks.flatMap((network) => ofRelayers(network, known)),
    ...networks.map(({ network }): Condition => {
      const stuck = watched.refunds().find((each) => each.network === network)
      const event = (at: number) => refundsChanged(network, stuck, at)
      return { name: `refund ${network}`, isMet: stuck === undefined, event }
    }),
    ...networks.map(({ network }): Condition => {
      const late = watched.claims().find((each) => each.network === network)
      const event = (at: number) => claimsChanged(network, late, at)
      return { name: `channel ${network}`, isMet: late === undefined, event }
    }),
    ...ofRefused(watched.refused(), known),
    ...watched.certificates().map(({ domain, reason }): Condition => {
      const event = (at: number) => certificateChanged(domain, reason, at)
      return { name: `certificate ${domain}`, isMet: reason === undefined, event }
    }),
  ]
}

function ofNetwork({ network, ready, reason = 'it cannot settle' }: NetworkState): Condition {
  return {
    name: `network ${network}`,
    isMet: ready,
    event: (at) => (ready ? networkResumed(network, at) : networkPaused(network, reason, at)),
  }
}

function ofRelayers(
  { network, relayers, cost }: NetworkState,
  known: readonly string[],
): Condition[] {
  return relayers.flatMap(({ relayer, balanceWei, topUpWei: sendWei = 0n }): Condition[] => {
    const paymentWei = cost.gas * cost.priceWei
    if (balanceWei === undefined || paymentWei === 0n) return []
    const payments = balanceWei / paymentWei
    const gas = { network, relayer, balanceWei, payments, sendWei }
    const name = `gas ${network} ${relayer}` as const
    const isMet = payments >= (known.includes(name) ? paymentsEnough : paymentsMin)
    const event = (at: number) => gasChanged(gas, !isMet, at)
    return [{ name, isMet, event }]
  })
}

const upstreamOf = 'upstream ' satisfies Condition['name']

/** A merchant that was refused before and is not now has recovered. */
function ofRefused(refused: ReturnType<Watched['refused']>, known: readonly string[]): Condition[] {
  const reasons = new Map(refused.map(({ merchant, reason }) => [merchant, reason]))
  const before = known.filter((name) => name.startsWith(upstreamOf))
  const merchants = new Set([
    ...reasons.keys(),
    ...before.map((name) => name.slice(upstreamOf.length)),
  ])
  return [...merchants].map((merchant): Condition => {
    const reason = reasons.get(merchant)
    return {
      name: `${upstreamOf}${merchant}`,
      isMet: reason === undefined,
      event: (at) => upstreamChanged(merchant, reason, at),
    }
  })
}
