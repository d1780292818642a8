import type { Config } from '../../config/Config'
import { type Budget, createBudget, readBody } from '../../http/body'
import { assertUnpacked } from '../../http/methods'
import { clientOf, type Peer } from '../../http/peer'
import * as RateLimit from '../../http/ratelimit'
import type { Log } from '../../log'
import * as Problem from '../../protocol/Problem'
import { type CallsOptions, createCalls } from './calls'
import * as Messages from './Messages'
import { createOutgoing, type Outgoing, waitingMaxBytes } from './outgoing'
import * as Payment from './Payment'
import * as Session from './Session'

export type McpOptions = CallsOptions & {
  budget: Budget
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
}

export type Mcp = {
  /** Answers a request to `/mcp`; never rejects. */
  handle(request: Request, peer: Peer): Promise<Response>
}

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
  const { unpaidBodyMaxBytes, paidPerMinute, trustProxy } = config.service
  const messageMaxBytes = Math.min(unpaidBodyMaxBytes, Messages.messageMaxBytes)
  const waiting = createBudget(waitingMaxBytes)
  const isAllowed = gatekeeper(config)
  const calls = createCalls(options)

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
      calls.cancel(headers, message)
      const posted = createOutgoing(waiting)
      outgoing = posted
      const { serve } = await import('./server')
      const inSequence = sequence()
      const answered = await serve(request, message, {
        title: config.service.title,
        instructions: instructions(config),
        list: calls.list,
        call: (wanted) => inSequence(() => calls.call({ request, peer, outgoing: posted }, wanted)),
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

/** Bytes that count as one unit of the rate limit. */
const unitBytes = 4096

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
