import { net } from '../http/runtime'

/** Addresses of a host name; rejects when there are none. */
export type Resolve = (hostname: string) => Promise<readonly string[]>

const ttlMs = 30_000
const failureTtlMs = 2_000

type Known = { addresses: Promise<readonly string[]>; until: number }

/**
 * Resolves names through `resolve` at most once at a time, and keeps the answer for 30 s, a failure for
 * 2 s. An address stands for itself. Host names come from configuration, so the cache is bounded.
 */
export function createResolver(options: { now: () => number; resolve?: Resolve }): Resolve {
  const resolve = options.resolve ?? fromSystem
  const cache = new Map<string, Known>()

  return (hostname) => {
    if (net().isIP(hostname) !== 0) return Promise.resolve([hostname])
    const known = cache.get(hostname)
    if (known !== undefined && options.now() < known.until) return known.addresses
    // The limit before the answer is one on how long others wait for the same lookup.
    const entry: Known = { addresses: resolve(hostname), until: options.now() + ttlMs }
    cache.set(hostname, entry)
    entry.addresses.then(
      () => {
        entry.until = options.now() + ttlMs
      },
      () => {
        entry.until = options.now() + failureTtlMs
      },
    )
    return entry.addresses
  }
}

/**
 * IPv4 first: connections are made to one address after the other, and a host without IPv6 would
 * wait for its timeout.
 */
async function fromSystem(hostname: string): Promise<readonly string[]> {
  const { lookup } = await import('node:dns/promises')
  const found = await lookup(hostname, { all: true })
  return found.toSorted((a, b) => a.family - b.family).map(({ address }) => address)
}
