import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js'
import {
  CallToolRequestSchema,
  type CallToolResult,
  ListToolsRequestSchema,
  type ListToolsResult,
} from '@modelcontextprotocol/sdk/types.js'
import type * as Json from '../../protocol/Json'

export type Handlers = {
  title: string
  instructions: string
  list(cursor: string | undefined): ListToolsResult
  /** Throws an RpcFault. */
  call(name: string, args: Json.JsonObject, meta: Json.JsonObject): Promise<CallToolResult>
}

/**
 * Answers one POST, stateless: each has a server of its own, as the SDK wants it. The only file that
 * loads the SDK, which takes as long as the whole rest of a start; it is loaded with the first call.
 */
export async function serve(
  request: Request,
  message: Json.Json,
  handlers: Handlers,
): Promise<Response> {
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
  server.setRequestHandler(ListToolsRequestSchema, ({ params }) => handlers.list(params?.cursor))
  server.setRequestHandler(CallToolRequestSchema, ({ params }) => {
    const { name, arguments: args = {}, _meta: meta = {} } = params
    // Both come from strictly parsed JSON.
    return handlers.call(name, args as Json.JsonObject, meta as Json.JsonObject)
  })
  const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true })
  // Its optional members are declared without undefined.
  await server.connect(transport as Parameters<Server['connect']>[0])
  try {
    return await transport.handleRequest(request, { parsedBody: message })
  } finally {
    await server.close()
  }
}
