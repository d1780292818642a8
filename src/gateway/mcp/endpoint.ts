import type { Config } from '../../config/Config'
import { type Budget, createBudget, readBody } from '../../http/body'
import { clientOf, type Peer } from '../../http/client'
import { assertUnpacked } from '../../http/methods'
import * as RateLimit from '../../http/rate-limit'
import type { Log } from '../../log'
import * as Problem from '../../protocol/Problem'
import type * as Catalogue from '../documents/Catalogue'
import type { Gateway } from '../merchant'
import { beginSession, type Calls, call, cancel } from './calls'
import * as Messages from './Messages'
import { createOutgoing, type Outgoing, waitingMaxBytes } from './outgoing'
import * as Payment from './Payment'
import { createTools, type Tools } from './Tool'

type McpOptions = Catalogue.Schemes & {
  config: Config
  gateway: Gateway
  isReady: Catalogue.IsReady
  budget: Budget
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
}

/** Headers that pages of other origins may use. */
const allowedHeaders =
  'Content-Type, Accept, Accept-Payment, Mcp-Protocol-Version, Mcp-Session-Id, Last-Event-Id'
const exposedHeaders = 'Mcp-Protocol-Version, Mcp-Session-Id, Retry-After'

type State = {
  readonly service: Config['service']
  readonly isAllowed: (headers: Headers) => boolean
  readonly rateLimit: RateLimit.RateLimit
  readonly now: () => number
  readonly messageMaxBytes: number
  /** Budget of the request bodies. */
  readonly budget: Budget
  /** Budget of the answers that wait for their clients. */
  readonly waiting: Budget
  readonly tools: Tools
  readonly calls: Calls
}

/**
 * MCP over streamable HTTP with one tool per route. The only state is the calls in progress. A call
 * is a request to the gateway under all its rules. Only the form of payments and answers differs,
 * and an answer counts as delivered when the client has received the whole message. An unpaid call
 * gets the tool result of the x402 transport, with the MPP challenges in `_meta`. A client that
 * declared MPP gets error -32042 with the challenges and the x402 offers.
 */
export function createMcp(options: McpOptions) {
  const { config, gateway, rateLimit, now } = options
  const { service } = config
  const { baseUrl, unpaidBodyMaxBytes } = service
  const tools = createTools(config, options.isReady, options)
  const state: State = {
    service,
    isAllowed: createOriginCheck(config),
    rateLimit,
    now,
    messageMaxBytes: Math.min(unpaidBodyMaxBytes, Messages.messageMaxBytes),
    budget: options.budget,
    waiting: createBudget(waitingMaxBytes),
    tools,
    calls: { gateway, tools, baseUrl, running: new Map() },
  }

  return {
    toolOf: tools.nameOf,
    /** Answers a request to `/mcp`; never rejects. */
    async handle(request: Request, peer: Peer): Promise<Response> {
      const origin = request.headers.get('origin')
      let response: Response
      try {
        response = await answer(state, request, peer)
      } catch (error) {
        response = refusal(error, options.log)
      }
      response.headers.set('cache-control', 'no-store')
      response.headers.set('vary', 'Origin')
      if (origin !== null && response.status !== 403) {
        response.headers.set('access-control-allow-origin', origin)
        response.headers.set('access-control-expose-headers', exposedHeaders)
      }
      return response
    },
  }
}

async function answer(state: State, request: Request, peer: Peer): Promise<Response> {
  const { method, headers } = request
  const { tools, calls } = state
  if (!state.isAllowed(headers)) return rpcError(403, -32000, 'Origin or Host is not allowed.')
  if (method === 'OPTIONS') {
    const preflight = { 'access-control-allow-methods': 'POST', 'access-control-max-age': '600' }
    const allow = { 'access-control-allow-headers': allowedHeaders, allow: 'POST, OPTIONS' }
    return new Response(null, { status: 204, headers: { ...preflight, ...allow } })
  }
  if (method !== 'POST') {
    // Sessions have no stream to listen to and no state to delete.
    const refused = rpcError(405, -32000, 'Method not allowed: POST.')
    refused.headers.set('allow', 'POST, OPTIONS')
    return refused
  }
  // Count before reading the body, because reading a body takes longer than all other steps.
  const client = clientOf(request, peer(), state.service.trustProxy)
  const take = createMeter(state, request, client)
  const first = take()
  if (!first.ok) return limited(first)
  assertUnpacked(headers)
  const body = await readBody(request, state.messageMaxBytes, state.budget, { client })
  let outgoing: Outgoing | undefined
  try {
    const message = Messages.parse(body.bytes)
    for (let count = Messages.count(message); count > 1; count--) {
      const verdict = take()
      if (!verdict.ok) return limited(verdict)
    }
    cancel(calls, headers, message)
    const posted = createOutgoing(state.waiting)
    outgoing = posted
    const { serveMessage } = await import('./server')
    const inSequence = sequence()
    const answered = await serveMessage(request, message, {
      title: state.service.title,
      instructions: instructions(state.service),
      list: tools.list,
      call: (wanted) => inSequence(() => call(calls, { request, peer, outgoing: posted }, wanted)),
    })
    const session = answered.ok ? beginSession(message) : undefined
    if (session !== undefined) answered.headers.set('mcp-session-id', session)
    return await posted.send(answered, request.signal)
  } catch (error) {
    outgoing?.drop()
    throw error
  } finally {
    body.release()
  }
}

/** Most bytes of messages of one client in a minute: 64 messages of full length. */
const bytesPerMinute = 64 * Messages.messageMaxBytes
/** Bytes that count as one unit of the rate limit. */
const unitBytes = 4096

/** Counts the announced bytes of a request, then its messages, by client. */
function createMeter(
  { rateLimit, now, service, messageMaxBytes }: State,
  request: Request,
  key: string,
): () => RateLimit.RateVerdict {
  const announced = Number(request.headers.get('content-length') ?? messageMaxBytes)
  let isFirst = true
  return () => {
    const verdict = rateLimit.take(`mcp ${key}`, service.paidPerMinute, now())
    if (!verdict.ok || !isFirst) return verdict
    isFirst = false
    const units = Math.ceil(Math.min(announced || 1, messageMaxBytes) / unitBytes)
    const bytes = rateLimit.take(`mcp bytes ${key}`, bytesPerMinute / unitBytes, now(), units)
    return bytes.ok ? verdict : bytes
  }
}

function refusal(error: unknown, log: Log): Response {
  if (error instanceof Messages.MessageError) return rpcError(400, error.code, error.message)
  if (error instanceof Problem.ProblemError) {
    const refused = rpcError(error.status, -32000, error.detail)
    for (const name of ['retry-after', 'accept-encoding']) {
      const value = error.headers[name]
      if (value !== undefined) refused.headers.set(name, value)
    }
    return refused
  }
  log('mcp-failed', { error })
  return rpcError(500, -32603, 'The service failed.')
}

/** Runs tasks one after the other, so that a batch does not load all answers at once. */
function sequence(): <T>(task: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  return (task) => {
    const next = last.then(task)
    last = next.catch(() => {})
    return next
  }
}

/**
 * Whether the Origin and Host of a request are allowed. A browser's page must be ours or on this
 * machine. Where only this machine can connect, the Host must be known, too. Otherwise a page could
 * rebind its own name to the loopback address.
 */
function createOriginCheck(config: Config): (headers: Headers) => boolean {
  const { baseUrl, listen } = config.service
  const own = new URL(baseUrl)
  const loopback = ['localhost', '127.0.0.1', '[::1]']
  const known = new Set([...loopback, own.hostname, listen.hostname])
  const checksHost = loopback.includes(listen.hostname) || listen.hostname === '::1'
  return (headers) => {
    const origin = headers.get('origin')
    if (origin !== null) {
      const page = URL.parse(origin)
      if (page === null || !known.has(page.hostname)) return false
    }
    if (!checksHost) return true
    return known.has(URL.parse(`http://${headers.get('host')}`)?.hostname ?? '')
  }
}

function instructions({ guidance }: Config['service']): string {
  return (
    `${guidance} Each tool call is paid separately with a stablecoin. A call without payment is ` +
    'answered with a tool result that is an error: its structuredContent has x402 offers, to be paid in ' +
    `_meta["${Payment.x402PaymentKey}"]; its _meta["${Payment.requiredKey}"] has MPP challenges, to ` +
    `be answered in _meta["${Payment.credentialKey}"]. A client that declares the experimental ` +
    'capability payment gets error -32042 instead, with the same in data.x402 and data.challenges.'
  )
}

function limited(verdict: RateLimit.RateVerdict): Response {
  const refused = rpcError(429, -32000, 'Too many messages from this address.')
  for (const [name, value] of Object.entries(RateLimit.headers(verdict)))
    refused.headers.set(name, value)
  return refused
}

/** An error of the transport. It has no id, because it does not answer a message. */
function rpcError(status: number, code: number, message: string): Response {
  return Response.json({ jsonrpc: '2.0', error: { code, message }, id: null }, { status })
}
