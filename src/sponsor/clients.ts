import type { Address } from 'viem'

type Share = { count: number; unused: Set<Address> }

/** The most of what shares a key. */
type Limit = { keyOf(client: string): string; count: number; unused: number }

/** Grants by request: of a client, and of its network. */
const grantLimits: readonly Limit[] = [
  { keyOf: (client) => client, count: 5, unused: 1 },
  { keyOf: networkOf, count: 20, unused: 4 },
]

/** Funded approves of a day that may not have arrived, of all clients. */
export const approvesMissingMax = 16

/**
 * Signed approves. Several may be under way for one client, which may be another server. Those that do
 * not arrive stay unused: then the client is refused, then its network, then the approves of all.
 */
export const approvalLimits: readonly Limit[] = [
  { keyOf: (client) => client, count: Number.POSITIVE_INFINITY, unused: 4 },
  { keyOf: networkOf, count: Number.POSITIVE_INFINITY, unused: 8 },
  { keyOf: () => 'all', count: Number.POSITIVE_INFINITY, unused: approvesMissingMax },
]

/**
 * Limits per UTC day: addresses that are sponsored for one client, for its network and for all, and how
 * many of them may have an unused grant. Kept in memory. The map holds a few entries per grant of the
 * day, and after a restart the budget still applies.
 */
export function createClients(limits: readonly Limit[] = grantLimits) {
  let today = 0
  let shares = new Map<string, Share>()
  const shareOf = (key: string): Share => shares.get(key) ?? { count: 0, unused: new Set() }
  const each = (client: string, day: number) => {
    if (day !== today) shares = new Map()
    today = day
    return limits.map((limit) => [limit.keyOf(client), limit] as const)
  }
  /** Whether the client and its network may have one more. */
  const hasRoom = (client: string, day: number) =>
    each(client, day).every(([key, max]) => shareOf(key).count < max.count)
  /**
   * The sponsored addresses of the client or its network that may be unused and block another
   * grant. A grant is worth more than an approve costs, so a collector of grants must pay for each
   * approve.
   */
  const unused = (client: string, day: number) => {
    const full = each(client, day).filter(([key, max]) => shareOf(key).unused.size >= max.unused)
    return full.flatMap(([key]) => [...shareOf(key).unused])
  }
  return {
    hasRoom,
    unused,
    /** Marks the grants of these addresses as used. */
    settle(addresses: readonly Address[]): void {
      for (const address of addresses) {
        for (const share of shares.values()) share.unused.delete(address)
      }
    },
    /** Counts one grant; false when there is no room, or too much is unused. */
    take(client: string, day: number, address: Address): boolean {
      // The grant of the same address does not block its top-up.
      if (!hasRoom(client, day)) return false
      if (unused(client, day).some((other) => other !== address)) return false
      for (const [key] of each(client, day)) {
        const share = shareOf(key)
        share.count++
        share.unused.add(address)
        shares.set(key, share)
      }
      return true
    },
    releaseReservation(client: string, day: number, address: Address): void {
      if (day !== today) return
      for (const [key] of each(client, day)) {
        const share = shares.get(key)
        if (share === undefined) continue
        share.unused.delete(address)
        if (--share.count <= 0) shares.delete(key)
      }
    },
  }
}

/**
 * The network of a client: the /24 of an IPv4 address, the /48 of an IPv6 one. An IPv6 client
 * itself is counted under its /64.
 */
export function networkOf(client: string): string {
  if (client.includes(':')) return `${client.split(':').slice(0, 3).join(':')}::/48`
  return `${client.slice(0, client.lastIndexOf('.'))}.0/24`
}
