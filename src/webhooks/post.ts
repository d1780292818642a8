import type { Webhook } from '../config/Config'
import { type Environment, proxyFor } from '../net/environment-proxy'
import * as Ip from '../net/Ip'
import { createResolver, type Resolve } from '../net/resolve'
import { ipVersion } from '../net/runtime'
import { type ExchangeWatch, errorCodeOf, startWatch, UpstreamError } from '../net/watch'

export type PostOptions = {
  /** Unix ms. */
  now: () => number
  /** Addresses of a host name; the system's resolver by default. */
  resolve?: Resolve | undefined
  /** PEM certificates that are trusted instead of the system's. */
  ca?: string | undefined
  /** Environment that names proxies; the process's by default. */
  env?: Environment | undefined
  /** Longest time of one attempt, ms; 10 s by default. */
  timeoutMs?: number | undefined
}

export type PostAnswer = { status: number; retryAfter: string | null } | { error: string }

/** Sends one message once. Never rejects. */
export type Post = (
  endpoint: Pick<Webhook, 'url' | 'allowPrivate'>,
  message: { headers: Record<string, string>; body: string },
  signal: AbortSignal,
) => Promise<PostAnswer>

/**
 * Sends by the rules that protect the upstreams: the name is resolved once, and the connection is
 * made to an address that was checked, so that a second lookup cannot lead to a private one. No
 * redirect is followed. Of the answer only the head is read, so its body takes no memory.
 */
export function createPost(options: PostOptions): Post {
  const resolve = createResolver({
    now: options.now,
    ...(options.resolve !== undefined && { resolve: options.resolve }),
  })
  return async (endpoint, message, signal) => {
    const watch = startWatch(signal)
    watch.arm(options.timeoutMs ?? timeoutMs)
    try {
      const addresses = await watch.race(
        addressesOf(resolve, hostOf(endpoint.url), endpoint.allowPrivate),
      )
      const init = initOf(options, endpoint.url, message, watch)
      const response = await connect(endpoint.url, addresses, init, watch)
      response.body?.cancel().catch(() => undefined)
      return { status: response.status, retryAfter: response.headers.get('retry-after') }
    } catch (error) {
      const { kind, code } = watch.explain(error)
      return { error: code === undefined ? kind : `${kind} ${code}` }
    } finally {
      watch.stop()
    }
  }
}

const timeoutMs = 10_000

/** Throws when the name has no address, or none that is allowed. */
export async function addressesOf(
  resolve: Resolve,
  hostname: string,
  allowPrivate: boolean,
): Promise<readonly string[]> {
  const found = await resolve(hostname).catch((error: unknown) => {
    throw new UpstreamError('connect', errorCodeOf(error) ?? 'ENOTFOUND')
  })
  const allowed = allowPrivate ? found : found.filter(Ip.isPublic)
  if (allowed.length === 0) throw new UpstreamError('refused-address')
  return allowed
}

/** An IPv6 address without its brackets. */
function hostOf({ hostname }: URL): string {
  return hostname.replace(/^\[|\]$/g, '')
}

function initOf(
  { ca, env = process.env }: PostOptions,
  url: URL,
  { headers, body }: Parameters<Post>[1],
  { signal }: ExchangeWatch,
): BunFetchRequestInit {
  const name = hostOf(url)
  return {
    method: 'POST',
    headers: {
      ...headers,
      'content-type': 'application/json',
      'user-agent': 'turnpike-webhooks/1',
      host: url.host,
    },
    body,
    redirect: 'manual',
    decompress: false,
    signal,
    timeout: false,
    // Bytes after an answer, such as a body of a 204, would be the next answer to a request of a
    // buyer if the endpoint and an upstream shared connections.
    keepalive: false,
    // False where the environment excepts the name: the runtime knows only the address.
    proxy: proxyFor(url, env),
    tls: {
      ...(ipVersion(name) === 0 && { serverName: name }),
      ...(ca !== undefined && { ca }),
    },
  } as BunFetchRequestInit
}

/** Tries one address after the other until a connection is made. */
async function connect(
  url: URL,
  addresses: readonly string[],
  init: BunFetchRequestInit,
  watch: ExchangeWatch,
): Promise<Response> {
  const place = new URL(url)
  let failure = new UpstreamError('refused-address')
  for (const address of addresses) {
    place.hostname = address.includes(':') ? `[${address}]` : address
    try {
      return await fetch(place.href, init)
    } catch (error) {
      failure = watch.explain(error)
      if (failure.kind !== 'connect') throw failure
    }
  }
  throw failure
}
