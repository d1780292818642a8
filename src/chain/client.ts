import type { WriteEvent } from '../log'
import { readText, TooLongError } from '../net/read-text'
import { Malformed } from './Http1'
import { createLimiter, type Limiter, type Rank } from './limiter'
import { Broken, createWire, type Wire } from './wire'

/**
 * JSON-RPC over HTTP with keep-alive. It has only what settlement needs: viem's client costs twice
 * the CPU per call and makes additional calls.
 */
export type Client = {
  /**
   * The result of one call. Throws `RpcError` when a node answered with a JSON-RPC error about this
   * call, and `RpcFault` when no node gave a usable answer: then the effect of the call is unknown.
   */
  call(method: string, params: readonly unknown[], options?: CallOptions): Promise<unknown>
  /** Every URL once, in the order of the configuration. */
  nodes: readonly Node[]
  /** All nodes except the one that `call` uses now, nearest in order first; empty with one URL. */
  others(): readonly Node[]
  /** Hosts of the URLs, whose paths may contain keys. */
  hosts: readonly string[]
  /** Requests sent so far by method, failed ones included. */
  counts(): ReadonlyMap<string, number>
  /** Requests without a usable answer so far, by method. */
  faults(): ReadonlyMap<string, number>
  /** Ends calls in progress, and every later call, with `RpcFault`. */
  close(): void
}

/** One URL. A call never falls back to another URL. */
export type Node = {
  /** Safe to show: the URL's path may contain a key. */
  host: string
  /** Throws like `Client.call`. */
  call(method: string, params: readonly unknown[], options?: CallOptions): Promise<unknown>
}

export type CallOptions = { timeoutMs?: number }

type ClientOptions = {
  /** URLs in the order of preference. A URL that answers is used until it fails. */
  urls: readonly string[]
  /** Longest time of one attempt, ms. */
  timeoutMs: number
  log: WriteEvent
}

/**
 * No node gave a usable answer: network, timeout, overload or an invalid answer. Retryable; the
 * effect on money is unknown.
 */
export class RpcFault extends Error {
  override name = 'RpcFault'
  readonly retryable = true
  /** Whether the node limits the rate of calls. */
  readonly isLimit: boolean

  constructor(message: string, options: ErrorOptions & { isLimit?: boolean } = {}) {
    super(message, options)
    this.isLimit = options.isLimit === true
  }
}

/** A node answered with an error about this call. */
export class RpcError extends Error {
  override name = 'RpcError'
  readonly code: number
  readonly data: unknown

  constructor(code: number, message: string, data: unknown) {
    super(message)
    this.code = code
    this.data = data
  }
}

/** Answers above this size are invalid for every call that we make. */
const answerMaxBytes = 8 << 20

/** Every other method is background: no payment waits for it. */
const ranks: Readonly<Record<string, Rank>> = {
  eth_sendRawTransaction: 'settlement',
  eth_sendRawTransactionSync: 'settlement',
  eth_getTransactionReceipt: 'settlement',
  eth_getTransactionCount: 'settlement',
  eth_call: 'payment',
  eth_getCode: 'payment',
  eth_getLogs: 'payment',
  eth_getTransactionByHash: 'payment',
}

/** One URL, and how it has answered. */
type Endpoint = {
  readonly url: string
  readonly host: string
  /** Client for a plain `http:` URL; other URLs use `fetch`. */
  readonly wire: Wire | undefined
  /** Whether its last call failed. It is logged once, not for each call. */
  isDown: boolean
}

type State = {
  /** In the order of the configuration. */
  readonly endpoints: readonly Endpoint[]
  readonly limiter: Limiter
  readonly log: ClientOptions['log']
  readonly counts: Map<string, number>
  readonly faults: Map<string, number>
  readonly active: Set<AbortController>
  /** Index of the endpoint that is used first. */
  current: number
  lastId: number
  isClosed: boolean
}

type Call = {
  method: string
  params: readonly unknown[]
  timeoutMs: number
  /** The only endpoint to use; undefined for all of them in turn. */
  endpoint: Endpoint | undefined
}

/** Makes a client over one or more URLs of the same chain. Throws without URLs. */
export function createClient({ urls, timeoutMs, log }: ClientOptions): Client {
  if (urls.length === 0) throw new Error('a client needs at least one URL')
  const state: State = {
    endpoints: urls.map(endpointOf),
    limiter: createLimiter(),
    log,
    counts: new Map(),
    faults: new Map(),
    active: new Set(),
    current: 0,
    lastId: 0,
    isClosed: false,
  }
  const { endpoints } = state
  const callOf =
    (endpoint: Endpoint | undefined): Client['call'] =>
    (method, params, { timeoutMs: limit = timeoutMs } = {}) =>
      run(state, { method, params, timeoutMs: limit, endpoint })
  // A URL that is listed twice counts as one node.
  const distinct = endpoints.filter(({ url }, index) => urls.indexOf(url) === index)
  const nodes = distinct.map(
    (endpoint): Node => ({
      host: endpoint.host,
      call: callOf(endpoint),
    }),
  )
  return {
    nodes,
    others() {
      const at = distinct.findIndex(({ url }) => url === endpoints[state.current]?.url)
      return [...nodes.slice(at + 1), ...nodes.slice(0, at)]
    },
    hosts: endpoints.map(({ host }) => host),
    counts: () => state.counts,
    faults: () => state.faults,
    close: () => close(state),
    call: callOf(undefined),
  }
}

function endpointOf(url: string): Endpoint {
  const { protocol, host } = new URL(url)
  const wire = protocol === 'http:' ? createWire(url, answerMaxBytes) : undefined
  return { url, host, wire, isDown: false }
}

function close(state: State): void {
  state.isClosed = true
  state.limiter.close()
  for (const controller of state.active) controller.abort()
  for (const { wire } of state.endpoints) wire?.close()
}

/** Makes a call when the limiter has room. */
async function run(state: State, call: Call): Promise<unknown> {
  const rank = ranks[call.method] ?? 'background'
  const entry = state.limiter.acquire(rank, call.timeoutMs)
  // A call that does not wait is sent before this function returns.
  if (entry !== true && !(await entry)) {
    throw new RpcFault(`no room for ${call.method}: too many calls are in progress`)
  }
  try {
    return await (call.endpoint ? askOnly(state, call.endpoint, call) : askInTurn(state, call))
  } finally {
    state.limiter.release(rank)
  }
}

async function askOnly(state: State, endpoint: Endpoint, call: Call): Promise<unknown> {
  if (state.isClosed) throw new RpcFault('the client is closed')
  try {
    return await ask(state, endpoint, call)
  } catch (error) {
    if (error instanceof RpcError) throw error
    throw new RpcFault(reasonOf(error), { cause: error })
  }
}

async function askInTurn(state: State, call: Call): Promise<unknown> {
  let fault: unknown
  const { endpoints, current: first } = state
  for (let offset = 0; offset < endpoints.length && !state.isClosed; offset++) {
    const index = (first + offset) % endpoints.length
    const endpoint = endpoints[index]
    if (endpoint === undefined) continue
    try {
      const result = await ask(state, endpoint, call)
      // Stay with the node that answered: another one may not have received what this one accepted.
      state.current = index
      return result
    } catch (error) {
      if (error instanceof RpcError) {
        state.current = index
        throw error
      }
      fault = error
    }
  }
  throw new RpcFault(reasonOf(fault), { cause: fault })
}

/** Calls one URL. Throws RpcError, or the original fault. */
async function ask(state: State, endpoint: Endpoint, call: Call): Promise<unknown> {
  const { method, params } = call
  const id = ++state.lastId
  const body = JSON.stringify({ jsonrpc: '2.0', id, method, params })
  increase(state.counts, method)
  // Not AbortSignal.timeout: the timer must end when the answer arrives.
  const controller = new AbortController()
  const timer = setTimeout(() => controller.abort(), call.timeoutMs)
  state.active.add(controller)
  try {
    const to = endpoint.wire ?? endpoint.url
    const result = await request(to, { id, body, method }, controller.signal)
    if (endpoint.isDown) state.log('rpc-recovered', { host: endpoint.host })
    endpoint.isDown = false
    return result
  } catch (error) {
    if (!(error instanceof RpcError) && !state.isClosed) noteFault(state, endpoint, method, error)
    throw error
  } finally {
    clearTimeout(timer)
    state.active.delete(controller)
  }
}

function noteFault(state: State, endpoint: Endpoint, method: string, error: unknown): void {
  const { host } = endpoint
  increase(state.faults, method)
  if (error instanceof RpcFault && error.isLimit) state.limiter.slowDown()
  if (!endpoint.isDown) state.log('rpc-fault', { host, method, reason: reasonOf(error) })
  endpoint.isDown = true
}

function increase(counts: Map<string, number>, method: string): void {
  counts.set(method, (counts.get(method) ?? 0) + 1)
}

async function request(
  to: Wire | string,
  { id, body, method }: { id: number; body: string; method: string },
  signal: AbortSignal,
): Promise<unknown> {
  const { status, text } = await (typeof to === 'string'
    ? postByFetch(to, body, signal)
    : to.post(body, signal))
  const answer = parseAnswer(text)
  if (answer?.error) {
    const { code, message, data } = answer.error
    // A proxy in front of the node may not know the id. Its error still concerns this call.
    if (!isNodeTrouble(answer.error, method) && !isTrouble(status))
      throw new RpcError(code, message, data)
    const isLimit = status === 429 || code === -32005 || code === 429
    throw new RpcFault(`the node has a fault (${code})`, { isLimit })
  }
  if (status < 200 || status > 299) {
    throw new RpcFault(`HTTP status ${status}`, { isLimit: status === 429 })
  }
  if (!answer) throw new RpcFault('not a JSON-RPC answer')
  if (typeof answer.id === 'number' && answer.id !== id) {
    if (typeof to !== 'string') to.reset()
    throw new RpcFault('an answer to another call')
  }
  return answer.result
}

async function postByFetch(
  url: string,
  body: string,
  signal: AbortSignal,
): Promise<{ status: number; text: string }> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'accept-encoding': 'identity' },
    body,
    redirect: 'error',
    signal,
  })
  try {
    return { status: response.status, text: await readText(response, answerMaxBytes) }
  } catch (error) {
    throw error instanceof TooLongError ? new RpcFault('answer too long') : error
  }
}

function isTrouble(status: number): boolean {
  return status === 429 || status === 401 || status === 403 || status >= 500
}

function reasonOf(error: unknown): string {
  if (error instanceof RpcFault || error instanceof Malformed || error instanceof Broken) {
    return error.message
  }
  // Messages of fetch may contain the URL.
  if (!(error instanceof Error)) return 'unknown'
  return error.name === 'AbortError' ? 'no answer in time' : 'cannot connect'
}

type CallError = { code: number; message: string; data: unknown }

/** An answer of JSON-RPC 2.0, as nodes give it. EIP-1474. */
type RpcAnswer = {
  id: unknown
  result: unknown
  error: CallError | undefined
}

/** Patterns search in it, and the contract of a stranger may choose a part of it. */
const messageMax = 1024

/** Undefined when the text is not an answer. A long message of an error is cut. */
function parseAnswer(text: string): RpcAnswer | undefined {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  const id = 'id' in value ? value.id : undefined
  if ('error' in value && typeof value.error === 'object' && value.error !== null) {
    const { code, message, data } = value.error as Record<string, unknown>
    if (typeof code !== 'number' || typeof message !== 'string') return undefined
    return { id, result: undefined, error: { code, message: message.slice(0, messageMax), data } }
  }
  return 'result' in value ? { id, result: value.result, error: undefined } : undefined
}

/** Node codes for "busy" and "limit exceeded": a fault of the node, not of the call. */
const nodeTrouble = new Set([-32005, -32097, -32016, 429])

/** Whether another node may answer the call. */
function isNodeTrouble(error: CallError, method: string): boolean {
  return nodeTrouble.has(error.code) && !isTooWide(error, method)
}

/**
 * Some providers refuse a range of logs with the code of their rate limits ("query returned more
 * than 10000 results"). Another node would refuse it, too, and a smaller range would be answered.
 */
function isTooWide({ code, message }: CallError, method: string): boolean {
  if (method !== 'eth_getLogs' || code !== -32005) return false
  return !/\brate\b|per (second|minute|day)|daily|requests|credit|quota|capacity/i.test(message)
}
