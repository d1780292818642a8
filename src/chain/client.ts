import { createGate, type Rank } from './gate'
import { Malformed } from './Http1'
import { Broken, createWire, type Wire } from './wire'

/**
 * JSON-RPC over HTTP with keep-alive. Only what settlement needs: viem's client costs twice the CPU
 * per call and makes calls of its own.
 */
export type Client = {
  /**
   * The result of one call. Throws `RpcError` when a node answered with a JSON-RPC error about this
   * call, `RpcFault` when no node gave a usable answer: then nothing is known about its effect.
   */
  call(method: string, params: readonly unknown[], options?: CallOptions): Promise<unknown>
  /** Every URL once, in the order of the configuration. */
  nodes: readonly Node[]
  /** All nodes but the one that `call` asks now, nearest in order first; empty with one URL. */
  others(): readonly Node[]
  /** Hosts of the URLs, whose paths may hold keys. */
  hosts: readonly string[]
  /** Requests sent so far by method, failed ones included. */
  counts(): ReadonlyMap<string, number>
  /** Those of them that brought no usable answer. */
  faults(): ReadonlyMap<string, number>
  /** Ends what is under way, and every later call, with `RpcFault`. */
  close(): void
}

/** One URL. No other URL is asked in its place, whatever it answers. */
export type Node = {
  /** Safe to show: the URL's path may hold a key. */
  host: string
  /** Throws like `Client.call`. */
  call(method: string, params: readonly unknown[], options?: CallOptions): Promise<unknown>
}

export type CallOptions = { timeoutMs?: number }

export type ClientOptions = {
  /** In the order of preference. A URL that answers is kept until it fails. */
  urls: readonly string[]
  /** Per attempt. */
  timeoutMs: number
  log: (event: string, fields?: Readonly<Record<string, unknown>>) => void
}

/** No node answered: network, timeout, overload or nonsense. Retryable; says nothing about money. */
export class RpcFault extends Error {
  override name = 'RpcFault'
  readonly retryable = true
  /** The node limits the rate of calls. */
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

/** Answers above this size are nonsense for every call we make. */
const answerMaxBytes = 8 << 20

/** Node codes for "busy" and "limit exceeded": trouble of the node, not of the call. EIP-1474. */
const nodeTrouble = new Set([-32005, -32097, -32016, 429])

/** Everything else is background: nobody's money waits for it. */
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

/** Makes a client over one or more URLs of the same chain. Throws when there is none. */
export function createClient(options: ClientOptions): Client {
  const { urls, timeoutMs, log } = options
  if (urls.length === 0) throw new Error('a client needs at least one URL')
  const hosts = urls.map((url) => new URL(url).host)
  const wires = urls.map((url) =>
    new URL(url).protocol === 'http:' ? createWire(url, answerMaxBytes) : undefined,
  )
  const counts = new Map<string, number>()
  const faults = new Map<string, number>()
  const active = new Set<AbortController>()
  /** URLs whose last call failed: told once, not for each call. */
  const down = new Set<number>()
  const gate = createGate()
  let isClosed = false
  let current = 0
  let lastId = 0

  /** Asks one URL. Throws RpcError, or the fault as it came. */
  async function askOne(
    index: number,
    method: string,
    params: readonly unknown[],
    limit: number,
  ): Promise<unknown> {
    const id = ++lastId
    const body = JSON.stringify({ jsonrpc: '2.0', id, method, params })
    increase(counts, method)
    // Not AbortSignal.timeout: the timer must go when the answer comes.
    const controller = new AbortController()
    const timer = setTimeout(() => controller.abort(), limit)
    active.add(controller)
    try {
      const to = wires[index] ?? urls[index] ?? ''
      const result = await request(to, { id, body, method }, controller.signal)
      if (down.delete(index)) log('rpc-recovered', { host: hosts[index] })
      return result
    } catch (error) {
      if (error instanceof RpcError || isClosed) throw error
      increase(faults, method)
      if (error instanceof RpcFault && error.isLimit) gate.slowDown()
      if (!down.has(index))
        log('rpc-fault', { host: hosts[index], method, reason: reasonOf(error) })
      down.add(index)
      throw error
    } finally {
      clearTimeout(timer)
      active.delete(controller)
    }
  }

  async function ask(method: string, params: readonly unknown[], limit: number): Promise<unknown> {
    let fault: unknown
    const first = current
    for (let offset = 0; offset < urls.length && !isClosed; offset++) {
      const index = (first + offset) % urls.length
      try {
        const result = await askOne(index, method, params, limit)
        // Stay with the node that answered: another one may not know yet what this one took.
        current = index
        return result
      } catch (error) {
        if (error instanceof RpcError) {
          current = index
          throw error
        }
        fault = error
      }
    }
    throw new RpcFault(reasonOf(fault), { cause: fault })
  }

  async function enter<T>(method: string, limit: number, work: () => Promise<T>): Promise<T> {
    const rank = ranks[method] ?? 'background'
    const entry = gate.enter(rank, limit)
    // A call without a queue is sent before this function returns.
    if (entry !== true && !(await entry)) {
      throw new RpcFault(`no room for ${method}: too many calls are under way`)
    }
    try {
      return await work()
    } finally {
      gate.leave(rank)
    }
  }

  const nodeOf = (index: number): Node => ({
    host: hosts[index] ?? '',
    call: (method, params, { timeoutMs: limit = timeoutMs } = {}) =>
      enter(method, limit, async () => {
        if (isClosed) throw new RpcFault('the client is closed')
        return askOne(index, method, params, limit).catch((error: unknown) => {
          if (error instanceof RpcError) throw error
          throw new RpcFault(reasonOf(error), { cause: error })
        })
      }),
  })
  // A URL that is listed twice counts as one node.
  const distinct = [...new Set(urls)].map((url) => urls.indexOf(url))
  const nodes = distinct.map(nodeOf)

  return {
    nodes,
    others() {
      const at = distinct.indexOf(urls.indexOf(urls[current] ?? ''))
      return [...nodes.slice(at + 1), ...nodes.slice(0, at)]
    },
    hosts,
    counts: () => counts,
    faults: () => faults,
    close() {
      isClosed = true
      gate.close()
      for (const controller of active) controller.abort()
      for (const wire of wires) wire?.close()
    },
    call: (method, params, { timeoutMs: limit = timeoutMs } = {}) =>
      enter(method, limit, () => ask(method, params, limit)),
  }
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
  const answer = parse(text)
  if (answer?.error) {
    const { code, message, data } = answer.error
    // Who answers before the node may know no id; what it says concerns this call all the same.
    const isTheNodes = nodeTrouble.has(code) && !isTooWide(method, code, message)
    if (!isTheNodes && !isTrouble(status)) throw new RpcError(code, message, data)
    const isLimit = status === 429 || code === -32005 || code === 429
    throw new RpcFault(`the node is in trouble (${code})`, { isLimit })
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

/**
 * Some providers refuse a range of logs with the code of their rate limits ("query returned more than
 * 10000 results"): the next node would be asked in vain, and a smaller range would be answered.
 */
function isTooWide(method: string, code: number, message: string): boolean {
  if (method !== 'eth_getLogs' || code !== -32005) return false
  return !/\brate\b|per (second|minute|day)|daily|requests|credit|quota|capacity/i.test(message)
}

async function postByFetch(
  url: string,
  body: string,
  signal: AbortSignal,
): Promise<{ status: number; text: string }> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
    redirect: 'error',
    signal,
  })
  const text = await response.text()
  if (text.length > answerMaxBytes) throw new RpcFault('answer too long')
  return { status: response.status, text }
}

function isTrouble(status: number): boolean {
  return status === 429 || status === 401 || status === 403 || status >= 500
}

type Answer = {
  id: unknown
  result: unknown
  error: { code: number; message: string; data: unknown } | undefined
}

function parse(text: string): Answer | undefined {
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
    return { id, result: undefined, error: { code, message, data } }
  }
  return 'result' in value ? { id, result: value.result, error: undefined } : undefined
}

function reasonOf(error: unknown): string {
  if (error instanceof RpcFault || error instanceof Malformed || error instanceof Broken) {
    return error.message
  }
  // Messages of fetch may contain the URL.
  if (!(error instanceof Error)) return 'unknown'
  return error.name === 'AbortError' ? 'no answer in time' : 'cannot connect'
}
