/**
 * How many addresses one client may have sponsored on a UTC day, and all clients of its network
 * together. In memory: a map holds no more entries than grants were given that day, and a restart
 * gives no more than the budget has left.
 */
export type Clients = {
  /** Whether the client and its network may have one more. */
  hasRoom(client: string, day: number): boolean
  /** Counts one grant; false when there is no room. */
  take(client: string, day: number): boolean
  giveBack(client: string, day: number): void
}

const perClientMax = 5
const perNetworkMax = 20

/** Nobody has taken anything yet. */
export function createClients(): Clients {
  let today = 0
  let counts = new Map<string, number>()
  const count = (key: string, by: number) => {
    const value = (counts.get(key) ?? 0) + by
    if (value > 0) counts.set(key, value)
    else counts.delete(key)
  }
  const turn = (day: number) => {
    if (day === today) return
    today = day
    counts = new Map()
  }
  const hasRoom = (client: string, day: number) => {
    turn(day)
    const ofNetwork = counts.get(networkOf(client)) ?? 0
    return (counts.get(client) ?? 0) < perClientMax && ofNetwork < perNetworkMax
  }
  return {
    hasRoom,
    take(client, day) {
      if (!hasRoom(client, day)) return false
      count(client, 1)
      count(networkOf(client), 1)
      return true
    },
    giveBack(client, day) {
      if (day !== today) return
      count(client, -1)
      count(networkOf(client), -1)
    },
  }
}

/**
 * The network around a client: the /24 of an IPv4 address, the /48 of an IPv6 one, of which the
 * client itself is counted under its /64.
 */
export function networkOf(client: string): string {
  if (client.includes(':')) return `${client.split(':').slice(0, 3).join(':')}::/48`
  return `${client.slice(0, client.lastIndexOf('.'))}.0/24`
}
