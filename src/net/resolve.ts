import { ipVersion } from './runtime'

/** Addresses of a host name; rejects when there are none. */
export type Resolve = (hostname: string) => Promise<readonly string[]>

const ttlMs = 30_000
const failureTtlMs = 2_000

/** Result of the last lookup; undefined for a name without a finished lookup. */
export type Last = readonly string[] | 'failed' | undefined

export type Resolver = Resolve & {
  /**
   * The cached result for a name, without waiting. Starts a lookup when the result is missing or
   * old. A later call returns the result of that lookup.
   */
  last(hostname: string): Last
  /** The addresses that a call would return at once; undefined when it would wait for a lookup. */
  known(hostname: string): readonly string[] | undefined
}

type Known = {
  addresses: Promise<readonly string[]>
  until: number
  /** The addresses, when the lookup has ended. */
  found?: readonly string[]
}

/**
 * Resolves names through `resolve`, at most one lookup of a name at a time. Caches an answer for 30
 * s and a failure for 2 s. An address resolves to itself. Host names come from configuration, so
 * the cache is bounded.
 */
export function createResolver(options: { now: () => number; resolve?: Resolve }): Resolver {
  const resolve = options.resolve ?? fromSystem
  const cache = new Map<string, Known>()
  /** The result for an address, which needs no lookup. */
  const ended = new Map<string, Last>()
  const isOld = (known: Known | undefined) => known === undefined || options.now() >= known.until

  const lookup: Resolve = (hostname) => {
    const known = cache.get(hostname)
    if (known !== undefined && !isOld(known)) return known.addresses
    if (ipVersion(hostname) !== 0) {
      const itself = [hostname]
      const addresses = Promise.resolve(itself)
      cache.set(hostname, { addresses, until: Number.POSITIVE_INFINITY, found: itself })
      ended.set(hostname, itself)
      return addresses
    }
    // Before the answer, `until` limits how long other callers wait for the same lookup.
    const entry: Known = { addresses: resolve(hostname), until: options.now() + ttlMs }
    cache.set(hostname, entry)
    entry.addresses.then(
      (addresses) => {
        entry.until = options.now() + ttlMs
        entry.found = addresses
        ended.set(hostname, addresses)
      },
      () => {
        entry.until = options.now() + failureTtlMs
        ended.set(hostname, 'failed')
      },
    )
    return entry.addresses
  }
  return Object.assign(lookup, {
    last(hostname: string): Last {
      // Every 402 calls this, so read the cache only.
      if (isOld(cache.get(hostname))) lookup(hostname).catch(() => undefined)
      return ended.get(hostname)
    },
    known(hostname: string): readonly string[] | undefined {
      const entry = cache.get(hostname)
      return isOld(entry) ? undefined : entry?.found
    },
  })
}

/**
 * IPv4 first: addresses are tried one after the other, and a host without IPv6 would wait for its
 * timeout.
 */
async function fromSystem(hostname: string): Promise<readonly string[]> {
  const { lookup } = await import('node:dns/promises')
  const found = await lookup(hostname, { all: true })
  return found.toSorted((a, b) => a.family - b.family).map(({ address }) => address)
}
