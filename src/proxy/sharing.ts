import type { Merchant, Route as RouteConfig } from '../config/Config'

type Asked = {
  method: string
  match: { merchant: Pick<Merchant, 'ownConnections'>; route: RouteConfig }
}

/** Which kept connections to upstreams are used again. `host`: address and port. */
export type Sharing = {
  /** Whether a request may use a connection that others use, too. */
  mayShare(asked: Asked, host: string): boolean
  /** To be told of every answer. */
  answered(asked: Asked, host: string, status: number): void
}

/**
 * How long a connection that was kept may be used at most: the runtime ends idle ones after five
 * minutes.
 */
const keptMaxMs = 6 * 60_000

/**
 * After HEAD, 204 and 304 an upstream that sends a body all the same sends it as the next answer, to
 * the next buyer. So HEAD, and what was answered by 204 or 304 before, has a connection of its own; and
 * when the first such answer came over a shared one, no kept connection to that address is used until
 * all have been ended. `now` is unix ms.
 *
 * The runtime ends a connection when bytes come behind an answer or while it is at rest. Bytes that
 * come later, when the next request is out already, are that request's answer to any client (RFC 9112
 * section 9.2): only a connection for each request keeps buyers apart then.
 */
export function createSharing(now: () => number): Sharing {
  const bodiless = new WeakSet<RouteConfig>()
  /** By address and port: until when, unix ms. Both come from configuration and are few. */
  const suspects = new Map<string, number>()
  const mayShare = ({ method, match }: Asked, host: string): boolean => {
    if (match.merchant.ownConnections || method === 'HEAD' || bodiless.has(match.route))
      return false
    return (suspects.get(host) ?? 0) <= now()
  }
  return {
    mayShare,
    answered(input, host, status) {
      const { match } = input
      if ((status !== 204 && status !== 304) || !mayShare(input, host)) return
      bodiless.add(match.route)
      suspects.set(host, now() + keptMaxMs)
    },
  }
}
