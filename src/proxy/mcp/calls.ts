import type { Config } from '../../config/Config'
import type { Peer } from '../../http/peer'
import type * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import * as Catalogue from '../Catalogue'
import type { Gateway } from '../merchant'
import { invalidParams, type Result, RpcFault, refused, toResult } from './answer'
import type { Outgoing } from './outgoing'
import * as Payment from './Payment'
import * as Session from './Session'
import type { Wanted } from './server'
import * as Tool from './Tool'

export type CallsOptions = {
  config: Config
  gateway: Gateway
  isReady: Catalogue.IsReady
}

/** The message that a call arrived in. */
export type Outer = { request: Request; peer: Peer; outgoing: Outgoing }

export type Calls = {
  /** One page of the tools that can be bought. Throws an RpcFault. */
  list(cursor: string | undefined): { tools: Record<string, unknown>[]; nextCursor?: string }
  /** Calls a tool. Rejects with an RpcFault. */
  call(outer: Outer, wanted: Wanted): Promise<Result>
  /** Ends the call that a message cancels. */
  cancel(headers: Headers, message: Json.Json): void
}

const pageSize = 100

/** The tools and the calls under way. */
export function createCalls(options: CallsOptions): Calls {
  const { config } = options
  const { baseUrl } = config.service
  /** Ends a call under way, by session and id. */
  const running = new Map<string, () => void>()
  let tools: ReadonlyMap<string, Tool.Tool> | undefined
  const compiled = () => {
    tools ??= Tool.compile(config)
    return tools
  }
  return { list, call, cancel }

  /**
   * Ends the call that a client cancelled. Clients of the SDK keep the connection open then, and
   * would pay for an answer that they discard.
   */
  function cancel(headers: Headers, message: Json.Json): void {
    const session = Session.of(headers)
    const id = Session.cancelled(message)
    if (session !== undefined && id !== undefined) running.get(`${session} ${id}`)?.()
  }

  function list(cursor: string | undefined) {
    const offset = cursor === undefined ? 0 : Number(/^\d{1,9}$/.exec(cursor)?.[0] ?? Number.NaN)
    if (Number.isNaN(offset)) throw new RpcFault(invalidParams, 'The cursor is none of ours.')
    // A client asks once a session: an outage must not leave it without tools.
    const ids = config.networks.map(({ id }) => id)
    const isListed = Catalogue.readyOrAll(ids, options.isReady)
    const offered = [...compiled().values()].flatMap((tool) => {
      const networks = tool.networks.filter(({ id }) => isListed(id))
      return networks.length === 0 ? [] : [{ tool, networks }]
    })
    const next = offset + pageSize
    return {
      tools: offered.slice(offset, next).map(({ tool, networks }) => Tool.describe(tool, networks)),
      ...(next < offered.length ? { nextCursor: String(next) } : {}),
    }
  }

  async function call(outer: Outer, { id, name, args, meta }: Wanted): Promise<Result> {
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
    const { request, peer, outgoing } = outer
    const { headers } = request
    // Refuse before anything is charged.
    if (presented.kind !== 'none' && !outgoing.hasRoom()) return refused(busy(), baseUrl)
    const session = Session.of(headers)
    const key = session === undefined ? undefined : `${session} ${Session.callId(id)}`
    const given = new AbortController()
    const end = () => given.abort()
    if (key !== undefined) running.set(key, end)
    try {
      const signal = AbortSignal.any([request.signal, given.signal])
      const inner = requestOf(wanted, presented, { headers, signal })
      const response = await options.gateway.handle(inner, peer, outgoing.envelope)
      const result = await toResult(response, {
        kind: presented.kind,
        speaksMpp: Session.speaksMpp(headers, meta),
        url: baseUrl + wanted.path,
        hold: outgoing.envelope.hold,
        busy: refused(busy(), baseUrl),
      })
      // The answer counts as not delivered, so it must not be sent.
      if (given.signal.aborted) throw new RpcFault(cancelled, 'The call was cancelled.')
      return result
    } finally {
      if (key !== undefined && running.get(key) === end) running.delete(key)
    }
  }
}

/** JSON-RPC error code for a call that its client cancelled. */
const cancelled = -32800

/** The request to the gateway that a call stands for, from the same client. */
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
  return Problem.of('not-ready', 'Too many answers wait for their clients; nothing is charged.')
}
