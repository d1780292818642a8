import type { Config } from '../../config/Config'
import { type Budget, readBody } from '../../http/body'
import { clientKey } from '../../http/clientip'
import type { Peer } from '../../http/peer'
import * as RateLimit from '../../http/ratelimit'
import { pathStart } from '../../http/url'
import type { Log } from '../../log'
import type * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import type * as Catalogue from '../Catalogue'
import type { Gateway } from '../merchant'
import { invalidParams, type Result, RpcFault, toResult } from './answer'
import * as Messages from './Messages'
import * as Payment from './Payment'
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
  /** Answers a request to `/mcp` or `/mcp/x402`; never rejects. */
  handle(request: Request, peer: Peer): Promise<Response>
}

/** Whether a request's URL is the endpoint's. */
export function isMcp(url: string): boolean {
  return endpoint.test(url.slice(pathStart(url)))
}

const endpoint = /^\/mcp(?:\/x402)?\/?(?:\?|$)/
const pageSize = 100
/** A page of another origin may use these. */
const allowedHeaders = 'Content-Type, Accept, Mcp-Protocol-Version, Mcp-Session-Id, Last-Event-Id'

/**
 * MCP over streamable HTTP, stateless: a tool for every route. A call is a request to the gateway,
 * with all its rules; only the form of payments and answers differs. Unpaid calls are answered with
 * error -32042 (MPP) that has the x402 offers beside the challenges; under `/x402`, and to calls that
 * pay by x402, with the tool result of the x402 transport.
 */
export function createMcp(options: McpOptions): Mcp {
  const { config, now } = options
  const { baseUrl, unpaidBodyMaxBytes, paidPerMinute, trustProxy } = config.service
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
        response.headers.set('access-control-expose-headers', 'Mcp-Protocol-Version, Retry-After')
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
      // Without sessions there is nothing to listen to and nothing to end.
      const refused = rpcError(405, -32000, 'Method not allowed: POST.')
      refused.headers.set('allow', 'POST, OPTIONS')
      return refused
    }
    const key = clientKey(peer(), headers.get('x-forwarded-for'), trustProxy)
    const take = () => options.rateLimit.take(`mcp ${key}`, paidPerMinute, now())
    // Before the body: reading one through takes longer than all else, whatever is wrong with it.
    const first = take()
    if (!first.ok) return limited(first)
    const body = await readBody(request, unpaidBodyMaxBytes, options.budget, { client: key })
    try {
      const message = Messages.parse(body.bytes)
      for (let count = Messages.count(message); count > 1; count--) {
        const verdict = take()
        if (!verdict.ok) return limited(verdict)
      }
      const { serve } = await import('./server')
      return await serve(request, message, {
        title: config.service.title,
        instructions: instructions(config),
        list: (cursor) => list(cursor),
        call: (name, args, meta) => call({ request, peer }, name, args, meta),
      })
    } finally {
      body.release()
    }
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

  async function call(
    outer: { request: Request; peer: Peer },
    name: string,
    args: Json.JsonObject,
    meta: Json.JsonObject,
  ): Promise<Result> {
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
    const inner = requestOf(wanted, presented, outer.request)
    const response = await options.gateway.handle(inner, outer.peer)
    const prefersX402 = outer.request.url.includes('/x402', pathStart(outer.request.url))
    return toResult(response, {
      kind: presented.kind,
      prefersX402,
      url: baseUrl + wanted.path,
    })
  }

  function refusal(error: unknown): Response {
    if (error instanceof Messages.MessageError) return rpcError(400, error.code, error.message)
    if (error instanceof Problem.ProblemError) {
      const refused = rpcError(error.status, -32000, error.detail)
      const wait = error.headers['retry-after']
      if (wait !== undefined) refused.headers.set('retry-after', wait)
      return refused
    }
    options.log.error('mcp-failed', { error })
    return rpcError(500, -32603, 'Something failed on our side.')
  }
}

/** The request to the gateway that a call stands for, from the same client. */
function requestOf(wanted: Tool.Call, presented: Payment.Presented, outer: Request): Request {
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
  const { guidance, baseUrl } = config.service
  return (
    `${guidance} Every tool call is paid for by itself with a stablecoin. A call without payment is ` +
    'answered with error -32042: data.challenges are MPP challenges, to be answered in ' +
    `_meta["${Payment.credentialKey}"], data.x402 are x402 offers, to be paid in ` +
    `_meta["${Payment.x402PaymentKey}"]. Clients of the x402 transport connect to ${baseUrl}/mcp/x402.`
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
