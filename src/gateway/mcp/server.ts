import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js'
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js'
import * as Json from '../../protocol/Json'
import { invalidParams, McpFault, methodNotFound, type ToolResult } from './answer'
import { MessageError } from './Messages'

type McpHandlers = {
  title: string
  instructions: string
  /** Both throw an McpFault or a JsonError. */
  list(cursor: string | undefined): Record<string, unknown>
  call(wanted: ToolCall): Promise<ToolResult>
}

/** A tool call; `id` is that of JSON-RPC. */
export type ToolCall = { id: unknown; name: string; args: Json.JsonObject; meta: Json.JsonObject }

/**
 * Answers one POST, stateless: the SDK needs a server for each. Only this file loads the SDK, at
 * the first call, because loading it takes as long as the rest of a start. Throws a MessageError.
 */
export async function serveMessage(
  request: Request,
  message: Json.Json,
  handlers: McpHandlers,
): Promise<Response> {
  for (const one of [message].flat())
    if (Json.isObject(one) && one.method === 'initialize' && !isInitializeRequest(one))
      throw new MessageError(invalidParams, 'initialize lacks what it needs.')
  const server = new Server(
    { name: 'turnpike', title: handlers.title, version: '1.0.0' },
    {
      capabilities: {
        tools: {},
        experimental: { payment: { methods: { evm: { intents: ['charge'] } } } },
      },
      instructions: handlers.instructions,
    },
  )
  const paramsOf = new Map<unknown, Json.JsonObject>()
  // A handler with a schema of the SDK would answer invalid parameters with an error of its own.
  server.fallbackRequestHandler = async ({ method, params = {} }, { requestId }) => {
    try {
      return await handle(handlers, {
        id: requestId,
        method,
        // For other methods, use the parameters that the SDK parsed.
        params: paramsOf.get(requestId) ?? (params as Json.JsonObject),
      })
    } catch (error) {
      if (!(error instanceof Json.JsonError)) throw error
      throw new McpFault(invalidParams, 'Invalid params', { detail: `${error.message}.` })
    }
  }
  const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true })
  // The SDK declares its optional members without undefined.
  await server.connect(transport as Parameters<Server['connect']>[0])
  try {
    return await transport.handleRequest(request, { parsedBody: withoutParams(message, paramsOf) })
  } finally {
    await server.close()
  }
}

/**
 * Reduces messages to the parameters that the SDK itself reads. The parameters of requests are kept
 * by id. The SDK copies every member of a message several times: 4,096 members would cost
 * megabytes.
 */
function withoutParams(message: Json.Json, paramsOf: Map<unknown, Json.JsonObject>): Json.Json {
  if (Array.isArray(message)) return message.map((one) => withoutParams(one, paramsOf))
  if (!Json.isObject(message)) return message
  const { id, method, params } = message
  if (method === 'initialize') return message
  const meta = Json.isObject(params) && params._meta !== undefined ? params._meta : {}
  if (!Json.isObject(params) || !Json.isObject(meta) || id === undefined) return message
  paramsOf.set(id, params)
  const { progressToken } = meta
  return { ...message, params: progressToken === undefined ? {} : { _meta: { progressToken } } }
}

type Asked = { id: unknown; method: string; params: Json.JsonObject }

function handle(handlers: McpHandlers, { id, method, params }: Asked) {
  if (method === 'tools/list') return handlers.list(Json.optional(params, 'cursor', 'text'))
  if (method !== 'tools/call') throw new McpFault(methodNotFound, 'Method not found')
  const args = Json.optional(params, 'arguments', 'object') ?? {}
  const meta = Json.optional(params, '_meta', 'object') ?? {}
  return handlers.call({ id, name: Json.read(params, 'name', 'text'), args, meta })
}
