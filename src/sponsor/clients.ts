/**
 * How many addresses one client may have sponsored on a UTC day, and all clients of its network
 * together. In memory: a map holds no more entries than grants were given that day, and a restart
 * gives no more than the budget has left.
 */
export type Clients = {
  /** Counts one grant; false when the client or its network had enough. */
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
  return {
    take(client, day) {
      turn(day)
      const network = networkOf(client)
      if ((counts.get(client) ?? 0) >= perClientMax) return false
      if ((counts.get(network) ?? 0) >= perNetworkMax) return false
      count(client, 1)
      count(network, 1)
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
