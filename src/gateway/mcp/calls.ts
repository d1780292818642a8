import type { Peer } from '../../http/client'
import type * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import type { Gateway } from '../merchant'
import { invalidParams, type Result, RpcFault, refused, toResult } from './answer'
import type { Outgoing } from './outgoing'
import * as Payment from './Payment'
import * as Session from './Session'
import type { Wanted } from './server'
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
export type Outer = { request: Request; peer: Peer; outgoing: Outgoing }

/**
 * Makes a call. Throws RpcFault. Invalid arguments are a result, so that the model can correct
 * them.
 */
export async function call(calls: Calls, outer: Outer, wanted: Wanted): Promise<Result> {
  const tool = calls.tools.find(wanted.name)
  if (tool === undefined) throw new RpcFault(invalidParams, 'There is no such tool.')
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
  const session = Session.of(headers)
  const key = session === undefined ? undefined : `${session} ${Session.callId(wanted.id)}`
  const given = new AbortController()
  const end = () => given.abort()
  if (key !== undefined) calls.running.set(key, end)
  try {
    const signal = AbortSignal.any([request.signal, given.signal])
    const inner = requestOf(asked, presented, { headers, signal })
    const response = await calls.gateway.handle(inner, peer, outgoing.envelope)
    const result = await toResult(response, {
      kind: presented.kind,
      speaksMpp: Session.speaksMpp(headers, wanted.meta),
      url: calls.baseUrl + asked.path,
      reserve: outgoing.envelope.reserve,
      busy: refused(busy(), calls.baseUrl),
    })
    // The answer counts as not delivered, so it must not be sent.
    if (given.signal.aborted) throw new RpcFault(cancelled, 'The call was cancelled.')
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
  const session = Session.of(headers)
  const id = Session.cancelled(message)
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
