import type { Hex } from 'viem'
import { nap } from './payers'
import type { Random } from './random'

/** What a proxy does to one request. */
const faults = [
  'hang',
  'slow',
  'status 429',
  'status 500',
  'status 502',
  'malformed',
  'truncated',
  'empty',
  'lagging',
  'no logs',
  // The node has the transaction and answers something else.
  'already known',
  'nonce too low',
  'underpriced',
  'accepted, then silence',
  // The node reports that it has the transaction, and does not have it.
  'dropped',
  'no sync method',
] as const
type Fault = (typeof faults)[number]

/** An RPC endpoint with the faults, false answers and lags of real ones. */
export type FaultProxy = {
  url: string
  /** How often each fault was injected. */
  counts: ReadonlyMap<string, number>
  /** From now on it only forwards. */
  behave(): void
  stop(): void
}

type RpcRequest = { id: number; method: string; params: unknown[] }
type Answer = { result?: unknown; error?: { code: number; message: string } }

/** Above the timeout of any single call except a synchronous send. */
const hangMs = 12_000
const faultProbability = 0.12
/** Share of the faults of a send that only sends can have. */
const sendShare = 0.6

const anywhere: readonly Fault[] = [
  'hang',
  'slow',
  'slow',
  'status 429',
  'status 500',
  'status 502',
  'malformed',
  'truncated',
  'empty',
  'lagging',
]
/** Of a request for logs. */
const ofLogs: readonly Fault[] = [...anywhere, 'no logs', 'no logs', 'no logs']
const ofSends: readonly Fault[] = [
  'already known',
  'nonce too low',
  'underpriced',
  'accepted, then silence',
  'dropped',
]

/** A period in which one fault affects every request. */
type Spell = { fault: Fault; until: number; depth: number }

type State = {
  /** The node's URL. */
  readonly url: string
  readonly random: Random
  /** Faults that only some proxies have. */
  readonly noSync: readonly Fault[]
  readonly counts: Map<string, number>
  readonly ending: AbortController
  behaves: boolean
  spell: Spell | undefined
}

/**
 * Starts a proxy in front of a node. It starts with fault periods and single faults. `forgetsSync`:
 * it may report that it has no eth_sendRawTransactionSync, which a client may remember.
 */
export function startFaultProxy(url: string, random: Random, forgetsSync: boolean): FaultProxy {
  const state: State = {
    url,
    random,
    noSync: forgetsSync ? ['no sync method'] : [],
    counts: new Map(),
    ending: new AbortController(),
    behaves: false,
    spell: undefined,
  }
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      try {
        return await answer(state, (await request.json()) as RpcRequest)
      } catch {
        return new Response('the node is gone', { status: 502 })
      }
    },
  })
  return {
    url: `http://127.0.0.1:${server.port}`,
    counts: state.counts,
    behave() {
      state.behaves = true
    },
    stop() {
      state.ending.abort()
      void server.stop(true)
    },
  }
}

async function forward({ url }: State, request: RpcRequest): Promise<Answer> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...request, jsonrpc: '2.0' }),
  })
  return (await response.json()) as Answer
}

function draw(state: State, method: string): { fault: Fault | undefined; depth: number } {
  const { random, noSync, spell } = state
  const isSend = method.startsWith('eth_sendRawTransaction')
  const isLogs = method === 'eth_getLogs'
  const now = Date.now()
  if (spell !== undefined && now < spell.until)
    return {
      fault: only(spell.fault, { isSend, isLogs }),
      depth: spell.depth,
    }
  state.spell = undefined
  const depth = random.between(1, 5)
  if (random.chance(0.004)) {
    const fault = random.pick<Fault>(['lagging', 'lagging', 'no logs', 'status 502', ...noSync])
    state.spell = { fault, depth, until: now + random.between(500, 4_000) }
  }
  if (!random.chance(faultProbability)) return { fault: undefined, depth }
  const list = isSend && random.chance(sendShare) ? [...ofSends, ...noSync] : anywhere
  return { fault: random.pick(isLogs ? ofLogs : list), depth }
}

/** Some faults are those of one method. */
function only(fault: Fault, { isSend, isLogs }: { isSend: boolean; isLogs: boolean }) {
  const isOther = (fault === 'no sync method' && !isSend) || (fault === 'no logs' && !isLogs)
  return isOther ? undefined : fault
}

async function answer(state: State, request: RpcRequest): Promise<Response> {
  const { random, counts, ending } = state
  const { fault, depth } = state.behaves
    ? { fault: undefined, depth: 0 }
    : draw(state, request.method)
  if (fault === undefined) return reply(request, await forward(state, request))
  counts.set(fault, (counts.get(fault) ?? 0) + 1)
  switch (fault) {
    case 'hang':
      await nap(hangMs, ending.signal)
      return new Response('too late', { status: 504 })
    case 'slow':
      await nap(random.between(100, 2_000), ending.signal)
      return reply(request, await forward(state, request))
    case 'status 429':
      return new Response('{"error":"slow down"}', { status: 429 })
    case 'status 500':
      return reply(request, { error: { code: -32603, message: 'internal error' } }, 500)
    case 'status 502':
      return new Response('<html>Bad Gateway</html>', { status: 502 })
    case 'malformed':
      return new Response('{"jsonrpc":"2.0","id":1,"resu\u0000')
    case 'truncated': {
      const text = await reply(request, await forward(state, request)).text()
      return new Response(text.slice(0, text.length / 2))
    }
    case 'empty':
      return new Response('')
    case 'lagging':
      return reply(request, await lagging(state, request, depth))
    case 'no logs':
      // A node that hides events, as one of a payer could.
      return reply(request, { result: [] })
    case 'dropped':
      return reply(request, dropped(request))
    case 'no sync method':
      if (request.method !== 'eth_sendRawTransactionSync')
        return reply(request, await forward(state, request))
      return reply(request, { error: { code: -32601, message: 'Method not found' } })
    default:
      return afterSend(state, request, fault)
  }
}

/** The node accepts the transaction, and the client gets another answer. */
async function afterSend(state: State, request: RpcRequest, fault: Fault): Promise<Response> {
  const [raw] = request.params
  await forward(state, { ...request, method: 'eth_sendRawTransaction', params: [raw] })
  const say = (message: string) => reply(request, { error: { code: -32000, message } })
  if (fault === 'already known') return say('already known')
  if (fault === 'nonce too low') return say('nonce too low')
  if (fault === 'underpriced') return say('replacement transaction underpriced')
  await nap(hangMs, state.ending.signal)
  return new Response('too late', { status: 504 })
}

function reply({ id }: RpcRequest, answer: Answer, status = 200): Response {
  const { result, error } = answer
  const content = error === undefined ? { result: result ?? null } : { error }
  return Response.json({ jsonrpc: '2.0', id, ...content }, { status })
}

/** The answer of a node that drops the transaction at once. */
function dropped({ method }: RpcRequest): Answer {
  // EIP-7966: code 4 is "not included in time". The plain method would return a hash, which a
  // client must trust.
  if (method === 'eth_sendRawTransactionSync')
    return { error: { code: 4, message: 'The transaction was not confirmed within the timeout' } }
  return { result: `0x${'d'.repeat(64)}` }
}

/** The answer of a node that lags by some blocks. It forwards sends unchanged. */
async function lagging(state: State, request: RpcRequest, depth: number): Promise<Answer> {
  const newest = await forward(state, { id: 0, method: 'eth_blockNumber', params: [] })
  const head = Number(newest.result)
  const old: Hex = `0x${Math.max(0, head - depth).toString(16)}`
  const { method, params } = request
  switch (method) {
    case 'eth_blockNumber':
      return { result: old }
    case 'eth_call':
    case 'eth_getTransactionCount':
    case 'eth_getBalance':
    case 'eth_getCode':
      return forward(state, { ...request, params: [params[0], old, ...params.slice(2)] })
    case 'eth_getBlockByNumber': {
      const isNewer = Number(params[0]) > Number(old)
      if (isNewer) return { result: null }
      const isTag = typeof params[0] === 'string' && !params[0].startsWith('0x')
      return forward(state, isTag ? { ...request, params: [old, ...params.slice(1)] } : request)
    }
    case 'eth_getTransactionReceipt':
    case 'eth_getTransactionByHash': {
      const answer = await forward(state, request)
      const { blockNumber } = (answer.result ?? {}) as { blockNumber?: Hex | null }
      return Number(blockNumber ?? 0) > Number(old) ? { result: null } : answer
    }
    case 'eth_getLogs': {
      const filter = { ...(params[0] as Record<string, unknown>), toBlock: old }
      return forward(state, { ...request, params: [filter] })
    }
    default:
      return forward(state, request)
  }
}
