import * as Json from '../../protocol/Json'
import { readAll } from '../buy/body'
import * as Text from './Text'

/** JSON-RPC over HTTP to the MCP endpoint of a gateway, which may be hostile. */

export type GatewayClient = ReturnType<typeof createGatewayClient>

/**
 * `refused`: the gateway answered with an error about this message. After the others the effect of a
 * payment in the message is unknown: `lost` connections may be tried again, `unusable` answers not.
 */
type GatewayErrorKind = 'refused' | 'lost' | 'unusable' | 'cancelled'

/** No result. The message is for the user and ends with a full stop. */
export class GatewayError extends Error {
  override readonly name = 'GatewayError'
  readonly kind: GatewayErrorKind

  constructor(kind: GatewayErrorKind, message: string) {
    super(message)
    this.kind = kind
  }
}

/** An answer of 4 MiB takes up to six times that as text in JSON. */
const answerMaxBytes = 32 * 1024 * 1024
const levelsMax = 64
/** Parsing more would block the process for longer than a client waits. */
const membersMax = 262_144

/**
 * `url`: the MCP endpoint. `requestMs`: the longest time of one request with its answer. A message is
 * one POST: the gateway keeps no session.
 */
export function createGatewayClient({ url, requestMs }: { url: URL; requestMs: number }) {
  let last = 0
  return {
    /** Origin of the endpoint; payments are signed for offers from here only. */
    origin: url.origin,
    /** Fires when a request that begins now takes too long. */
    late: () => AbortSignal.timeout(requestMs),
    /** The result of a method. Throws a GatewayError. */
    async request(
      method: string,
      params: Json.JsonObject,
      signal: AbortSignal,
    ): Promise<Json.JsonObject> {
      last++
      const id = last
      const message = { jsonrpc: '2.0', id, method, params }
      const late = AbortSignal.timeout(requestMs)
      const both = AbortSignal.any([signal, late])
      try {
        const response = await fetch(url, {
          method: 'POST',
          headers: {
            'content-type': 'application/json',
            accept: 'application/json, text/event-stream',
            'accept-encoding': 'identity',
          },
          body: JSON.stringify(message),
          // A payment is for this URL, so it must not follow a redirect.
          redirect: 'manual',
          signal: both,
        })
        const text = await readAll(response, answerMaxBytes, both)
        if (text !== undefined) return resultOf(response, text, id)
        throw new GatewayError('unusable', `The answer is longer than ${answerMaxBytes} bytes.`)
      } catch (error) {
        if (error instanceof GatewayError) throw error
        if (signal.aborted) throw new GatewayError('cancelled', 'The call was cancelled.')
        const [kind, why] = late.aborted
          ? (['unusable', `did not answer within ${requestMs / 1000} s.`] as const)
          : (['lost', 'cannot be reached, or closed the connection.'] as const)
        throw new GatewayError(kind, `${url.origin} ${why}`)
      }
    },
  }
}

function resultOf(response: Response, text: string, id: number): Json.JsonObject {
  const { status, headers } = response
  if (status >= 300 && status < 400)
    throw new GatewayError(
      'unusable',
      `The gateway redirects to ${Text.quote(headers.get('location') ?? '')}. Redirects are not ` +
        'followed: start turnpike mcp with that URL if it is right.',
    )
  const parsed = Json.readable(() => Json.parseAny(text, levelsMax, membersMax))
  const message = Json.isObject(parsed) ? parsed : undefined
  const error = message && Json.member(message, 'error')
  if (Json.isObject(error)) {
    const said = Text.quote(Json.member(error, 'message'))
    // A limit or a fault of the service says nothing about the message.
    throw new GatewayError(
      status === 429 || status >= 500 ? 'unusable' : 'refused',
      `The gateway answered with an error: ${said}.`,
    )
  }
  const result = message && Json.member(message, 'result')
  if (!Json.isObject(result) || message?.id !== id)
    throw new GatewayError(
      'unusable',
      `The answer (status ${status}) is not one of an MCP endpoint. Is this the URL of a gateway?`,
    )
  return result
}
