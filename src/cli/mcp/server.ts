import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import * as Json from '../../protocol/Json'
import * as Answer from './Answer'
import { type CallResult, refusal, type Wanted } from './call'
import { GatewayError } from './gateway'
import type { Tool } from './Listing'
import * as Sentences from './Sentences'

type Handlers = {
  instructions: string
  /** Throws a GatewayError. */
  list(signal: AbortSignal): Promise<Tool[]>
  call(wanted: Wanted, signal: AbortSignal): Promise<CallResult>
  warn(message: string): void
}

/** Longest JSON of the arguments of a call: the gateway takes messages of 256 KiB. */
const argumentsMaxBytes = 128 * 1024

const cancelMs = 1_000

/**
 * Serves MCP on stdin and stdout, which then carries nothing else. Only this file loads the server
 * of the SDK, after the options are checked.
 */
export async function serveStdio(handlers: Handlers) {
  const server = new Server(
    { name: 'turnpike-wallet', title: 'Turnpike wallet', version: '1.0.0' },
    { capabilities: { tools: {} }, instructions: handlers.instructions },
  )
  const stopping = new AbortController()
  const running = new Set<Promise<unknown>>()
  let isStopping = false
  const track = <T>(task: Promise<T>): Promise<T> => {
    running.add(task)
    const forget = () => void running.delete(task)
    task.then(forget, forget)
    return task
  }
  server.setRequestHandler(ListToolsRequestSchema, async (_, { signal }) => {
    try {
      const tools = await handlers.list(AbortSignal.any([signal, stopping.signal]))
      return { tools: tools.map((tool) => ({ ...tool })) }
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error
      handlers.warn(error.message)
      throw new Error(error.message)
    }
  })
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { signal }) => {
    if (isStopping) return resultOf(refusal(Sentences.stopping()))
    const either = AbortSignal.any([signal, stopping.signal])
    return resultOf(await track(call(handlers, params, either)))
  })
  server.onerror = (error) => handlers.warn(error.message)
  const closed = Promise.withResolvers<void>()
  server.onclose = () => closed.resolve()
  await server.connect(new StdioServerTransport())
  return {
    /** Resolves when the transport gave up, as after a message above its limit. */
    closed: closed.promise,
    /** Refuses new calls and lets those in progress finish for `graceMs`, then cancels them. */
    async stop(graceMs: number) {
      isStopping = true
      const all = () => Promise.allSettled([...running])
      await Promise.race([all(), Bun.sleep(graceMs)])
      stopping.abort()
      // A read of the chain cannot be cancelled.
      await Promise.race([all(), Bun.sleep(cancelMs)])
      // Answers are written in the turn after their calls.
      await Bun.sleep(0)
      await server.close()
    },
  }
}

async function call(
  handlers: Handlers,
  params: { name: string; arguments?: Record<string, unknown> | undefined },
  signal: AbortSignal,
): Promise<CallResult> {
  const text = JSON.stringify(params.arguments ?? {})
  if (text.length > argumentsMaxBytes)
    return refusal(`The arguments are longer than ${argumentsMaxBytes} bytes. Nothing was paid.`)
  try {
    return await handlers.call({ name: params.name, args: Json.parse(text) }, signal)
  } catch (error) {
    if (!(error instanceof Json.JsonError)) throw error
    return refusal(`The arguments cannot be used: ${error.message}. Nothing was paid.`)
  }
}

/** A new object: the SDK's type of a result is open. */
function resultOf({ content, isError }: CallResult) {
  const items = content.length === 0 ? [Answer.note('')] : content
  return { content: items.map((item) => ({ ...item })), ...(isError && { isError }) }
}
