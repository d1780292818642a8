import type { Config } from '../../config/Config'
import { type Budget, createBudget, readBody } from '../../http/body'
import { assertUnpacked } from '../../http/methods'
import { clientOf, type Peer } from '../../http/peer'
import * as RateLimit from '../../http/ratelimit'
import type { Log } from '../../log'
import type * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import type * as Catalogue from '../Catalogue'
import type { Gateway } from '../merchant'
import { invalidParams, type Result, RpcFault, refused, toResult } from './answer'
import * as Messages from './Messages'
import { createOutgoing, type Outgoing, waitingMaxBytes } from './outgoing'
import * as Payment from './Payment'
import * as Session from './Session'
import type { Wanted } from './server'
import * as Tool from './Tool'

export type McpOptions = {
  config: Config
  gateway: Gateway
  isReady: Catalogue.IsReady
  budget: Budget
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
}

export type Mcp = {
  /** Answers a request to `/mcp`; never rejects. */
  handle(request: Request, peer: Peer): Promise<Response>
}

const pageSize = 100
/** Most bytes of messages of one client in a minute: 64 of the longest. */
const bytesPerMinute = 64 * Messages.messageMaxBytes
/** A page of another origin may use these. */
const allowedHeaders =
  'Content-Type, Accept, Accept-Payment, Mcp-Protocol-Version, Mcp-Session-Id, Last-Event-Id'
const exposedHeaders = 'Mcp-Protocol-Version, Mcp-Session-Id, Retry-After'

/**
 * MCP over streamable HTTP with one tool per route; the only state is the calls under way. A call
 * is a request to the gateway under all its rules. Only the form of payments and answers differs,
 * and an answer counts as delivered when the client took the whole message. An unpaid call gets the
 * tool result of the x402 transport, with the MPP challenges in `_meta`. A client that declared MPP
 * gets error -32042 with the challenges and the x402 offers.
 */
export function createMcp(options: McpOptions): Mcp {
  const { config, now } = options
  const { baseUrl, unpaidBodyMaxBytes, paidPerMinute, trustProxy } = config.service
  const messageMaxBytes = Math.min(unpaidBodyMaxBytes, Messages.messageMaxBytes)
  const waiting = createBudget(waitingMaxBytes)
  /** Ends a call under way, by session and id. */
  const running = new Map<string, () => void>()
  const isAllowed = gatekeeper(config)
  let tools: ReadonlyMap<string, Tool.Tool> | undefined
  const compiled = () => {
    tools ??= Tool.compile(config)
    return tools
  }

  return {
    async handle(request, peer) {
      const origin = request.headers.get('origin')
      let response: Response
      try {
        response = await answer(request, peer)
      } catch (error) {
        response = refusal(error)
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

  async function answer(request: Request, peer: Peer): Promise<Response> {
    const { method, headers } = request
    if (!isAllowed(headers)) return rpcError(403, -32000, 'Origin or Host is not allowed.')
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
    // Before the body: reading one through takes longer than all else, whatever is wrong with it.
    const take = limiter(request, peer)
    const first = take()
    if (!first.ok) return limited(first)
    assertUnpacked(headers)
    const client = clientOf(peer, headers, trustProxy)
    const body = await readBody(request, messageMaxBytes, options.budget, { client })
    let outgoing: Outgoing | undefined
    try {
      const message = Messages.parse(body.bytes)
      for (let count = Messages.count(message); count > 1; count--) {
        const verdict = take()
        if (!verdict.ok) return limited(verdict)
      }
      cancel(headers, message)
      const posted = createOutgoing(waiting)
      outgoing = posted
      const { serve } = await import('./server')
      const inSequence = sequence()
      const answered = await serve(request, message, {
        title: config.service.title,
        instructions: instructions(config),
        list: (cursor) => list(cursor),
        call: (wanted) => inSequence(() => call({ request, peer, outgoing: posted }, wanted)),
      })
      const session = answered.ok ? Session.begin(message) : undefined
      if (session !== undefined) answered.headers.set('mcp-session-id', session)
      return await posted.send(answered, request.signal)
    } catch (error) {
      outgoing?.drop()
      throw error
    } finally {
      body.release()
    }
  }

  /** Counts messages of a request's client, and first the bytes that it announces. */
  function limiter({ headers }: Request, peer: Peer): () => RateLimit.Verdict {
    const key = clientOf(peer, headers, trustProxy)
    const announced = Number(headers.get('content-length') ?? messageMaxBytes)
    let isFirst = true
    return () => {
      const { rateLimit } = options
      const verdict = rateLimit.take(`mcp ${key}`, paidPerMinute, now())
      if (!verdict.ok || !isFirst) return verdict
      isFirst = false
      const units = Math.ceil(Math.min(announced || 1, messageMaxBytes) / unitBytes)
      const bytes = rateLimit.take(`mcp bytes ${key}`, bytesPerMinute / unitBytes, now(), units)
      return bytes.ok ? verdict : bytes
    }
  }

  /**
   * Ends the call that a client cancelled. Clients of the SDK keep the connection open then, and
   * would pay for an answer that they discard.
   */
  function cancel(headers: Headers, message: Json.Json): void {
    const session = Session.of(headers)
    const id = Session.cancelled(message)
    if (session !== undefined && id !== undefined) running.get(`${session} ${id}`)?.()
  }

  function list(cursor: string | undefined) {
    const offset = cursor === undefined ? 0 : Number(/^\d{1,9}$/.exec(cursor)?.[0] ?? Number.NaN)
    if (Number.isNaN(offset)) throw new RpcFault(invalidParams, 'The cursor is none of ours.')
    const offered = [...compiled().values()].flatMap((tool) => {
      const networks = tool.networks.filter(({ id }) => options.isReady(id))
      return networks.length === 0 ? [] : [{ tool, networks }]
    })
    const next = offset + pageSize
    return {
      tools: offered.slice(offset, next).map(({ tool, networks }) => Tool.describe(tool, networks)),
      ...(next < offered.length ? { nextCursor: String(next) } : {}),
    }
  }

  async function call(outer: Outer, { id, name, args, meta }: Wanted): Promise<Result> {
    const tool = compiled().get(name)
    if (tool === undefined) throw new RpcFault(invalidParams, 'There is no such tool.')
    let presented: Payment.Presented
    let wanted: Tool.Call
    try {
      presented = Payment.fromMeta(meta)
      wanted = Tool.toCall(tool, args)
    } catch (error) {
      if (!(error instanceof Tool.ArgumentError)) throw error
      // As the protocol wants it, so that the model can correct itself.
      return { isError: true, content: [{ type: 'text', text: error.message }] }
    }
    const { request, peer, outgoing } = outer
    const { headers } = request
    // Refuse before anything is charged.
    if (presented.kind !== 'none' && !outgoing.hasRoom()) return refused(busy(), baseUrl)
    const session = Session.of(headers)
    const key = session === undefined ? undefined : `${session} ${Session.callId(id)}`
    const given = new AbortController()
    const end = () => given.abort()
    if (key !== undefined) running.set(key, end)
    try {
      const signal = AbortSignal.any([request.signal, given.signal])
      const inner = requestOf(wanted, presented, { headers, signal })
      const response = await options.gateway.handle(inner, peer, outgoing.envelope)
      const result = await toResult(response, {
        kind: presented.kind,
        speaksMpp: Session.speaksMpp(headers, meta),
        url: baseUrl + wanted.path,
        hold: outgoing.envelope.hold,
        busy: refused(busy(), baseUrl),
      })
      // The answer counts as not delivered, so it must not be sent.
      if (given.signal.aborted) throw new RpcFault(cancelled, 'The call was cancelled.')
      return result
    } finally {
      if (key !== undefined && running.get(key) === end) running.delete(key)
    }
  }

  function refusal(error: unknown): Response {
    if (error instanceof Messages.MessageError) return rpcError(400, error.code, error.message)
    if (error instanceof Problem.ProblemError) {
      const refused = rpcError(error.status, -32000, error.detail)
      for (const name of ['retry-after', 'accept-encoding']) {
        const value = error.headers[name]
        if (value !== undefined) refused.headers.set(name, value)
      }
      return refused
    }
    options.log.error('mcp-failed', { error })
    return rpcError(500, -32603, 'Something failed on our side.')
  }
}

/** JSON-RPC error code for a call that its client cancelled. */
const cancelled = -32800

/** Bytes that count as one unit of the rate limit. */
const unitBytes = 4096

/** The message that a call arrived in. */
type Outer = { request: Request; peer: Peer; outgoing: Outgoing }

/** Runs tasks one after the other, so that a batch does not load all answers at once. */
function sequence(): <T>(task: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  return (task) => {
    const next = last.then(task)
    last = next.catch(() => {})
    return next
  }
}

/** The request to the gateway that a call stands for, from the same client. */
function requestOf(
  wanted: Tool.Call,
  presented: Payment.Presented,
  outer: { headers: Headers; signal: AbortSignal },
): Request {
  const headers = new Headers({ accept: '*/*', ...presented.headers })
  const forwarded = outer.headers.get('x-forwarded-for')
  if (forwarded !== null) headers.set('x-forwarded-for', forwarded)
  const { method, path, body } = wanted
  const { signal } = outer
  if (body === undefined) return new Request(`http://localhost${path}`, { method, headers, signal })
  headers.set('content-type', 'application/json')
  headers.set('content-length', String(Buffer.byteLength(body)))
  return new Request(`http://localhost${path}`, { method, headers, body, signal })
}

/**
 * Whether the request may come from where it says. A browser's page must be ours or on this machine;
 * where only this machine can connect, the Host must be known too, else a page could rebind a name of
 * its own to the loopback address.
 */
function gatekeeper(config: Config): (headers: Headers) => boolean {
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

function instructions(config: Config): string {
  const { guidance } = config.service
  return (
    `${guidance} Every tool call is paid for by itself with a stablecoin. A call without payment is ` +
    'answered with a tool result that is an error: its structuredContent has x402 offers, to be paid in ' +
    `_meta["${Payment.x402PaymentKey}"]; its _meta["${Payment.requiredKey}"] has MPP challenges, to ` +
    `be answered in _meta["${Payment.credentialKey}"]. A client that declares the experimental ` +
    'capability payment gets error -32042 instead, with the same in data.x402 and data.challenges.'
  )
}

/** The problem for a call whose payment stays unspent because memory is short. */
function busy(): Problem.ProblemError {
  return Problem.of('not-ready', 'Too many answers wait for their clients; nothing is charged.')
}

function limited(verdict: RateLimit.Verdict): Response {
  const refused = rpcError(429, -32000, 'Too many messages from this address.')
  for (const [name, value] of Object.entries(RateLimit.headers(verdict)))
    refused.headers.set(name, value)
  return refused
}

/** An error of the transport: there is no message that it could be the answer to. */
function rpcError(status: number, code: number, message: string): Response {
  return Response.json({ jsonrpc: '2.0', error: { code, message }, id: null }, { status })
}
