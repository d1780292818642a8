import type { Address } from 'viem'
import { RpcFault } from '../chain/client'
import type { Stock } from '../config/Config'
import * as Problem from '../protocol/Problem'
import type { Snapshot } from './Snapshot'

/** Why an order cannot be taken. `status` is the HTTP status; `detail` is safe to send. */
export type MarketRefusal = { ok: false; status: 400 | 409 | 503; detail: string } & (
  | { code: 'blocked'; address: Address }
  | {
      code: 'halted' | 'paused' | 'pool-mismatch' | 'feed-distance' | 'no-liquidity' | 'unreadable'
    }
)

/** A warning only: the order can be taken. */
export type Warning = 'feed-stale' | 'feed-paused' | 'feed-unreadable'

export type Verdict = { ok: true; warnings: readonly Warning[] } | MarketRefusal

type Rules = Pick<Stock, 'feedDistanceBps' | 'feedMaxAgeSeconds'>

/**
 * Whether the chain permits an order: the pool is the pinned one, the token is not halted, no
 * account is blocked, and the pool takes the amount. Neither its price nor the quote's may be
 * further from a fresh feed than allowed. A feed that is stale, paused or unreadable only warns.
 * `now` is unix ms.
 */
export function of(snapshot: Snapshot, rules: Rules, now: number): Verdict {
  const { token, blocked } = snapshot
  if (snapshot.isPaused === undefined || snapshot.decimals === undefined) {
    return refuse(
      'unreadable',
      503,
      `The contract of ${token.symbol} cannot be read; nothing is charged. Try again later.`,
    )
  }
  if (!snapshot.isPinned) {
    return refuse(
      'pool-mismatch',
      503,
      `The factory does not confirm the pool of ${token.symbol}: tell the operator.`,
    )
  }
  if (snapshot.isHalted === true) {
    return refuse('halted', 409, `The issuer has halted ${token.symbol}: buy another, or later.`)
  }
  if (snapshot.isPaused) {
    return refuse(
      'paused',
      503,
      `Transfers of ${token.symbol} are paused by the issuer: try again later.`,
    )
  }
  for (const { address, isBlocked } of blocked) {
    if (isBlocked === undefined)
      return refuse(
        'unreadable',
        503,
        'The registry cannot be read; nothing is charged. Try again later.',
      )
    if (!isBlocked) continue
    const detail = `The issuer blocks ${address}: it cannot hold the token.`
    return { ok: false, code: 'blocked', status: 400, detail, address }
  }
  if (snapshot.sharesAtomic === undefined || snapshot.midPriceAtomic === undefined) {
    return refuse(
      'no-liquidity',
      503,
      `The pool of ${token.symbol} cannot take this amount: buy less, or later.`,
    )
  }
  return ofFeed(snapshot, rules, now)
}

function ofFeed(snapshot: Snapshot, rules: Rules, now: number): Verdict {
  const { token, feed, midPriceAtomic, priceAtomic } = snapshot
  if (token.feed === undefined) return { ok: true, warnings: [] }
  if (snapshot.isOraclePaused === true) return { ok: true, warnings: ['feed-paused'] }
  if (feed === undefined) return { ok: true, warnings: ['feed-unreadable'] }
  if (isStale(feed, rules, now)) return { ok: true, warnings: ['feed-stale'] }
  // Check the quote too: a pool that lost its depth still shows its old price.
  const isFar = [midPriceAtomic, priceAtomic].some(
    (price) => price === undefined || distanceBps(price, feed.priceAtomic) > rules.feedDistanceBps,
  )
  if (!isFar) return { ok: true, warnings: [] }
  const detail = `The price of ${token.symbol} is too far from its price feed: try again later.`
  return refuse('feed-distance', 503, detail)
}

/** Whether a feed is older than allowed, or ahead of us by as much. */
export function isStale(feed: { updatedAt: number }, rules: Rules, now: number): boolean {
  return Math.abs(now - feed.updatedAt) > rules.feedMaxAgeSeconds * 1000
}

/** Hundredths of a percent of the reference, rounded up. */
function distanceBps(price: bigint, reference: bigint): number {
  if (reference === 0n) return Number.POSITIVE_INFINITY
  const gap = price > reference ? price - reference : reference - price
  return Number((gap * 10_000n + reference - 1n) / reference)
}

/** The problem of a refusal; its `reason` is the refusal's code. */
export function problemOf(refusal: MarketRefusal): Problem.ProblemError {
  const { code, detail } = refusal
  const members = { reason: code }
  switch (code) {
    case 'blocked':
      return Problem.of('invalid-parameter', detail, { members })
    case 'halted':
      return Problem.of('halted', detail, { members })
    case 'paused':
      return Problem.of('paused', detail, { members, headers: { 'retry-after': '60' } })
    default:
      return Problem.of('not-ready', detail, { members, headers: { 'retry-after': '10' } })
  }
}

function refuse(
  code: Exclude<MarketRefusal['code'], 'blocked'>,
  status: MarketRefusal['status'],
  detail: string,
): MarketRefusal {
  return { ok: false, code, status, detail }
}

/** Throws the problem of a market whose network gives no answer, or else the fault itself. */
export function unavailable(cause: unknown): never {
  if (!(cause instanceof RpcFault)) throw cause
  const headers = { 'retry-after': '2' }
  throw Problem.of('not-ready', 'The network gives no answer now; try again.', { headers, cause })
}
