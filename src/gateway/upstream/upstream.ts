import type { Merchant, Route as RouteConfig } from '../../config/Config'
import { createReader, type Reader } from '../../meter/Reader'
import { type Environment, proxyFor } from '../../net/environment-proxy'
import * as Ip from '../../net/Ip'
import { createResolver, type Resolve, type Resolver } from '../../net/resolve'
import {
  type ExchangeWatch,
  errorCodeOf,
  startWatch,
  UnreadableError,
  UpstreamError,
} from '../../net/watch'
import { stalledCode } from '../../paywall/usage/usage'
import { isEventStream } from '../../protocol/Header'
import * as Route from '../Route'
import { compile, type Patterns, redactAnswer, redactHeaders, redactStream } from '../redact/redact'
import { secretsOf } from '../redact/secrets'
import { toBuyer, toUpstream } from './headers'
import { forwardedBody } from './metering'
import { createStalls, type Stalls } from './stalls'

export type UpstreamOptions = {
  /** Unix ms. */
  now: () => number
  /** Addresses of a host name; the system's resolver by default. */
  resolve?: Resolve
  /** PEM certificates that are trusted instead of the system's. */
  ca?: string
  /** Environment that names proxies; the process's by default. */
  env?: Environment
  /** Most answers whose buyers may stand still for a second; 32 by default. */
  stalledMax?: number
}

/** The part of a buyer's request that is forwarded. */
export type UpstreamRequest = {
  match: Route.Match
  /** HEAD stays HEAD. */
  method: string
  /** The buyer's query: '' or with its `?`. */
  search: string
  /** The buyer's headers; toUpstream selects which of them are forwarded. */
  headers: Headers
  body: Uint8Array
}

/** A request to an upstream, without what its payment decides. For one forward. */
export type Prepared = {
  url: URL
  init: BunFetchRequestInit
  headers: Headers
  /** The URL at the address that will probably be tried first. */
  place: Place | undefined
}

/** The URL of a request at an address of its host. */
type Place = { address: string; host: string; href: string }

export type ForwardInput = UpstreamRequest & {
  paymentId: string
  /** The result of `prepareRequest` for the same request. */
  prepared?: Prepared | undefined
  /** Ends the exchange; the error is then a `cut`. */
  signal?: AbortSignal
}

/** An upstream's answer, with the headers that the buyer may see. */
export type UpstreamAnswer = {
  status: number
  headers: Headers
  /** All of it, or a stream that must be read or cancelled and fails with UpstreamError. */
  body: Uint8Array | ReadableStream<Uint8Array>
  /** The reader of a metered answer, which has read what was read of `body`. */
  reader: Pick<Reader, 'end' | 'soFar'> | undefined
}

/** What the requests to all upstreams share. */
export type Upstream = {
  readonly now: () => number
  readonly resolve: Resolver
  readonly env: Environment
  readonly ca: string | undefined
  /** Texts that no answer of a route may show; undefined for a route without any. */
  readonly secrets: WeakMap<RouteConfig, Patterns | undefined>
  readonly stalls: Stalls
  /** Routes that have answered without a body. */
  readonly bodiless: WeakSet<RouteConfig>
  /**
   * Until when (unix ms) no kept-alive connection is used, by address and port. Both come from
   * configuration and are few.
   */
  readonly unsharedUntil: Map<string, number>
}

const stalledMaxDefault = 32

/**
 * Forwards to upstreams. Names are resolved once, and the connection is made to an address that was
 * resolved and checked to be public. Redirects are followed within the route only. Bodies are
 * forwarded in their encoding.
 */
export function createUpstream(options: UpstreamOptions): Upstream {
  return {
    now: options.now,
    resolve: createResolver(options),
    env: options.env ?? process.env,
    ca: options.ca,
    secrets: new WeakMap(),
    stalls: createStalls({ max: options.stalledMax ?? stalledMaxDefault }),
    bodiless: new WeakSet(),
    unsharedUntil: new Map(),
  }
}

/** Forwards a paid request, once. Throws UpstreamError when there is no answer to deliver. */
export async function forward(upstream: Upstream, input: ForwardInput): Promise<UpstreamAnswer> {
  const { merchant, route } = input.match
  const watch = startWatch(input.signal)
  try {
    const sending = send(upstream, input, watch)
    // Starts after the request has left, unless the name is still being resolved.
    watch.arm(merchant.timeoutMs)
    const response = await sending
    const { status } = response
    // Our own answer cannot have such a status.
    if (status < 200 || status > 599) throw new UpstreamError('cut', 'invalid-status')
    const headers = toBuyer(response.headers, route)
    if (input.method === 'HEAD') copyLength(response.headers, headers)
    const secrets = secretsFor(upstream, input.match)
    redactHeaders(headers, secrets)
    const reader = route.meter && createReader(route.meter, response)
    const exchange = { idleMs: merchant.idleMs, watch, stalls: upstream.stalls, tap: reader?.add }
    const body = await readStart(response, exchange)
    const redacted =
      body instanceof Uint8Array
        ? redactAnswer({ headers, body }, secrets)
        : redactStream({ headers, body }, secrets)
    return { status, headers, body: redacted, reader }
  } catch (error) {
    // The rest of this response is not needed.
    if (error instanceof UnreadableError) watch.abort()
    watch.stop()
    throw watch.explain(error)
  }
}

/** Longest wait for the lookup of an upstream's name before a charge, ms. */
const lookupMs = 2_000

/**
 * Whether the upstream's name resolves to an allowed address; checked before a charge. A promise
 * only for a name without a finished lookup. It never rejects.
 */
export function isReachable(
  { resolve }: Upstream,
  { merchant, target }: Route.Match,
): boolean | Promise<boolean> {
  if (target === undefined) return true
  const isUsable = (addresses: readonly string[]) => allowed(merchant, addresses).length > 0
  const last = resolve.last(target.hostname)
  if (last !== undefined) return last !== 'failed' && isUsable(last)
  return Promise.race([
    resolve(target.hostname).then(isUsable, () => false),
    // When the resolver does not answer in time, let the request itself fail.
    Bun.sleep(lookupMs).then(() => true),
  ])
}

function secretsFor({ secrets }: Upstream, { merchant, route }: Route.Match): Patterns | undefined {
  if (!secrets.has(route)) secrets.set(route, compile(secretsOf(merchant, route)))
  return secrets.get(route)
}

type Exchange = {
  input: ForwardInput
  addresses: readonly string[]
  init: BunFetchRequestInit
  watch: ExchangeWatch
}

/** Most redirects for one answer. This limit also ends loops. */
const redirectsMax = 3

async function send(
  upstream: Upstream,
  input: ForwardInput,
  watch: ExchangeWatch,
): Promise<Response> {
  const { merchant, target } = input.match
  if (target === undefined) throw noUpstream()
  const prepared = input.prepared ?? prepareRequest(upstream, input)
  prepared.headers.set('idempotency-key', input.paymentId)
  const init = { ...prepared.init, signal: watch.signal }
  const known = upstream.resolve.known(target.hostname)
  const addresses =
    known === undefined
      ? await watch.race(addressesOf(upstream, merchant, target))
      : allowed(merchant, known)
  const exchange: Exchange = { input, addresses, init, watch }
  let { url } = prepared
  let response = await connect(upstream, url, exchange, prepared.place)
  for (let hops = 0; hops < redirectsMax && isRedirect(response, input.method); hops++) {
    const place = nextPlace(response, url, input.match)
    if (place === undefined) break
    // Do not wait for the body of a redirect: it is not the bought answer.
    response.body?.cancel().catch(() => {})
    url = place
    response = await connect(upstream, url, exchange)
  }
  return response
}

/**
 * Whether the same request goes on at another place, by RFC 9110 section 15.4. 301, 302 and 303
 * turn a POST into a GET, which is not the request that was paid for.
 */
function isRedirect({ status }: Response, method: string): boolean {
  if (status === 307 || status === 308) return true
  return status >= 301 && status <= 303 && (method === 'GET' || method === 'HEAD')
}

/**
 * Where a redirect leads: within the configured origin, to a path that the same route sells.
 * Undefined for any other place; then the redirect is forwarded unchanged. The place may be what
 * the buyer asked for, such as `?next=/premium`. It must not be a path of another price, nor one
 * that is not sold. The merchant's headers must not reach another host. `from` has the configured
 * host, not the resolved address.
 */
function nextPlace({ headers }: Response, from: URL, match: Route.Match): URL | undefined {
  const location = headers.get('location') ?? ''
  const place = location === '' ? null : URL.parse(location, from.href)
  const { target } = match
  if (place === null || place.origin !== target?.origin) return undefined
  if (place.username !== '' || place.password !== '') return undefined
  if (!Route.sells(match, place.pathname)) return undefined
  place.hash = ''
  place.search = Route.withFixed(target, place.search)
  return place
}

function noUpstream(): UpstreamError {
  return new UpstreamError('connect', 'no-upstream')
}

/**
 * Makes the request that `forward` sends, for any address of the target; sends nothing. Throws
 * UpstreamError.
 */
export function prepareRequest(upstream: Upstream, input: UpstreamRequest): Prepared {
  const { env, ca, resolve } = upstream
  const { merchant, route, tail, target } = input.match
  if (target === undefined) throw noUpstream()
  const headers = toUpstream(input.headers, merchant, route, input.body.byteLength > 0)
  // Request an unencoded answer, so that secrets and usage can be found in it.
  if (route.meter !== undefined || secretsFor(upstream, input.match) !== undefined)
    headers.set('accept-encoding', 'identity')
  headers.set('host', target.host)
  const init: BunFetchRequestInit = {
    method: input.method,
    headers,
    redirect: 'manual',
    decompress: false,
    // Bun's limit of five minutes would cut slow streams, so our own timer applies.
    timeout: false,
    tls: {
      ...(target.serverName === undefined ? {} : { serverName: target.serverName }),
      ...(ca === undefined ? {} : { ca }),
    },
  }
  if (hasProxy(env)) Object.assign(init, { proxy: proxyFor(new URL(target.origin), env) })
  if (input.method !== 'GET' && input.method !== 'HEAD')
    init.body = forwardedBody(input.match, input.body)
  const url = Route.upstreamUrl(target, tail, input.search)
  const [address] = allowed(merchant, resolve.known(target.hostname) ?? [])
  return { url, init, headers, place: address === undefined ? undefined : placeOf(url, address) }
}

function placeOf(url: URL, address: string): Place {
  const place = new URL(url)
  place.hostname = address.includes(':') ? `[${address}]` : address
  return { address, host: place.host, href: place.href }
}

/** Tries one address after the other until a connection is made. */
async function connect(
  upstream: Upstream,
  url: URL,
  exchange: Exchange,
  known?: Place,
): Promise<Response> {
  const { input, addresses, init, watch } = exchange
  let failure: UpstreamError | undefined
  for (const address of addresses) {
    const { host, href } = known?.address === address ? known : placeOf(url, address)
    const keepalive = mayShare(upstream, input, host)
    try {
      const response = await fetch(href, { ...init, keepalive })
      if (response.status === 204 || response.status === 304) noteBodiless(upstream, input, host)
      return response
    } catch (error) {
      const found = watch.explain(error)
      // Only a connection that was never made may be tried at another address.
      if (found.kind !== 'connect') throw found
      failure = found
    }
  }
  throw failure ?? new UpstreamError('refused-address')
}

/**
 * Longest time that a kept-alive connection may be used, ms: the runtime ends idle ones after five
 * minutes.
 */
const keptMaxMs = 6 * 60_000

/**
 * Whether a request may use a kept-alive connection that other requests use. `host`: address and
 * port. After HEAD, 204 and 304, an upstream that sends a body anyway sends it in front of the next
 * answer, to the next buyer. So HEAD requests, and requests that were answered by 204 or 304
 * before, have a connection of their own. When the first such answer came over a shared connection,
 * no kept-alive connection to that address is used until all have ended.
 *
 * The runtime ends a connection when bytes arrive after an answer or while it is idle. For any
 * client, bytes that arrive after the next request was sent belong to that request's answer (RFC
 * 9112 section 9.2). Only a connection for each request separates buyers then.
 */
function mayShare(upstream: Upstream, { method, match }: UpstreamRequest, host: string): boolean {
  if (match.merchant.ownConnections || method === 'HEAD' || upstream.bodiless.has(match.route))
    return false
  return (upstream.unsharedUntil.get(host) ?? 0) <= upstream.now()
}

/** An answer without a body has come. */
function noteBodiless(upstream: Upstream, input: UpstreamRequest, host: string): void {
  if (!mayShare(upstream, input, host)) return
  upstream.bodiless.add(input.match.route)
  upstream.unsharedUntil.set(host, upstream.now() + keptMaxMs)
}

async function addressesOf(
  { resolve }: Upstream,
  merchant: Merchant,
  target: Route.Target,
): Promise<readonly string[]> {
  let addresses: readonly string[]
  try {
    addresses = await resolve(target.hostname)
  } catch (error) {
    throw new UpstreamError('connect', errorCodeOf(error) ?? 'ENOTFOUND')
  }
  return allowed(merchant, addresses)
}

function allowed(merchant: Merchant, addresses: readonly string[]): readonly string[] {
  if (merchant.allowPrivate) return addresses
  let known = publicOnes.get(addresses)
  if (known === undefined) {
    known = addresses.filter(Ip.isPublic)
    publicOnes.set(addresses, known)
  }
  return known
}

/** Cached by the resolver's answer, because every 402 needs it. */
const publicOnes = new WeakMap<readonly string[], readonly string[]>()

/** Whether the environment names a proxy; without one, fetch needs no option. */
function hasProxy(env: Environment): boolean {
  return Boolean(env.http_proxy || env.HTTP_PROXY || env.https_proxy || env.HTTPS_PROXY)
}

/** A HEAD answer has no body from which the length could be computed. */
function copyLength(from: Headers, to: Headers): void {
  const length = from.get('content-length')
  if (length !== null) to.set('content-length', length)
}

/**
 * An answer that is not an event stream is buffered up to this size, so that an earlier break is
 * still a failure.
 */
const bufferMaxBytes = 1024 * 1024

type Reading = {
  /** Longest silence of the upstream. */
  idleMs: number
  watch: ExchangeWatch
  stalls: Stalls
  /** Gets each chunk as it comes. */
  tap: ((chunk: Uint8Array) => void) | undefined
}

type BodyReader = Pick<ReadableStreamDefaultReader<Uint8Array>, 'read' | 'cancel'>

/** Reads the whole body; of a longer one 1 MiB, or the first chunk of an event stream. */
async function readStart(
  response: Response,
  reading: Reading,
): Promise<Uint8Array | ReadableStream<Uint8Array>> {
  const { idleMs, watch, tap } = reading
  if (response.body === null) {
    watch.stop()
    return new Uint8Array(0)
  }
  const limit = isEventStream(response.headers) ? 1 : bufferMaxBytes
  const reader = response.body.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  while (size < limit) {
    watch.arm(idleMs)
    const { done, value } = await reader.read()
    if (done) {
      watch.stop()
      return Buffer.concat(chunks, size)
    }
    size += value.byteLength
    tap?.(value)
    chunks.push(value)
  }
  watch.stop()
  return streamOn(chunks, reader, reading)
}

/**
 * The bytes that were read, then the remaining bytes as fast as the buyer reads. An answer that is
 * given up for others fails: the buyer gets what was sent before.
 */
function streamOn(
  chunks: Uint8Array[],
  reader: BodyReader,
  { idleMs, watch, stalls, tap }: Reading,
): ReadableStream<Uint8Array> {
  let isReading = false
  let fail = () => {}
  /** Ends the exchange, and frees the bytes that were not read. */
  const drop = async () => {
    stall.taken()
    for (const chunk of chunks.splice(0)) free(chunk)
    if (!isReading) await freeNext(reader)
    watch.abort()
    await reader.cancel().catch(() => {})
  }
  const stall = stalls.watch(() => {
    fail()
    void drop()
  })
  return new ReadableStream(
    {
      start(controller) {
        fail = () => {
          const error = Object.assign(new Error('the buyer stands still'), { code: stalledCode })
          controller.error(watch.explain(error))
        }
      },
      async pull(controller) {
        stall.taken()
        try {
          let chunk = chunks.shift()
          if (chunk === undefined) {
            // Restarted for each read: a slow buyer must not count as a slow upstream.
            watch.arm(idleMs)
            isReading = true
            const { done, value } = await reader.read()
            isReading = false
            watch.stop()
            if (done) return controller.close()
            tap?.(value)
            chunk = value
          }
          controller.enqueue(chunk)
          stall.put()
        } catch (error) {
          watch.stop()
          controller.error(watch.explain(error))
        }
      },
      cancel: drop,
    },
    { highWaterMark: 0 },
  )
}

/**
 * Takes the bytes that the runtime has read ahead, and frees them. The runtime would keep them
 * until the reader is collected, although it was cancelled.
 */
async function freeNext(reader: BodyReader): Promise<void> {
  const next = reader.read().then(
    ({ value }) => value && free(value),
    () => {},
  )
  await Promise.race([next, new Promise((resolve) => setImmediate(resolve))])
}

/**
 * Frees the memory of a chunk that nothing else refers to. The collector would free it only after
 * many seconds. Each buyer that does not read and is cut would occupy more than a megabyte for that
 * time.
 */
function free(chunk: Uint8Array): void {
  const { buffer } = chunk
  const isWhole = chunk.byteLength === buffer.byteLength
  if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0)
}
