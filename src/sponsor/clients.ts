/**
 * Limits per UTC day: addresses that are sponsored for one client and for its network, and how many
 * of them may have an unused grant. Kept in memory. The map holds at most one entry per grant of
 * the day, and after a restart the budget still applies.
 */
export type Clients = {
  /** Whether the client and its network may have one more. */
  hasRoom(client: string, day: number): boolean
  /**
   * The sponsored addresses of the client or its network that may be unused and block another
   * grant. A grant is worth more than an approve costs, so a collector of grants must pay for each
   * approve.
   */
  unused(client: string, day: number): readonly string[]
  /** Marks the grants of these addresses as used. */
  settle(addresses: Iterable<string>): void
  /** Counts one grant; false when there is no room, or too much is unused. */
  take(client: string, day: number, address: string): boolean
  releaseReservation(client: string, day: number, address: string): void
}

type Share = { count: number; unused: Set<string> }

const clientMax = { count: 5, unused: 1 }
const networkMax = { count: 20, unused: 4 }

/** Creates empty counters. */
export function createClients(): Clients {
  let today = 0
  let shares = new Map<string, Share>()
  const shareOf = (key: string): Share => shares.get(key) ?? { count: 0, unused: new Set() }
  const turn = (day: number) => {
    if (day === today) return
    today = day
    shares = new Map()
  }
  const both = (client: string) =>
    [
      [client, clientMax],
      [networkOf(client), networkMax],
    ] as const
  const hasRoom = (client: string, day: number) => {
    turn(day)
    return both(client).every(([key, max]) => shareOf(key).count < max.count)
  }
  const unused = (client: string, day: number) => {
    turn(day)
    const full = both(client).filter(([key, max]) => shareOf(key).unused.size >= max.unused)
    return full.flatMap(([key]) => [...shareOf(key).unused])
  }
  return {
    hasRoom,
    unused,
    settle(addresses) {
      for (const address of addresses) {
        for (const share of shares.values()) share.unused.delete(address)
      }
    },
    take(client, day, address) {
      // The grant of the same address does not block its top-up.
      if (!hasRoom(client, day)) return false
      if (unused(client, day).some((each) => each !== address)) return false
      for (const [key] of both(client)) {
        const share = shareOf(key)
        share.count++
        share.unused.add(address)
        shares.set(key, share)
      }
      return true
    },
    releaseReservation(client, day, address) {
      if (day !== today) return
      for (const [key] of both(client)) {
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
