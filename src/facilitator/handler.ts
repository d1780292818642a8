import type { Address, Hex } from 'viem'
import type { Config } from '../config/Config'
import { type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { allowOf, assertUnpacked, notAllowed, preflight } from '../http/methods'
import type { Counter } from '../http/metrics'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import type { Log } from '../log'
import * as Channel from '../protocol/Channel'
import * as Facilitation from '../protocol/Facilitation'
import * as Network from '../protocol/Network'
import * as Problem from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import { type Answered, toJson } from './answers'
import { answerChannelCall } from './channels'
import * as Policy from './Policy'
import { otherMoney, type SettleOptions, settleOnce } from './settle-once'
import {
  type ChannelCall,
  type CheckedRequest,
  identify,
  openRequest,
  type Unidentified,
  verifyRequest,
} from './verification'

type FacilitatorOptions = Pick<
  SettleOptions,
  'settlement' | 'sponsor' | 'relayers' | 'now' | 'settling'
> & {
  config: Config
  /** Addresses that must not be paid, besides the relayers. */
  ownAccounts: readonly Address[]
  budget: Budget
  rateLimit: RateLimit.RateLimit
  log: Log
  requestId: () => string
  /** Counts calls by answer: a result, or the code of a problem. */
  calls: Counter
  /** False while the process stops: nothing new is started. */
  accepts: () => boolean
}

/** The client's key (http/client.ts), and the hash of the API key if the request has one. */
type Caller = Pick<Call, 'operation' | 'key'> & {
  keyHash: Hex | undefined
  /** Its API key and its Idempotency-Key, else a value of this call alone. */
  call: string
}

/** Resource servers may echo long extensions, but real payments are shorter than this. */
const bodyMaxBytes = 256 * 1024
/**
 * Memory for its bodies besides `buffered_max`: this fraction of it, and at least this many bodies.
 */
const bufferedShare = 1 / 8
const bodiesMin = 16

/**
 * Bytes of the facilitator's bodies in memory. This budget is separate from the gateway's, so that
 * clients that fill one cannot block the other.
 */
export function bufferedBytes(bufferedMaxBytes: number): number {
  return Math.max(bodiesMin * bodyMaxBytes, Math.floor(bufferedMaxBytes * bufferedShare))
}

const common = {
  ...corsHeaders,
  'Content-Type': 'application/json',
  'Cache-Control': 'no-store',
  'X-Content-Type-Options': 'nosniff',
}

/** The options, with the values that one configuration adds. */
type Facilitating = ReturnType<typeof facilitatingOf>

/** A call of `/verify` or `/settle` that is within its client's limits. */
type Call = {
  operation: Facilitation.Operation
  request: Request
  /** Of the client (http/client.ts). */
  key: string
  requestId: string
  /** Headers that report the client's rate limit. */
  limit: Record<string, string>
}

/** The x402 facilitator over HTTP: `/supported`, `/verify`, `/settle`. */
export function createFacilitator(options: FacilitatorOptions) {
  const facilitating = facilitatingOf(options)
  return {
    /** Answers a request for an operation, of any method; never rejects. */
    async handle(
      operation: Operation,
      request: Request,
      peer: () => string | undefined,
    ): Promise<Response> {
      const requestId = options.requestId()
      try {
        return await route(facilitating, operation, { request, peer, requestId })
      } catch (error) {
        return fail(facilitating, error, operation, requestId)
      }
    },
  }
}

function facilitatingOf(options: FacilitatorOptions) {
  const { config, sponsor } = options
  const { facilitator, networks } = config
  const policy = Policy.from(config, [...options.relayers, ...options.ownAccounts])
  const accepted = networks.filter(({ id }) => policy.assets.has(id))
  return {
    ...options,
    networks,
    takesV1: config.service.x402V1,
    policy,
    waitMs: facilitator.settleWaitSeconds * 1000,
    /** Networks with at least one accepted asset. */
    accepted,
    /** How often `/supported` has named a relayer for the scheme `upto`, by network. */
    turns: new Map<Network.Id, number>(),
    /** Network in the answers to requests that name no network. */
    anyNetwork: (accepted[0] ?? networks[0])?.id ?? 'eip155:1',
    extensions: [
      ...(accepted.some(({ asset }) => asset.eip2612) ? [Sponsoring.permitName] : []),
      ...(sponsor === undefined ? [] : [Sponsoring.approvalName]),
    ],
    /** Most calls of one client in a minute. */
    limits: { verify: facilitator.verifyPerMinute, settle: facilitator.settlePerMinute },
  }
}

type Arrival = { request: Request; peer: () => string | undefined; requestId: string }

function route(
  facilitating: Facilitating,
  operation: Operation,
  { request, peer, requestId }: Arrival,
): Response | Promise<Response> {
  const { method } = request
  const allow = allowOf([operation === 'supported' ? 'GET' : 'POST'])
  if (method === 'OPTIONS') return preflight(request, allow)
  if (!allow.split(', ').includes(method)) throw notAllowed(allow)
  if (operation === 'supported') return answerSupported(facilitating)
  const { config, rateLimit, limits, now } = facilitating
  if (!facilitating.accepts())
    throw Problem.of('not-ready', 'The service is stopping: send the request again.')
  const key = clientOf(request, peer(), config.service.trustProxy)
  const verdict = rateLimit.take(`${operation} ${key}`, limits[operation], now())
  const limit = RateLimit.headers(verdict)
  if (!verdict.ok) {
    const detail = `Too many calls of /${operation} from this address: wait for Retry-After.`
    throw Problem.of('rate-limited', detail, { headers: limit })
  }
  const call: Call = { operation, request, key, requestId, limit }
  return answer(facilitating, call).catch((error: unknown) => {
    throw error instanceof Problem.ProblemError ? Problem.withHeaders(error, limit) : error
  })
}

async function answer(facilitating: Facilitating, incoming: Call): Promise<Response> {
  const { operation, request, key, requestId, limit } = incoming
  const { apiKeyHashes } = facilitating.config.facilitator
  const keyHash = authorize(apiKeyHashes, request.headers)
  const isKeyed = operation === 'settle' && keyHash !== undefined
  const idempotencyKey = isKeyed ? idempotencyKeyOf(request.headers) : undefined
  // The chain publishes all of a payload of version 1, so only its caller can tell calls apart.
  const call = idempotencyKey === undefined ? crypto.randomUUID() : `${keyHash} ${idempotencyKey}`
  const subject = await read(facilitating, request, { operation, key, keyHash, call })
  const client = keyHash ?? key
  const answered: Answered =
    'asked' in subject
      ? await answerChannelCall(facilitating, subject)
      : operation === 'verify'
        ? ((await verifyRequest(facilitating, subject)) ?? { members: {} })
        : await settleOnce(facilitating, { subject, idempotencyKey, requestId, client })
  if ('retryAfterSeconds' in answered) {
    // Without `isValid` and `success`, which clients would read as a result.
    const headers = { 'Retry-After': String(answered.retryAfterSeconds) }
    throw Problem.of('not-ready', answered.detail, { headers })
  }
  const names = namesOf(subject)
  if (answered === otherMoney) {
    const { detail } = otherMoney
    const members = { ...toJson(operation, otherMoney, names), field: 'Idempotency-Key' }
    throw Problem.of('idempotency-conflict', detail, { members })
  }
  const { noted = {} } = answered
  const [good, bad] = operation === 'verify' ? ['good', 'bad'] : ['success', 'failed']
  const isFailure = 'code' in answered
  const counted = isFailure ? (answered.status ?? bad) : good
  facilitating.calls.inc({ operation, answer: noted.answer ?? counted })
  if (operation === 'settle') {
    const { answer = isFailure ? answered.code : good, payment } = noted
    const { id: network } = subject.network
    facilitating.log('facilitator-settle', { requestId, answer, payment, network })
  }
  const headers = { ...common, ...limit, 'X-Request-Id': requestId }
  const replayed = noted.isReplay && { 'Idempotency-Replayed': 'true' }
  const json = toJson(operation, answered, names)
  return Response.json(json, { headers: { ...headers, ...replayed } })
}

/** Returns the bytes to the budget before anything waits for a chain. */
async function read(
  facilitating: Facilitating,
  request: Request,
  caller: Caller,
): Promise<CheckedRequest | ChannelCall> {
  assertUnpacked(request.headers)
  const owner = { client: caller.key, isPaid: true }
  const body = await readBody(request, bodyMaxBytes, facilitating.budget, owner)
  let subject: Unidentified | ChannelCall
  try {
    const opened = openRequest(facilitating, body.bytes, caller)
    if ('code' in opened) {
      const network = Facilitation.networkNamed(body.bytes) ?? facilitating.anyNetwork
      throw malformed(caller.operation, opened, network)
    }
    subject = opened
  } finally {
    body.release()
  }
  return 'asked' in subject ? subject : identify(facilitating, subject)
}

/** The payer and the network as the request names them. */
function namesOf(subject: CheckedRequest | ChannelCall) {
  const { id } = subject.network
  if ('asked' in subject) {
    const { asked } = subject
    return { network: id, payer: asked.type === 'presented' ? asked.payer : undefined }
  }
  const { request } = subject
  return { network: Facilitation.networkNameIn(request, id), payer: request.payer }
}

/** Requires an API key when the configuration lists any: then only its callers may spend gas. */
function authorize(apiKeyHashes: readonly Hex[], headers: Headers): Hex | undefined {
  if (apiKeyHashes.length === 0) return undefined
  const keyHash = Policy.keyOf(headers, apiKeyHashes)
  if (keyHash !== undefined) return keyHash
  throw Problem.of('unauthorized', 'An API key is needed: Authorization: Bearer KEY.', {
    headers: { 'WWW-Authenticate': 'Bearer' },
  })
}

/**
 * What is settled here now, in the order of the configuration. A network that cannot settle is
 * omitted, so that no server offers a payment that would fail. Specification 2.5.
 */
function answerSupported(facilitating: Facilitating): Response {
  const { settlement, relayers, extensions } = facilitating
  const ready = facilitating.accepted.filter(
    ({ id }) =>
      facilitating.accepts() && settlement.isReady(id) && settlement.hasBudget(id, 'facilitator'),
  )
  const x402Version = 2
  const exact = ready.map(({ id: network }) => ({ x402Version, scheme: 'exact', network }))
  const upto = ready.flatMap(({ id: network }) => {
    // The only account that may settle; the payer signs it.
    const facilitatorAddress = nextRelayer(facilitating, network)
    if (facilitatorAddress === undefined) return []
    return { x402Version, scheme: 'upto', network, extra: { facilitatorAddress } }
  })
  // Without a key of ours: the receiver's authorizer of each channel is its own server.
  const channels = ready
    .filter(({ id }) => settlement.hasChannels(id))
    .map(({ id: network }) => ({ x402Version, scheme: Channel.scheme, network }))
  const version1 = ready.flatMap(({ id, asset }) => {
    const network = facilitating.takesV1 ? Network.v1NameOf(id) : undefined
    if (network === undefined || !asset.transfer.includes('eip3009')) return []
    return { x402Version: 1, scheme: 'exact', network }
  })
  const kinds = [...exact, ...upto, ...channels, ...version1]
  const body = JSON.stringify({ kinds, extensions, signers: { 'eip155:*': relayers } })
  const headers = { ...common, 'Cache-Control': 'public, max-age=5' }
  return new Response(body, { headers })
}

/** The relayer to name next for `upto`, in turns; undefined where nothing settles it. */
function nextRelayer({ policy, settlement, turns }: Facilitating, network: Network.Id) {
  if (!policy.takesUpto) return undefined
  // No ceiling is forwarded here, so none is too high.
  const relayers = settlement.authorizations.facilitators(network, 0n)
  const turn = turns.get(network) ?? 0
  turns.set(network, turn + 1)
  return relayers[turn % relayers.length]
}

function fail(
  facilitating: Facilitating,
  error: unknown,
  operation: Operation,
  requestId: string,
): Response {
  const { config, log, anyNetwork, calls } = facilitating
  const known = error instanceof Problem.ProblemError
  if (!known) log.child({ requestId })('request-failed', { error })
  const problem = known ? error : unknownError(error, requestId)
  const { code, detail } = problem
  calls.inc({ operation, answer: code })
  // The request is at fault. Client libraries read the result beside the problem.
  const isVerdict = code === 'bad-request' || code === 'body-too-large'
  const shown =
    isVerdict && problem.reason === undefined && operation !== 'supported'
      ? Problem.withHeaders(
          malformed(operation, { code: 'invalid_payload', detail }, anyNetwork, code),
          problem.headers,
        )
      : problem
  return toResponse(shown, { baseUrl: config.service.baseUrl, requestId })
}

const idempotencyKeyPattern = /^[\x21-\x7e]{1,255}$/

function idempotencyKeyOf(headers: Headers): string | undefined {
  const key = headers.get('idempotency-key') ?? undefined
  if (key === undefined || idempotencyKeyPattern.test(key)) return key
  const detail = 'Idempotency-Key must be 1 to 255 visible ASCII characters.'
  throw Problem.of('bad-request', detail)
}

export type Operation = 'supported' | Facilitation.Operation

/** A 400 with both the JSON of the operation and a problem. A settlement has a CAIP-2 network. */
function malformed(
  operation: Facilitation.Operation,
  { code, detail }: Problem.Fault,
  network: string,
  kind: 'bad-request' | 'body-too-large' = 'bad-request',
): Problem.ProblemError {
  const verdict = toJson(operation, { code, detail }, { network })
  return Problem.of(kind, detail, { members: { ...verdict, reason: code } })
}
