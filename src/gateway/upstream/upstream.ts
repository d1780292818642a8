import type { Merchant, Route as RouteConfig } from '../../config/Config'
import { createReader, type Reader } from '../../meter/Reader'
import { type Environment, proxyFor } from '../../net/environment-proxy'
import * as Ip from '../../net/Ip'
import { createResolver, type Resolve, type Resolver } from '../../net/resolve'
import { net } from '../../net/runtime'
import { codeOf, startWatch, UnreadableError, UpstreamError, type Watch } from '../../net/watch'
import { readStart } from '../answer-start'
import * as Route from '../Route'
import { redactAnswer, redactHeaders, redactStream } from '../redact/redact'
import type { Secret } from '../redact/redactor'
import { secretsOf } from '../redact/secrets'
import { toBuyer, toUpstream } from './headers'
import { forwardedBody } from './metering'
import * as Redirect from './Redirect'
import { createSharing, type Sharing } from './sharing'
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
export type Asked = {
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

export type ForwardInput = Asked & {
  paymentId: string
  /** The result of `prepare` for the same request. */
  prepared?: Prepared | undefined
  /** Ends the exchange; the error is then a `cut`. */
  signal?: AbortSignal
}

/** An upstream's answer, with the headers that the buyer may see. */
export type Forwarded = {
  status: number
  headers: Headers
  /** All of it, or a stream that must be read or cancelled and fails with UpstreamError. */
  body: Uint8Array | ReadableStream<Uint8Array>
  /** Whether `body` is all of it, as bytes. */
  complete: boolean
  /** The reader of a metered answer, which has read what was read of `body`. */
  reader: Pick<Reader, 'end' | 'soFar'> | undefined
}

export type Upstream = {
  /** Makes the request that `forward` sends; sends nothing. Throws UpstreamError. */
  prepare(asked: Asked): Prepared
  /** Forwards a paid request, once. Throws UpstreamError when there is no answer to deliver. */
  forward(input: ForwardInput): Promise<Forwarded>
  /**
   * Whether the upstream's name resolves to an allowed address; checked before a charge. A promise
   * only for a name without a finished lookup. It never rejects.
   */
  isReachable(match: Route.Match): boolean | Promise<boolean>
}

type State = {
  readonly resolve: Resolver
  readonly connections: Sharing
  readonly env: Environment
  readonly ca: string | undefined
  readonly secrets: WeakMap<RouteConfig, readonly Secret[]>
  readonly stalls: Stalls
}

/**
 * Forwards to upstreams. Names are resolved once, and the connection is made to an address that was
 * resolved and checked to be public. Redirects are followed within the route only. Bodies are
 * forwarded in their encoding.
 */
export function createUpstream(options: UpstreamOptions): Upstream {
  const state: State = {
    resolve: createResolver(options),
    connections: createSharing(options.now),
    env: options.env ?? process.env,
    ca: options.ca,
    secrets: new WeakMap(),
    stalls: createStalls({ max: options.stalledMax ?? stalledMaxDefault }),
  }
  return {
    prepare: (asked) => prepare(state, asked),
    forward: (input) => forward(state, input),
    isReachable: (match) => isReachable(state, match),
  }
}

async function forward(state: State, input: ForwardInput): Promise<Forwarded> {
  const { merchant, route } = input.match
  const watch = startWatch(input.signal)
  try {
    const sending = send(state, input, watch)
    // Starts after the request has left, unless the name is still being resolved.
    watch.arm(merchant.timeoutMs)
    const response = await sending
    // Our own answer cannot have such a status.
    if (response.status < 200 || response.status > 599)
      throw new UpstreamError('cut', 'invalid-status')
    const headers = toBuyer(response.headers, route)
    if (input.method === 'HEAD') copyLength(response.headers, headers)
    const kept = secretsFor(state, input.match)
    redactHeaders(headers, kept)
    const reader = route.meter && createReader(route.meter, response)
    const read = await readStart(response, {
      idleMs: merchant.idleMs,
      watch,
      stalls: state.stalls,
      tap: reader?.add,
    })
    const body =
      'stream' in read
        ? redactStream({ headers, body: read.stream }, kept)
        : redactAnswer({ headers, body: read.bytes }, kept)
    const { status } = response
    return { status, headers, body, complete: body instanceof Uint8Array, reader }
  } catch (error) {
    // The rest of this response is not needed.
    if (error instanceof UnreadableError) watch.abort()
    watch.stop()
    throw watch.explain(error)
  }
}

function isReachable(
  { resolve }: State,
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

/** Texts that no answer of the route may show. */
function secretsFor({ secrets }: State, { merchant, route }: Route.Match): readonly Secret[] {
  let known = secrets.get(route)
  if (known === undefined) {
    known = secretsOf(merchant, route)
    secrets.set(route, known)
  }
  return known
}

async function send(state: State, input: ForwardInput, watch: Watch): Promise<Response> {
  const { merchant, target } = input.match
  if (target === undefined) throw noUpstream()
  const prepared = input.prepared ?? prepare(state, input)
  prepared.headers.set('idempotency-key', input.paymentId)
  const init = { ...prepared.init, signal: watch.signal }
  const known = state.resolve.known(target.hostname)
  const addresses =
    known === undefined
      ? await watch.race(addressesOf(state, merchant, target))
      : allowed(merchant, known)
  const exchange: Exchange = { input, addresses, init, watch }
  let { url } = prepared
  let response = await connect(state, url, exchange, prepared.place)
  for (let hops = 0; hops < Redirect.most; hops++) {
    const place = Redirect.next(response, url, input.method, input.match)
    if (place === undefined) break
    // Do not wait for the body of a redirect: it is not the bought answer.
    response.body?.cancel().catch(() => {})
    url = place
    response = await connect(state, url, exchange)
  }
  return response
}

function noUpstream(): UpstreamError {
  return new UpstreamError('connect', 'no-upstream')
}

/** The request for any address of the target. */
function prepare(state: State, input: Asked): Prepared {
  const { env, ca } = state
  const { merchant, route, tail, target } = input.match
  if (target === undefined) throw noUpstream()
  const headers = toUpstream(input.headers, merchant, route, input.body.byteLength > 0)
  // Request an unencoded answer, so that secrets and usage can be found in it.
  if (route.meter !== undefined || secretsFor(state, input.match).length > 0)
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
      ...(net().isIP(target.hostname) === 0 ? { serverName: target.hostname } : {}),
      ...(ca === undefined ? {} : { ca }),
    },
  }
  if (hasProxy(env)) Object.assign(init, { proxy: proxyFor(new URL(target.origin), env) })
  if (input.method !== 'GET' && input.method !== 'HEAD')
    init.body = forwardedBody(input.match, input.body)
  const url = Route.upstreamUrl(target, tail, input.search)
  const [address] = allowed(merchant, state.resolve.known(target.hostname) ?? [])
  return { url, init, headers, place: address === undefined ? undefined : placeOf(url, address) }
}

function placeOf(url: URL, address: string): Place {
  const place = new URL(url)
  place.hostname = address.includes(':') ? `[${address}]` : address
  return { address, host: place.host, href: place.href }
}

/** Tries one address after the other until a connection is made. */
async function connect(
  { connections }: State,
  url: URL,
  exchange: Exchange,
  known?: Place,
): Promise<Response> {
  const { input, addresses, init, watch } = exchange
  let failure: UpstreamError | undefined
  for (const address of addresses) {
    const { host, href } = known?.address === address ? known : placeOf(url, address)
    const keepalive = connections.mayShare(input, host)
    try {
      const response = await fetch(href, { ...init, keepalive })
      connections.answered(input, host, response.status)
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

async function addressesOf(
  { resolve }: State,
  merchant: Merchant,
  target: Route.Target,
): Promise<readonly string[]> {
  let addresses: readonly string[]
  try {
    addresses = await resolve(target.hostname)
  } catch (error) {
    throw new UpstreamError('connect', codeOf(error) ?? 'ENOTFOUND')
  }
  return allowed(merchant, addresses)
}

const stalledMaxDefault = 32
/** Longest wait for the lookup of an upstream's name before a charge, ms. */
const lookupMs = 2_000

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

type Exchange = {
  input: ForwardInput
  addresses: readonly string[]
  init: BunFetchRequestInit
  watch: Watch
}

/** A HEAD answer has no body from which the length could be computed. */
function copyLength(from: Headers, to: Headers): void {
  const length = from.get('content-length')
  if (length !== null) to.set('content-length', length)
}
