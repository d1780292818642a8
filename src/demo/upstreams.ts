import { setTimeout as wait } from 'node:timers/promises'
import type { Config, Route, Stock, StockToken } from '../config/Config'
import { segmentsOf } from '../gateway/Tail'
import { answerOf } from '../web/public/Example'
import { samplePrice } from './exchange'

/** A request as it arrived at an upstream. */
export type Recorded = {
  method: string
  /** Path and query, verbatim. */
  target: string
  headers: Readonly<Record<string, string>>
  body: string
}

type Options = {
  /** Their routes are answered, and questions about these stocks. */
  merchants: Config['merchants']
  stock?: Config['stock']
  port?: number
  /** Pause between two events of a stream, ms. */
  eventGapMs?: number
}

export type Upstreams = Awaited<ReturnType<typeof startUpstreams>>

const recordedMax = 1000

/**
 * One server on loopback for the upstreams of all merchants. It answers a route with the example that
 * the file has of its answer, and a chat with a text of its own. Equal requests get equal answers.
 */
export async function startUpstreams(options: Options) {
  const { merchants, stock, eventGapMs = 20 } = options
  const requests: Recorded[] = []
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: options.port ?? 0,
    reusePort: false,
    idleTimeout: 0,
    async fetch(request) {
      const { pathname, search, searchParams } = new URL(request.url)
      const { method, headers } = request
      const body = await request.text()
      const received = { headers: Object.fromEntries(headers.entries()), body }
      requests.push({ method, target: pathname + search, ...received })
      if (requests.length > recordedMax) requests.shift()
      // An OpenAI-compatible chat, under its own prefix and under OpenRouter's.
      const [, chat] = /^(?:\/api)?\/v1\/(chat\/completions|models)$/.exec(pathname) ?? []
      if (chat === 'models') return toResponse({ body: models }, request)
      if (chat !== undefined && method === 'POST')
        return toResponse(completeChat(headers, body), request, eventGapMs)
      const facts = stockFacts(pathname, stock?.tokens ?? [])
      if (facts !== undefined) return toResponse({ body: facts }, request)
      const route = findRoute(merchants, method === 'HEAD' ? 'GET' : method, pathname)
      if (route === undefined)
        return toResponse({ status: 404, body: { message: 'not found' } }, request)
      return toResponse({ body: exampleOf(route, pathname, searchParams) }, request)
    },
  })
  const port = server.port ?? 0
  return {
    /** Origin on loopback. */
    url: `http://127.0.0.1:${port}`,
    port,
    /** The last 1,000 requests, the oldest first. */
    requests: requests as readonly Recorded[],
    stop: () => server.stop(true),
  }
}

/** The route that forwards to a path: of several, the one that says most about it. */
function findRoute(
  merchants: Config['merchants'],
  method: string,
  path: string,
): Route | undefined {
  const routes = merchants.flatMap((merchant) => merchant.routes)
  const [best] = routes
    .filter(({ methods }) => methods.some((each) => each === method))
    .map((route) => ({ route, length: fitOf(route, path) }))
    .sort((a, b) => b.length - a.length)
  return best !== undefined && best.length > 0 ? best.route : undefined
}

/** How much of a path a route describes; 0 for a path that it does not forward to. */
function fitOf(route: Route, path: string): number {
  const segments = tailOf(route, path)
  if (segments === undefined || (segments.length === 0 && route.tail === 'required')) return 0
  const literals = segmentsOf(route).map(({ isLiteral, name }) => (isLiteral ? name : undefined))
  if (!literals.every((name, at) => name === undefined || name === segments[at])) return 0
  return path.length - segments.join('/').length + literals.join('').length
}

/** The segments after the path of a route; undefined for a path that it does not forward to. */
function tailOf({ upstreamPath }: Route, path: string): string[] | undefined {
  if (path === upstreamPath) return []
  const [before = '', after] = upstreamPath.split('{tail}')
  const start = after === undefined ? `${before}/` : before
  const isBelow = path.startsWith(start) && path.endsWith(after ?? '')
  return isBelow
    ? path.slice(start.length, path.length - (after ?? '').length).split('/')
    : undefined
}

/** The example of a route with what the request names, and with fractions that depend on it. */
function exampleOf(route: Route, path: string, query: URLSearchParams): unknown {
  let text = answerOf(route) ?? '{}'
  const segments = tailOf(route, path) ?? []
  for (const [at, { param, prefix, suffix }] of segmentsOf(route).entries()) {
    const segment = segments[at]
    if (segment === undefined) continue
    const value = decode(segment.slice(prefix.length, segment.length - suffix.length))
    // Of a list, the first one.
    const [known, wanted] = [String(param.example), value].map((list) => list.split(',')[0])
    text = text.replaceAll(JSON.stringify(known), () => JSON.stringify(wanted))
  }
  return JSON.parse(text, (name, value) => {
    const wanted = query.get(name)
    if (wanted !== null && typeof value === 'string') return wanted
    if (typeof value !== 'number') return value
    if (wanted !== null && Number.isFinite(Number(wanted))) return Number(wanted)
    if (Number.isInteger(value)) return value
    const decimals = String(value).replace(/^.*\./, '').length
    const share = Bun.hash.xxHash32(`${path}?${query} ${name}`) / 2 ** 32
    return Number((value * (0.99 + 0.02 * share)).toFixed(decimals))
  })
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}

function toResponse(reply: Reply, request: Request, gapMs = 0): Response {
  const { status = 200, body, events } = reply
  const headers = new Headers({
    Server: 'sample',
    'Cache-Control': 'public, max-age=60',
    'Content-Type': 'application/json; charset=utf-8',
  })
  if (events) {
    headers.set('Content-Type', 'text/event-stream')
    headers.set('Cache-Control', 'no-cache')
    return new Response(stream(events, gapMs), { status, headers })
  }
  const text = JSON.stringify(body)
  if (!/\bgzip\b/.test(request.headers.get('accept-encoding') ?? ''))
    return new Response(text, { status, headers })
  headers.set('Content-Encoding', 'gzip')
  headers.set('Vary', 'Accept-Encoding')
  return new Response(Bun.gzipSync(text), { status, headers })
}

function stream(events: readonly string[], gapMs: number): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder()
  let next = 0
  return new ReadableStream({
    async pull(controller) {
      if (next > 0) await wait(gapMs)
      const event = events[next++]
      if (event === undefined) controller.close()
      else controller.enqueue(encoder.encode(event))
    },
  })
}

/** An answer of a sample upstream. */
type Reply = {
  status?: number
  /** Sent as JSON. */
  body: unknown
  /** Replaces `body`: server-sent events, one after the other. */
  events?: readonly string[]
}

/** The samples do not read the clock, so that equal requests get equal answers. */
const created = Date.parse('2026-11-19T12:00:00Z') / 1000

type Asked = {
  model: string
  messages: { role: string; content: unknown }[]
  stream: boolean
  /** Whether a stream ends with its usage. */
  reportsUsage: boolean
  /** Most tokens of the answer. */
  outputMax: number
}

function parseChat(body: string): Asked | undefined {
  try {
    const value = JSON.parse(body)
    if (!Array.isArray(value.messages) || value.messages.length === 0) return undefined
    return {
      model: typeof value.model === 'string' ? value.model : 'demo/echo-1',
      messages: value.messages,
      stream: value.stream === true,
      reportsUsage: value.stream_options?.include_usage === true,
      outputMax: value.max_completion_tokens ?? value.max_tokens ?? Number.POSITIVE_INFINITY,
    }
  } catch {
    return undefined
  }
}

/** The answer of an OpenAI-compatible chat service. */
function completeChat(headers: Headers, body: string): Reply {
  const failed = (status: number, message: string) => {
    return { status, body: { error: { code: status, message } } }
  }
  if (!/^Bearer \S+$/.test(headers.get('authorization') ?? ''))
    return failed(401, 'No auth credentials found')
  const asked = parseChat(body)
  if (!asked) return failed(400, 'Input must be JSON with at least one message')
  const last = asked.messages.at(-1)?.content
  const text = typeof last === 'string' ? last.slice(0, 200) : 'something without text'
  const all = `A sample model has read "${text}" and has nothing to add.`.split(/(?<= )/)
  const words = all.slice(0, asked.outputMax)
  const reason = words.length < all.length ? 'length' : 'stop'
  // Use the raw text: serialising deeply nested content again would overflow the stack.
  const promptTokens = Math.ceil(body.length / 4)
  const usage = {
    prompt_tokens: promptTokens,
    completion_tokens: words.length,
    total_tokens: promptTokens + words.length,
    prompt_tokens_details: { cached_tokens: 0, audio_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: 0, audio_tokens: 0 },
  }
  const id = `gen-${Bun.hash(body).toString(16)}`
  const head = { id, provider: 'Demo', model: asked.model, created }
  if (asked.stream) {
    const reported = asked.reportsUsage ? usage : undefined
    return { body: undefined, events: chunks(head, words, { reason, usage: reported }) }
  }
  const message = { role: 'assistant', content: words.join('') }
  const choice = { index: 0, message, finish_reason: reason, native_finish_reason: reason }
  return { body: { ...head, object: 'chat.completion', choices: [choice], usage } }
}

/** With `stream_options.include_usage` the last chunk has the usage and no choices. */
function chunks(
  head: object,
  words: readonly string[],
  { reason, usage }: { reason: string; usage: object | undefined },
): string[] {
  const event = (members: object) =>
    `data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', ...members })}\n\n`
  const noUsage = usage === undefined ? {} : { usage: null }
  const chunk = (content: string, end: string | null) => {
    const delta = { role: 'assistant', content }
    const choices = [{ index: 0, delta, finish_reason: end, native_finish_reason: end }]
    return event({ choices, ...noUsage })
  }
  return [
    ': PROCESSING\n\n',
    ...words.map((content) => chunk(content, null)),
    chunk('', reason),
    ...(usage === undefined ? [] : [event({ choices: [], usage })]),
    'data: [DONE]\n\n',
  ]
}

/** Every name is answered by the same sample: these are the ones that the shipped file sells. */
const models = {
  data: [
    'demo/echo-1',
    '~google/gemini-flash-latest',
    '~anthropic/claude-sonnet-latest',
    '~openai/gpt-latest',
    '~moonshotai/kimi-latest',
  ].map((id) => ({ id, name: id, context_length: 8192 })),
}

/** Facts of the stock tokens that are not on the chain, as the issuer and the explorer publish them. */
function stockFacts(path: string, tokens: Stock['tokens']): unknown {
  if (path === '/rhj/assets') return { assets: tokens.map(assetOf) }
  const [, kind, id = ''] = /^\/(rhj\/prices|api\/v2\/tokens)\/([^/]+)$/.exec(path) ?? []
  const token = tokens.find(({ symbol, address }) =>
    kind === 'rhj/prices' ? symbol === id : address.toLowerCase() === id.toLowerCase(),
  )
  if (token === undefined) return undefined
  return kind === 'rhj/prices' ? { quotes: [quoteOf(token)] } : rowOf(token)
}

function assetOf({ symbol, address }: StockToken) {
  return {
    tokenSymbol: symbol,
    tokenName: `${symbol} \u2022 Robinhood Token`,
    deployments: [{ contractAddress: address, chainId: 4663, networkName: 'Robinhood Chain' }],
    currentMultiplier: '1.000000000000000000',
    logoUrl: `https://cdn.robinhood.com/${symbol.toLowerCase()}.png`,
    tradingCapabilities: ['BUY', 'SELL'],
    status: 'ASSET_STATUS_ACTIVE',
    tokenDecimals: 18,
    isin: `JE00${address.slice(-8).toUpperCase()}`,
  }
}

function quoteOf({ symbol, address }: StockToken) {
  const price = samplePrice(symbol)
  return {
    tokenSymbol: symbol,
    deployments: [{ contractAddress: address, chainId: 4663, networkName: 'Robinhood Chain' }],
    bid: (price * 0.9995).toFixed(4),
    ask: (price * 1.0005).toFixed(4),
    currency: 'USD',
    dailyTradingVolume: '4100000',
    isTradingHalt: false,
    generatedAt: '2026-11-19T12:00:00Z',
  }
}

function rowOf({ symbol, address }: StockToken) {
  return {
    address_hash: address,
    name: `${symbol} \u2022 Robinhood Token`,
    symbol,
    decimals: '18',
    type: 'ERC-20',
    holders_count: '1200',
    exchange_rate: String(samplePrice(symbol)),
    circulating_market_cap: String(samplePrice(symbol) * 250_000),
    volume_24h: '5000000',
    reputation: 'ok',
  }
}
