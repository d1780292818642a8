import { setTimeout as wait } from 'node:timers/promises'
import type { Config, Route } from '../config/Config'
import { segmentsOf } from '../gateway/Tail'
import { answerOf } from '../web/public/Example'
import { complete, models, type Reply } from './chat'
import { stockFacts } from './stocks'

/** A request as it arrived at an upstream. */
export type Recorded = {
  method: string
  /** Path and query, verbatim. */
  target: string
  headers: Readonly<Record<string, string>>
  body: string
}

export type Options = {
  /** Their routes are answered, and questions about these stocks. */
  merchants: Config['merchants']
  stock?: Config['stock']
  port?: number
  /** Pause between two events of a stream, ms. */
  eventGapMs?: number
}

export type Upstreams = {
  /** Origin on loopback. */
  url: string
  port: number
  /** The last 1,000 requests, the oldest first. */
  requests: readonly Recorded[]
  stop(): Promise<void>
}

const recordedMax = 1000

/**
 * One server on loopback for the upstreams of all merchants. It answers a route with the example that
 * the file has of its answer, and a chat with a text of its own. Equal requests get equal answers.
 */
export async function startUpstreams(options: Options): Promise<Upstreams> {
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
        return toResponse(complete(headers, body), request, eventGapMs)
      const facts = stockFacts(pathname, stock?.tokens ?? [])
      if (facts !== undefined) return toResponse({ body: facts }, request)
      const route = findRoute(merchants, method === 'HEAD' ? 'GET' : method, pathname)
      if (route === undefined)
        return toResponse({ status: 404, body: { message: 'not found' } }, request)
      return toResponse({ body: exampleOf(route, pathname, searchParams) }, request)
    },
  })
  const port = server.port ?? 0
  return { url: `http://127.0.0.1:${port}`, port, requests, stop: () => server.stop(true) }
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
