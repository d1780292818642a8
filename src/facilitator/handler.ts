import type { Address, Hex } from 'viem'
import type { Config } from '../config/Config'
import { type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { allowOf, assertUnpacked, notAllowed, preflight } from '../http/methods'
import type { Counter } from '../http/metrics'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import type { Log } from '../log'
import * as Facilitation from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import * as Problem from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import * as Policy from './Policy'
import {
  createSettler,
  type SettleCall,
  type Settled,
  type Settler,
  type Settling,
} from './settle-once'
import {
  type CheckedRequest,
  identify,
  open,
  type Unidentified,
  type VerificationOptions,
  verifyRequest,
} from './verification'

export type FacilitatorOptions = {
  config: Config
  settlement: Settlement
  /** Sends the approves that payers sign; undefined without a sponsor. */
  sponsor: ApprovalSponsor | undefined
  /** Accounts that send settlements. */
  relayers: readonly `0x${string}`[]
  /** Addresses that must not be paid, besides the relayers. */
  ownAccounts: readonly `0x${string}`[]
  budget: Budget
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
  requestId: () => string
  settling: Settling
  /** Counts calls by answer: a result, or the code of a problem. */
  calls: Counter
  /** False while the process stops: nothing new is started. */
  accepts: () => boolean
}

export type Facilitator = {
  /** Answers a request for an operation, of any method; never rejects. */
  handle(
    operation: Operation,
    request: Request,
    peer: () => string | undefined,
  ): Response | Promise<Response>
}

/** The client's key (http/client.ts), and the hash of the API key if the request has one. */
type Caller = Pick<Call, 'operation' | 'key'> & { keyHash: Hex | undefined }

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

/** The options, with the values that one configuration adds. Built once. */
type Facilitating = FacilitatorOptions & {
  verifying: VerificationOptions
  settler: Settler
  /** Networks with at least one accepted asset. */
  accepted: readonly Network.Network[]
  /** The relayer that `/supported` names next for the scheme `upto`. */
  facilitatorOf: SupportedOptions['facilitatorOf']
  /** Network in the answers to requests that name no network. */
  anyNetwork: string
  extensions: readonly string[]
  /** Most calls of one client in a minute. */
  limits: { verify: number; settle: number }
}

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

/** The x402 v2 facilitator over HTTP: `/supported`, `/verify`, `/settle`. */
export function createFacilitator(options: FacilitatorOptions): Facilitator {
  const facilitating = facilitatingOf(options)
  return {
    handle(operation, request, peer) {
      const requestId = options.requestId()
      try {
        const answer = route(facilitating, operation, { request, peer, requestId })
        return answer instanceof Response
          ? answer
          : answer.catch((error) => fail(facilitating, error, operation, requestId))
      } catch (error) {
        return fail(facilitating, error, operation, requestId)
      }
    },
  }
}

function facilitatingOf(options: FacilitatorOptions): Facilitating {
  const { config, settlement, sponsor, relayers, now } = options
  const { facilitator, networks } = config
  const policy = Policy.from(config, [...relayers, ...options.ownAccounts])
  const verifying: VerificationOptions = { settlement, sponsor, networks, policy, relayers, now }
  const accepted = networks.filter(({ id }) => policy.assets.has(id))
  const waitMs = facilitator.settleWaitSeconds * 1000
  return {
    ...options,
    verifying,
    settler: createSettler({ ...verifying, settling: options.settling, waitMs }),
    accepted,
    // No ceiling is forwarded here, so none is too high.
    facilitatorOf: createTurns((id) =>
      policy.takesUpto ? settlement.authorizations.facilitators(id, 0n) : [],
    ),
    anyNetwork: (accepted[0] ?? networks[0])?.id ?? 'eip155:1',
    extensions: [
      ...(accepted.some(({ asset }) => asset.eip2612) ? [Sponsoring.permitName] : []),
      ...(sponsor === undefined ? [] : [Sponsoring.approvalName]),
    ],
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

async function answer(facilitating: Facilitating, call: Call): Promise<Response> {
  const { operation, request, key, requestId, limit } = call
  const { apiKeyHashes } = facilitating.config.facilitator
  const keyHash = authorize(apiKeyHashes, request.headers)
  const subject = await read(facilitating, request, { operation, key, keyHash })
  if ('code' in subject) {
    throw malformed(operation, subject, subject.network ?? facilitating.anyNetwork)
  }
  const headers = { ...common, ...limit, 'X-Request-Id': requestId }
  if (operation === 'verify') return verify(facilitating, subject, headers)
  const idempotencyKey = keyHash === undefined ? undefined : idempotencyKeyOf(request.headers)
  const client = keyHash ?? key
  return settle(facilitating, { subject, idempotencyKey, requestId, client }, headers)
}

/** Returns the bytes to the budget before anything waits for a chain. */
async function read(
  { verifying, budget }: Facilitating,
  request: Request,
  caller: Caller,
): Promise<CheckedRequest | (Problem.Fault & { network: string | undefined })> {
  assertUnpacked(request.headers)
  const owner = { client: caller.key, isPaid: true }
  const body = await readBody(request, bodyMaxBytes, budget, owner)
  let subject: Unidentified
  try {
    const opened = open(verifying, body.bytes, caller)
    if ('code' in opened) return { ...opened, network: Facilitation.networkNamed(body.bytes) }
    subject = opened
  } finally {
    body.release()
  }
  return identify(verifying, subject)
}

async function verify(
  { verifying, calls }: Facilitating,
  subject: CheckedRequest,
  headers: Record<string, string>,
): Promise<Response> {
  const verification = await verifyRequest(verifying, subject)
  if (verification.kind !== 'unavailable') count(calls, 'verify', verification.kind)
  const { payer } = subject.request
  switch (verification.kind) {
    case 'good':
      return Response.json({ isValid: true, payer }, { headers })
    case 'bad': {
      const { reason, detail } = verification
      const verdict = { isValid: false, invalidReason: reason, invalidMessage: detail, payer }
      return Response.json(verdict, { headers })
    }
    case 'unavailable':
      throw notReady(verification)
  }
}

async function settle(
  { settler, calls, log }: Facilitating,
  call: SettleCall,
  headers: Record<string, string>,
): Promise<Response> {
  const { subject, requestId } = call
  const settled = await settler.settle(call)
  if (settled.kind === 'unavailable') throw notReady(settled)
  if (settled.kind === 'conflict') throw conflict(settled.detail, subject)
  count(calls, 'settle', settled.kind)
  if ('isReplay' in settled && settled.isReplay) headers['Idempotency-Replayed'] = 'true'
  log('facilitator-settle', { requestId, ...summaryOf(settled), network: subject.network.id })
  return Response.json(toJson(settled, subject), { headers })
}

function count(calls: Counter, operation: Operation, answered: string): void {
  calls.inc({ operation, answer: answered })
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

function answerSupported(facilitating: Facilitating): Response {
  const { settlement, accepted, relayers: signers, extensions, facilitatorOf } = facilitating
  const isReady = (network: Network.Id) =>
    facilitating.accepts() &&
    settlement.isReady(network) &&
    settlement.hasBudget(network, 'facilitator')
  const body = JSON.stringify(supported(accepted, { isReady, facilitatorOf, signers, extensions }))
  const headers = { ...common, 'Cache-Control': 'public, max-age=5' }
  return new Response(body, { headers })
}

function fail(
  { config, log, calls, anyNetwork }: Facilitating,
  error: unknown,
  operation: Operation,
  requestId: string,
): Response {
  const known = error instanceof Problem.ProblemError
  if (!known) log.child({ requestId })('request-failed', { error })
  const problem = known ? error : unknownError(error, requestId)
  const { code, detail } = problem
  count(calls, operation, code)
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

export type Supported = {
  kinds: readonly Kind[]
  extensions: readonly string[]
  /** Relayers by CAIP-2 pattern. */
  signers: Readonly<Record<string, readonly Address[]>>
}

type Kind = { x402Version: 2; network: string } & (
  | { scheme: 'exact' }
  /** The only account that may settle; the payer signs it. */
  | { scheme: 'upto'; extra: { facilitatorAddress: Address } }
)

export type SupportedOptions = {
  isReady: (network: Network.Id) => boolean
  /** The relayer to name next for `upto`; undefined where nothing settles it. */
  facilitatorOf: (network: Network.Id) => Address | undefined
  signers: readonly Address[]
  extensions: readonly string[]
}

/**
 * What is settled here now, in the order of the configuration. A network that cannot settle is
 * omitted, so that no server offers a payment that would fail. Specification 2.5.
 */
export function supported(
  networks: readonly Network.Network[],
  { isReady, facilitatorOf, signers, extensions }: SupportedOptions,
): Supported {
  const ready = networks.filter(({ id }) => isReady(id))
  const exact = ready.map(({ id }): Kind => ({ x402Version: 2, scheme: 'exact', network: id }))
  const upto = ready.flatMap(({ id }): Kind[] => {
    const facilitatorAddress = facilitatorOf(id)
    if (facilitatorAddress === undefined) return []
    return [{ x402Version: 2, scheme: 'upto', network: id, extra: { facilitatorAddress } }]
  })
  return { kinds: [...exact, ...upto], extensions, signers: { 'eip155:*': signers } }
}

/** Lets the relayers of each network take turns. */
export function createTurns(
  relayersOf: (network: Network.Id) => readonly Address[],
): SupportedOptions['facilitatorOf'] {
  const turns = new Map<Network.Id, number>()
  return (network) => {
    const relayers = relayersOf(network)
    const turn = turns.get(network) ?? 0
    turns.set(network, turn + 1)
    return relayers[turn % relayers.length]
  }
}

/** Answers of the facilitator, as JSON and as problems. */

export type Operation = 'supported' | Facilitation.Operation

/** A 400 with both the JSON of the operation and a problem. A settlement has a CAIP-2 network. */
export function malformed(
  operation: Operation,
  { code, detail }: Problem.Fault,
  network: string,
  kind: 'bad-request' | 'body-too-large' = 'bad-request',
): Problem.ProblemError {
  const verdict =
    operation === 'verify'
      ? { isValid: false, invalidReason: code, invalidMessage: detail }
      : { success: false, errorReason: code, errorMessage: detail, transaction: '', network }
  return Problem.of(kind, detail, { members: { ...verdict, reason: code } })
}

export function conflict(detail: string, { request }: CheckedRequest): Problem.ProblemError {
  const { payer, requirements } = request
  const members = {
    ...{ success: false, errorReason: 'idempotency_conflict', errorMessage: detail },
    ...{ transaction: '', network: requirements.network, payer, field: 'Idempotency-Key' },
  }
  return Problem.of('idempotency-conflict', detail, { members })
}

/**
 * The network cannot settle now. The answer has no `isValid` and no `success`, which clients would
 * read as a result.
 */
export function notReady(state: {
  detail: string
  retryAfterSeconds: number
}): Problem.ProblemError {
  const headers = { 'Retry-After': String(state.retryAfterSeconds) }
  return Problem.of('not-ready', state.detail, { headers })
}

type Answered = Exclude<Settled, { kind: 'unavailable' | 'conflict' }>

export function toJson(settled: Answered, { request, network }: CheckedRequest): object {
  const { payer } = request
  switch (settled.kind) {
    case 'success': {
      const { transaction, transfer } = settled.payment
      const amount = String(transfer.amountAtomic)
      return { success: true, payer, transaction, network: network.id, amount }
    }
    case 'void':
      return { success: true, payer, transaction: '', network: network.id, amount: '0' }
    case 'pending': {
      const transaction = settled.payment?.transaction ?? ''
      const errorReason = 'settlement_pending'
      const errorMessage = 'The transfer is not confirmed yet; ask again with the same call.'
      const pending = { success: false, status: 'pending', errorReason, errorMessage }
      return { ...pending, payer, transaction, network: network.id }
    }
    case 'failed': {
      const { reason: errorReason, detail: errorMessage, transaction } = settled
      return { success: false, errorReason, errorMessage, payer, transaction, network: network.id }
    }
  }
}

/** Fields for the log: the answer, without the buyer. */
export function summaryOf(settled: Answered): Record<string, unknown> {
  if (settled.kind === 'failed') return { answer: settled.reason }
  if (settled.kind === 'void') return { answer: settled.kind }
  return { answer: settled.kind, payment: settled.payment?.id }
}
