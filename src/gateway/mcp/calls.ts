import type { Peer } from '../../http/client'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import type { Gateway } from '../merchant'
import { invalidParams, McpFault, refused, type ToolResult, toResult } from './answer'
import type { Outgoing } from './outgoing'
import * as Payment from './Payment'
import type { ToolCall } from './server'
import * as Tool from './Tool'

/** Calls of tools. Each call is a request to the gateway. */
export type Calls = {
  readonly gateway: Gateway
  readonly tools: Tool.Tools
  readonly baseUrl: string
  /** Ends a call in progress, by session and id. */
  readonly running: Map<string, () => void>
}

/** The message that a call arrived in. */
type Outer = { request: Request; peer: Peer; outgoing: Outgoing }

/**
 * Makes a call. Throws McpFault. Invalid arguments are a result, so that the model can correct
 * them.
 */
export async function call(calls: Calls, outer: Outer, wanted: ToolCall): Promise<ToolResult> {
  const tool = calls.tools.find(wanted.name)
  if (tool === undefined) throw new McpFault(invalidParams, 'There is no such tool.')
  let presented: Payment.Presented
  let asked: Tool.Call
  try {
    presented = Payment.fromMeta(wanted.meta)
    asked = Tool.toCall(tool, wanted.args)
  } catch (error) {
    if (!(error instanceof Tool.ArgumentError)) throw error
    return { isError: true, content: [{ type: 'text', text: error.message }] }
  }
  const { request, peer, outgoing } = outer
  const { headers } = request
  // Refuse before anything is charged.
  if (presented.kind !== 'none' && !outgoing.hasRoom()) return refused(busy(), calls.baseUrl)
  const session = sessionOf(headers)
  const key = session === undefined ? undefined : `${session} ${callId(wanted.id)}`
  const given = new AbortController()
  const end = () => given.abort()
  if (key !== undefined) calls.running.set(key, end)
  try {
    const signal = AbortSignal.any([request.signal, given.signal])
    const inner = requestOf(asked, presented, { headers, signal })
    const response = await calls.gateway.handle(inner, peer, outgoing.envelope)
    const result = await toResult(response, {
      kind: presented.kind,
      speaksMpp: speaksMpp(headers, wanted.meta),
      url: calls.baseUrl + asked.path,
      overHttp: Entitlements.overHttp(tool, tool.networks),
      reserve: outgoing.envelope.reserve,
      busy: refused(busy(), calls.baseUrl),
    })
    // The answer counts as not delivered, so it must not be sent.
    if (given.signal.aborted) throw new McpFault(cancelled, 'The call was cancelled.')
    return result
  } finally {
    if (key !== undefined && calls.running.get(key) === end) calls.running.delete(key)
  }
}

/**
 * Ends the call that a client cancelled. Clients of the SDK keep the connection open after that,
 * and would pay for an answer that they discard.
 */
export function cancel({ running }: Calls, headers: Headers, message: Json.Json): void {
  const session = sessionOf(headers)
  const id = cancelledIn(message)
  if (session !== undefined && id !== undefined) running.get(`${session} ${id}`)?.()
}

/** JSON-RPC error code for a call that its client cancelled. */
const cancelled = -32800

/** The request to the gateway for a call, from the same client. */
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

/** The problem for a call whose payment stays unspent because memory is short. */
function busy(): Problem.ProblemError {
  return Problem.of(
    'not-ready',
    'Too many answers wait for their clients; nothing is charged. Try again.',
  )
}

/**
 * Prefixes of the ids of sessions. The server stores only the calls in progress of a session. The
 * id tells which call a cancellation refers to and whether the client declared MPP. Clients that
 * support MPP declare it in `initialize` (draft-payment-transport-mcp-00).
 */
const prefixes = { mpp: 'mpp-', other: 'mcp-' } as const
const pattern = /^(?:mpp|mcp)-[0-9a-f]{32}$/

/** The id for a client that sends `message`; undefined when that is not `initialize`. */
export function beginSession(message: Json.Json): string | undefined {
  const one = Array.isArray(message) && message.length === 1 ? message[0] : message
  if (!Json.isObject(one) || one.method !== 'initialize') return undefined
  const params = Json.child(one, 'params')
  const prefix = paysByMpp(Json.child(params, 'capabilities')) ? prefixes.mpp : prefixes.other
  return prefix + crypto.randomUUID().replaceAll('-', '')
}

/** The session of a request; undefined when it names none of ours. */
function sessionOf(headers: Headers): string | undefined {
  const id = headers.get('mcp-session-id') ?? ''
  return pattern.test(id) ? id : undefined
}

/** Whether the client declared MPP: in this call, in `initialize`, or by a header. */
function speaksMpp(headers: Headers, meta: Json.JsonObject): boolean {
  return (
    headers.has('accept-payment') ||
    sessionOf(headers)?.startsWith(prefixes.mpp) === true ||
    // From protocol 2026-07-28 on, each request declares the capabilities.
    paysByMpp(Json.child(meta, 'io.modelcontextprotocol/clientCapabilities'))
  )
}

/** The call that a cancellation names: its id, with the type. Undefined for any other message. */
function cancelledIn(message: Json.Json): string | undefined {
  if (!Json.isObject(message) || message.method !== 'notifications/cancelled') return undefined
  return callId(Json.child(message, 'params').requestId)
}

/** An id of JSON-RPC, which is a string or a number, as one string. */
function callId(id: unknown): string {
  return `${typeof id} ${String(id)}`
}

function paysByMpp(capabilities: Json.JsonObject): boolean {
  return Json.isObject(Json.child(capabilities, 'experimental').payment)
}
