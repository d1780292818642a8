import { net } from '../net/runtime'

/**
 * The key under which a client is counted: its IPv4 address, or the /64 of its IPv6 address,
 * because one subscriber owns at least a /64. `trustProxy` is the number of reverse proxies in
 * front. Each proxy appends the address that it saw to `X-Forwarded-For`, so the client is that
 * many entries from the right. A client can invent every entry further left. An entry that is not
 * an address ends the search: the last trustworthy address is counted instead.
 */
export function clientKey(
  peerAddress: string | undefined,
  xForwardedFor: string | null,
  trustProxy: number,
): string {
  let key = normalize(peerAddress ?? '') ?? 'unknown'
  let rest = xForwardedFor ?? ''
  for (let hop = 0; hop < trustProxy && rest; hop++) {
    const comma = rest.lastIndexOf(',')
    const address = normalize(withoutPort(rest.slice(comma + 1).trim()))
    if (address === undefined) break
    key = address
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
  if (net().isIPv4(plain)) return plain
  const zone = address.indexOf('%')
  const bare = zone < 0 ? address : address.slice(0, zone)
  return net().isIPv6(bare) ? normalizeIPv6(bare) : undefined
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
