import * as Json from '../../protocol/Json'

/**
 * Ids of sessions. The server stores only the calls in progress of a session. The id tells which
 * call a cancellation refers to and whether the client declared MPP.
 */

/** Clients that support MPP declare it in `initialize` (draft-payment-transport-mcp-00). */
const prefixes = { mpp: 'mpp-', other: 'mcp-' } as const
const pattern = /^(?:mpp|mcp)-[0-9a-f]{32}$/

/** The id for a client that sends `message`; undefined when that is not `initialize`. */
export function begin(message: Json.Json): string | undefined {
  const one = Array.isArray(message) && message.length === 1 ? message[0] : message
  if (!Json.isObject(one) || one.method !== 'initialize') return undefined
  const params = child(one, 'params')
  const prefix = paysByMpp(child(params, 'capabilities')) ? prefixes.mpp : prefixes.other
  return prefix + crypto.randomUUID().replaceAll('-', '')
}

/** The session of a request; undefined when it names none of ours. */
export function of(headers: Headers): string | undefined {
  const id = headers.get('mcp-session-id') ?? ''
  return pattern.test(id) ? id : undefined
}

/** Whether the client declared MPP: in this call, in `initialize`, or by a header. */
export function speaksMpp(headers: Headers, meta: Json.JsonObject): boolean {
  return (
    headers.has('accept-payment') ||
    of(headers)?.startsWith(prefixes.mpp) === true ||
    // From protocol 2026-07-28 on, each request declares the capabilities.
    paysByMpp(child(meta, 'io.modelcontextprotocol/clientCapabilities'))
  )
}

/** The call that a cancellation names: its id, with the type. Undefined for any other message. */
export function cancelled(message: Json.Json): string | undefined {
  if (!Json.isObject(message) || message.method !== 'notifications/cancelled') return undefined
  return callId(child(message, 'params').requestId)
}

/** An id of JSON-RPC, which is a string or a number, as one string. */
export function callId(id: unknown): string {
  return `${typeof id} ${String(id)}`
}

function paysByMpp(capabilities: Json.JsonObject): boolean {
  return Json.isObject(child(capabilities, 'experimental').payment)
}

/** An object member; empty when it is absent or not an object. */
function child(parent: Json.JsonObject, name: string): Json.JsonObject {
  const value = Json.member(parent, name)
  return Json.isObject(value) ? value : {}
}
