import { Type } from '@sinclair/typebox'
import * as Json from '../../protocol/Json'

/** JSON-RPC messages of one POST, parsed before the SDK reads them. */

/** A body that is not a message. `code` is an error code of JSON-RPC. */
export class MessageError extends Error {
  override readonly name = 'MessageError'
  readonly code: number

  constructor(code: number, message: string) {
    super(message)
    this.code = code
  }
}

/**
 * A message of JSON-RPC. This schema checks only that it is an object; the SDK checks its members.
 */
export const envelope = Type.Object({
  jsonrpc: Type.Literal('2.0'),
  id: Type.Optional(Type.Union([Type.String(), Type.Number()])),
  method: Type.Optional(Type.String({ description: 'For example tools/list or tools/call.' })),
  params: Type.Optional(Type.Object({})),
})

const parseError = -32700
const invalidRequest = -32600

/** Allows a body in the arguments, and is safe for any parser. */
const levelsMax = 32
/**
 * Most members of all objects and entries of all arrays. Usual arguments have dozens; 100,000 in
 * one megabyte block the event loop for 130 ms.
 */
const membersMax = 4096
/** Longest body of a message. */
export const messageMaxBytes = 256 * 1024
/** Only clients of protocol 2025-03-26 send several at once. */
const batchMax = 16

/** Parses a body: one message, or at most 16. Throws a MessageError. */
export function parse(body: Uint8Array): Json.Json {
  let value: Json.Json
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(body)
    value = Json.parseAny(text, levelsMax, membersMax)
  } catch (error) {
    const reason = error instanceof Json.JsonError ? error.message : 'not valid UTF-8'
    throw new MessageError(parseError, `Parse error: ${reason}.`)
  }
  if (!Array.isArray(value)) return message(value)
  if (value.length === 0 || value.length > batchMax)
    throw new MessageError(invalidRequest, `A batch has 1 to ${batchMax} messages.`)
  const messages = value.map(message)
  const ids = messages.flatMap((entry) => ('id' in entry ? [entry.id] : []))
  if (new Set(ids).size !== ids.length)
    throw new MessageError(invalidRequest, 'Two messages of a batch have the same id.')
  // Cancelling a message of its own batch would leave that message without an answer.
  return messages.filter((entry) => entry.method !== 'notifications/cancelled')
}

/** Number of parsed messages. */
export function count(messages: Json.Json): number {
  return Array.isArray(messages) ? messages.length : 1
}

/** A message with its `_meta` where MCP defines it. Payments may also be at the root. */
function message(value: Json.Json): Json.JsonObject {
  if (!Json.isObject(value)) throw new MessageError(invalidRequest, 'A message must be an object.')
  const { _meta: root, ...rest } = value
  if (!Json.isObject(root)) return value
  const params = Json.isObject(rest.params) ? rest.params : {}
  const nested = Json.isObject(params._meta) ? params._meta : {}
  return { ...rest, params: { ...params, _meta: { ...root, ...nested } } }
}
