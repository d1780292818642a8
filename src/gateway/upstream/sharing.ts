import type { Merchant, Route as RouteConfig } from '../../config/Config'

type Asked = {
  method: string
  match: { merchant: Pick<Merchant, 'ownConnections'>; route: RouteConfig }
}

/** Decides which kept-alive connections to upstreams are reused. `host`: address and port. */
export type Sharing = {
  /** Whether a request may use a connection that other requests use. */
  mayShare(asked: Asked, host: string): boolean
  /** Must be called with every answer. */
  answered(asked: Asked, host: string, status: number): void
}

/**
 * Longest time that a kept-alive connection may be used: the runtime ends idle ones after five
 * minutes.
 */
const keptMaxMs = 6 * 60_000

/**
 * After HEAD, 204 and 304, an upstream that sends a body anyway sends it in front of the next
 * answer, to the next buyer. So HEAD requests, and requests that were answered by 204 or 304
 * before, have a connection of their own. When the first such answer came over a shared connection,
 * no kept-alive connection to that address is used until all have ended. `now` is unix ms.
 *
 * The runtime ends a connection when bytes arrive after an answer or while it is idle. For any
 * client, bytes that arrive after the next request was sent belong to that request's answer (RFC
 * 9112 section 9.2). Only a connection for each request separates buyers then.
 */
export function createSharing(now: () => number): Sharing {
  const bodiless = new WeakSet<RouteConfig>()
  /** By address and port: until when, unix ms. Both come from configuration and are few. */
  const unsharedUntil = new Map<string, number>()
  const mayShare = ({ method, match }: Asked, host: string): boolean => {
    if (match.merchant.ownConnections || method === 'HEAD' || bodiless.has(match.route))
      return false
    return (unsharedUntil.get(host) ?? 0) <= now()
  }
  return {
    mayShare,
    answered(input, host, status) {
      const { match } = input
      if ((status !== 204 && status !== 304) || !mayShare(input, host)) return
      bodiless.add(match.route)
      unsharedUntil.set(host, now() + keptMaxMs)
    },
  }
}
