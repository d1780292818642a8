import { ipVersion } from '../net/runtime'

/** Returns the address of a request's client. The address is looked up only when it is needed. */
export type Peer = (() => string | undefined) & {
  /**
   * Suspends the idle timeout of the connection (`isHeld`), or restores it. `isCut` ends the
   * connection soon, even while bytes wait for a client that does not read.
   */
  hold?: (isHeld: boolean, isCut?: boolean) => void
}

/** Access to the connections of a server's requests. */
export type Connections = {
  /** Connections are ended after this idle time, s. */
  idleSeconds: number
  addressOf(request: Request): string | undefined
  setTimeout(request: Request, seconds: number): void
}

/**
 * Makes the peers of requests. The calls of one message may each suspend the idle timeout, which
 * stays suspended until the last call restores it. Restore it before the answer ends, because the
 * server does not reset the timeout by itself. `originalOf`: the request as the server received it.
 */
export function createPeers(
  { idleSeconds, addressOf, setTimeout }: Connections,
  originalOf: (request: Request) => Request,
): (request: Request) => Peer {
  return (request) => {
    let holders = 0
    // The lookup is lazy, because an unpaid answer does not need the address.
    const peer: Peer = () => addressOf(originalOf(request))
    peer.hold = (isHeld, isCut = false) => {
      holders += isHeld ? 1 : -1
      if (holders === 1 && isHeld) setTimeout(originalOf(request), 0)
      if (holders === 0) setTimeout(originalOf(request), isCut ? 1 : idleSeconds)
    }
    return peer
  }
}

/**
 * The key under which a client is counted: its IPv4 address, or the /64 of its IPv6 address,
 * because one subscriber owns at least a /64. `address`: the peer of the connection. `trustProxy`
 * is the number of reverse proxies in front. Each proxy appends the address that it saw to
 * `X-Forwarded-For`, so the client is that many entries from the right. A client can invent every
 * entry further left. An entry that is not an address ends the search: the last trustworthy address
 * is counted instead.
 */
export function clientOf(
  { headers }: { headers: Pick<Headers, 'get'> },
  address: string | undefined,
  trustProxy: number,
): string {
  let key = normalize(address ?? '') ?? 'unknown'
  let rest = headers.get('x-forwarded-for') ?? ''
  for (let hop = 0; hop < trustProxy && rest; hop++) {
    const comma = rest.lastIndexOf(',')
    const entry = normalize(withoutPort(rest.slice(comma + 1).trim()))
    if (entry === undefined) break
    key = entry
    rest = rest.slice(0, Math.max(comma, 0))
  }
  return key
}

// Some proxies append `address:port`.
function withoutPort(entry: string): string {
  return (
    /^\[([^\]]*)\](?::\d{1,5})?$/.exec(entry)?.[1] ??
    /^(\d+\.\d+\.\d+\.\d+):\d{1,5}$/.exec(entry)?.[1] ??
    entry
  )
}

function normalize(address: string): string | undefined {
  // A dual-stack socket reports an IPv4 peer in this form.
  const plain = address.startsWith('::ffff:') ? address.slice(7) : address
  if (ipVersion(plain) === 4) return plain
  const zone = address.indexOf('%')
  const bare = zone < 0 ? address : address.slice(0, zone)
  return ipVersion(bare) === 6 ? normalizeIPv6(bare) : undefined
}

function normalizeIPv6(address: string): string {
  const groups = expand(address)
  const mapped = groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff
  if (mapped) {
    const [high = 0, low = 0] = groups.slice(6)
    return [high >> 8, high & 255, low >> 8, low & 255].join('.')
  }
  const prefix = groups.slice(0, 4).map((group) => group.toString(16))
  return `${prefix.join(':')}::/64`
}

function expand(address: string): number[] {
  const [left = '', right] = address.split('::')
  const head = groupsOf(left)
  if (right === undefined) return head
  const tail = groupsOf(right)
  return [
    ...head,
    ...new Array<number>(Math.max(0, 8 - head.length - tail.length)).fill(0),
    ...tail,
  ]
}

function groupsOf(text: string): number[] {
  if (!text) return []
  return text.split(':').flatMap((group) => {
    if (!group.includes('.')) return [Number.parseInt(group, 16)]
    const [a = 0, b = 0, c = 0, d = 0] = group.split('.').map(Number)
    return [(a << 8) | b, (c << 8) | d]
  })
}
