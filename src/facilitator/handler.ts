import type { Hex } from 'viem'
import type { Config } from '../config/Config'
import { type Budget, readBody } from '../http/body'
import { clientKey } from '../http/clientip'
import { allowOf, assertUnpacked, notAllowed, preflight } from '../http/methods'
import type { Counter } from '../http/metrics'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import * as RateLimit from '../http/ratelimit'
import type { Log } from '../log'
import * as Facilitation from '../protocol/Facilitation'
import * as Problem from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import type { Settlement } from '../settlement/settlement'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import { type Case, type JudgeOptions, judge, open } from './judge'
import * as Policy from './Policy'
import { createSettler, type Settled, type Settling } from './settle'
import { supported } from './supported'

export type FacilitatorOptions = {
  config: Config
  settlement: Settlement
  /** Sends the approves that payers sign; undefined when nobody does. */
  sponsor: ApprovalSponsor | undefined
  /** Who sends settlements. */
  relayers: readonly `0x${string}`[]
  /** Addresses that must not be paid, besides the relayers. */
  ownAccounts: readonly `0x${string}`[]
  budget: Budget
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
  requestId: () => string
  settling: Settling
  /** Counts the calls by what was answered: a verdict, or the code of a problem. */
  calls: Counter
  /** False once the process stops: nothing new is started. */
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

/** The client's key (http/clientip.ts), and the hash of the API key if it shows one. */
type Caller = { key: string; keyHash: Hex | undefined }

export type Operation = 'supported' | 'verify' | 'settle'

/** Resource servers may echo long extensions, but nobody's payment is longer than this. */
const bodyMaxBytes = 256 * 1024
/** Room of its bodies besides `buffered_max`, as a part of it, and the least in bodies. */
const bufferedShare = 1 / 8
const bodiesMin = 16

/**
 * Bytes of the facilitator's bodies that are held at once. They are apart from those of the gateway,
 * so that strangers who fill the one leave the other alone.
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

/** The x402 v2 facilitator over HTTP: `/supported`, `/verify`, `/settle`. */
export function createFacilitator(options: FacilitatorOptions): Facilitator {
  const { config, settlement, now, log, rateLimit } = options
  const { facilitator, networks, service } = config
  const judging: JudgeOptions = {
    settlement,
    sponsor: options.sponsor,
    networks,
    policy: Policy.from(config, [...options.relayers, ...options.ownAccounts]),
    now,
  }
  const accepted = networks.filter(({ id }) => judging.policy.assets.has(id))
  /** Network in the answers to requests that name no network. */
  const anyNetwork = (accepted[0] ?? networks[0])?.id ?? 'eip155:1'
  const extensions = [
    ...(accepted.some(({ asset }) => asset.eip2612) ? [Sponsoring.permitName] : []),
    ...(options.sponsor === undefined ? [] : [Sponsoring.approvalName]),
  ]
  const waitMs = facilitator.settleWaitSeconds * 1000
  const settler = createSettler({ ...judging, settling: options.settling, waitMs })
  const limits = { verify: facilitator.verifyPerMinute, settle: facilitator.settlePerMinute }

  return {
    handle(operation, request, peer) {
      const requestId = options.requestId()
      try {
        const answer = route(operation, request, peer, requestId)
        return answer instanceof Response
          ? answer
          : answer.catch((error) => fail(error, operation, requestId))
      } catch (error) {
        return fail(error, operation, requestId)
      }
    },
  }

  function route(
    operation: Operation,
    request: Request,
    peer: () => string | undefined,
    requestId: string,
  ): Response | Promise<Response> {
    const { method, headers } = request
    const allow = allowOf([operation === 'supported' ? 'GET' : 'POST'])
    if (method === 'OPTIONS') return preflight(request, allow)
    if (!allow.split(', ').includes(method)) throw notAllowed(allow)
    if (operation === 'supported') return answerSupported()
    if (!options.accepts()) throw Problem.of('not-ready', 'The service is stopping.')
    const key = clientKey(peer(), headers.get('x-forwarded-for'), service.trustProxy)
    const verdict = rateLimit.take(`${operation} ${key}`, limits[operation], now())
    const limit = RateLimit.headers(verdict)
    if (!verdict.ok) {
      const detail = `Too many calls of /${operation} from this address.`
      throw Problem.of('rate-limited', detail, { headers: limit })
    }
    return answer(operation, request, key, requestId, limit).catch((error: unknown) => {
      throw error instanceof Problem.ProblemError ? Problem.withHeaders(error, limit) : error
    })
  }

  async function answer(
    operation: 'verify' | 'settle',
    request: Request,
    key: string,
    requestId: string,
    limit: Record<string, string>,
  ): Promise<Response> {
    const keyHash = authorize(request.headers)
    const subject = await read(request, { key, keyHash })
    if ('code' in subject) throw malformed(operation, subject, subject.network ?? anyNetwork)
    const headers = { ...common, ...limit, 'X-Request-Id': requestId }
    if (operation === 'verify') return verify(subject, headers)
    const idempotencyKey = keyHash === undefined ? undefined : idempotencyKeyOf(request.headers)
    return settle(subject, idempotencyKey, requestId, headers)
  }

  /** The bytes are given back before anything waits for a chain. */
  async function read(
    request: Request,
    caller: Caller,
  ): Promise<Case | (Problem.Fault & { network: string | undefined })> {
    assertUnpacked(request.headers)
    const owner = { client: caller.key, isPaid: true }
    const body = await readBody(request, bodyMaxBytes, options.budget, owner)
    try {
      const subject = open(judging, body.bytes, caller.keyHash)
      if (!('code' in subject)) return subject
      return { ...subject, network: Facilitation.networkNamed(body.bytes) }
    } finally {
      body.release()
    }
  }

  async function verify(subject: Case, headers: Record<string, string>): Promise<Response> {
    const judgement = await judge(judging, subject)
    if (judgement.kind !== 'unavailable') count('verify', judgement.kind)
    const { payer } = subject.request
    switch (judgement.kind) {
      case 'good':
        return Response.json({ isValid: true, payer }, { headers })
      case 'bad': {
        const { reason, detail } = judgement
        const verdict = { isValid: false, invalidReason: reason, invalidMessage: detail, payer }
        return Response.json(verdict, { headers })
      }
      case 'unavailable':
        throw notReady(judgement)
    }
  }

  async function settle(
    subject: Case,
    idempotencyKey: string | undefined,
    requestId: string,
    headers: Record<string, string>,
  ): Promise<Response> {
    const settled = await settler.settle({ subject, idempotencyKey, requestId })
    if (settled.kind === 'unavailable') throw notReady(settled)
    if (settled.kind === 'conflict') throw conflict(settled.detail, subject)
    count('settle', settled.kind)
    const isReplay = settled.kind === 'success' && settled.isReplay
    if (isReplay) headers['Idempotency-Replayed'] = 'true'
    log('facilitator-settle', { requestId, ...told(settled), network: subject.network.id })
    return Response.json(toJson(settled, subject), { headers })
  }

  function count(operation: Operation, answer: string): void {
    options.calls.inc({ operation, answer })
  }

  /** With keys in the configuration nobody spends our gas without one. */
  function authorize(headers: Headers): Hex | undefined {
    const { apiKeyHashes } = facilitator
    if (apiKeyHashes.length === 0) return undefined
    const keyHash = Policy.keyOf(headers, apiKeyHashes)
    if (keyHash !== undefined) return keyHash
    throw Problem.of('unauthorized', 'An API key is needed: Authorization: Bearer KEY.', {
      headers: { 'WWW-Authenticate': 'Bearer' },
    })
  }

  function answerSupported(): Response {
    const isReady = (network: (typeof networks)[number]['id']) =>
      options.accepts() &&
      settlement.isReady(network) &&
      settlement.hasBudget(network, 'facilitator')
    const body = JSON.stringify(supported(accepted, isReady, options.relayers, extensions))
    const headers = { ...common, 'Cache-Control': 'public, max-age=5' }
    return new Response(body, { headers })
  }

  function fail(error: unknown, operation: Operation, requestId: string): Response {
    const known = error instanceof Problem.ProblemError
    if (!known) log.child({ requestId }).error('request-failed', { error })
    const problem = known ? error : unknownError(error, requestId)
    const { code, detail } = problem
    count(operation, code)
    // What the caller sent is at fault: client libraries read the verdict beside the problem.
    const isVerdict = code === 'bad-request' || code === 'body-too-large'
    const shown =
      isVerdict && problem.reason === undefined && operation !== 'supported'
        ? Problem.withHeaders(
            malformed(operation, { code: 'invalid_payload', detail }, anyNetwork, code),
            problem.headers,
          )
        : problem
    return toResponse(shown, { baseUrl: service.baseUrl, requestId })
  }
}

/** 400 in the JSON of the operation and as a problem at once. A settlement has a CAIP-2 network. */
function malformed(
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

function conflict(detail: string, { request }: Case): Problem.ProblemError {
  const { payer, requirements } = request
  const members = {
    ...{ success: false, errorReason: 'idempotency_conflict', errorMessage: detail },
    ...{ transaction: '', network: requirements.network, payer, field: 'Idempotency-Key' },
  }
  return Problem.of('idempotency-conflict', detail, { members })
}

/** Nobody's verdict: without `isValid` and `success`, which would be read as one. */
function notReady(state: { detail: string; retryAfterSeconds: number }): Problem.ProblemError {
  const headers = { 'Retry-After': String(state.retryAfterSeconds) }
  return Problem.of('not-ready', state.detail, { headers })
}

const idempotencyKeyPattern = /^[\x21-\x7e]{1,255}$/

function idempotencyKeyOf(headers: Headers): string | undefined {
  const key = headers.get('idempotency-key') ?? undefined
  if (key === undefined || idempotencyKeyPattern.test(key)) return key
  const detail = 'Idempotency-Key must be 1 to 255 visible ASCII characters.'
  throw Problem.of('bad-request', detail)
}

type Answered = Exclude<Settled, { kind: 'unavailable' | 'conflict' }>

function toJson(settled: Answered, { request, network }: Case): object {
  const { payer } = request
  switch (settled.kind) {
    case 'success': {
      const { transaction, transfer } = settled.payment
      const amount = String(transfer.amountAtomic)
      return { success: true, payer, transaction, network: network.id, amount }
    }
    case 'pending': {
      const { transaction } = settled.payment
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

/** For the log: what was answered, without the buyer. */
function told(settled: Answered): Record<string, unknown> {
  if (settled.kind === 'failed') return { answer: settled.reason }
  return { answer: settled.kind, payment: settled.payment.id }
}
