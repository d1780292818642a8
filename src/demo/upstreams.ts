import { setTimeout as wait } from 'node:timers/promises'
import * as blockscout from './upstreams/blockscout'
import * as books from './upstreams/books'
import * as chat from './upstreams/chat'
import * as coingecko from './upstreams/coingecko'
import * as filings from './upstreams/filings'
import * as fx from './upstreams/fx'
import * as issuer from './upstreams/issuer'
import * as llama from './upstreams/llama'
import * as news from './upstreams/news'
import type { Reply, Route } from './upstreams/reply'
import * as treasury from './upstreams/treasury'
import * as weather from './upstreams/weather'
import * as wiki from './upstreams/wiki'
import * as words from './upstreams/words'
import * as worldbank from './upstreams/worldbank'

/** All samples. No path belongs to two of them, so that one origin can serve all. */
export const routes: readonly Route[] = [
  blockscout,
  books,
  chat,
  coingecko,
  filings,
  fx,
  issuer,
  llama,
  news,
  treasury,
  weather,
  wiki,
  words,
  worldbank,
].flatMap((sample) => sample.routes)

/** A request as it arrived at an upstream. */
export type Recorded = {
  method: string
  /** Path and query, verbatim. */
  target: string
  headers: Readonly<Record<string, string>>
  body: string
}

export type Options = {
  port?: number
  /** Pause between two events of a stream, ms. */
  eventGapMs?: number
  /** Replaces the samples where it returns a response: tests make an upstream fail with it. */
  intercept?: (request: Recorded) => Response | Promise<Response> | undefined
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
const gzipMin = 1400

/**
 * Sample upstreams on loopback: every path of the shipped merchants, with bodies in the shape of
 * the real services. Equal requests get equal answers. They make no requests.
 */
export async function startUpstreams(options: Options = {}): Promise<Upstreams> {
  const requests: Recorded[] = []
  const gapMs = options.eventGapMs ?? 20
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: options.port ?? 0,
    reusePort: false,
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url)
      const body = await request.text()
      const recorded = {
        method: request.method,
        target: url.pathname + url.search,
        headers: Object.fromEntries(request.headers.entries()),
        body,
      }
      requests.push(recorded)
      if (requests.length > recordedMax) requests.shift()
      const intercepted = await options.intercept?.(recorded)
      return intercepted ?? toResponse(answer(request, url, body), request, gapMs)
    },
  })
  const port = server.port ?? 0
  return { url: `http://127.0.0.1:${port}`, port, requests, stop: () => server.stop(true) }
}

function answer(request: Request, url: URL, body: string): Reply {
  const method = request.method === 'HEAD' ? 'GET' : request.method
  const fitting = routes.filter((route) => route.path.test(url.pathname))
  const route = fitting.find((candidate) => (candidate.method ?? 'GET') === method)
  if (!route) {
    return { status: fitting.length > 0 ? 405 : 404, body: { message: 'not found' } }
  }
  const captures = decode(route.path.exec(url.pathname)?.slice(1) ?? [])
  if (!captures) return { status: 400, body: { message: 'malformed path' } }
  return route.answer({ url, captures, headers: request.headers, body })
}

function decode(segments: readonly (string | undefined)[]): string[] | undefined {
  try {
    return segments.filter((segment) => segment !== undefined).map(decodeURIComponent)
  } catch {
    return undefined
  }
}

function toResponse(reply: Reply, request: Request, gapMs: number): Response {
  const headers = new Headers({
    Server: 'sample',
    'Cache-Control': 'public, max-age=60',
    'Content-Type': reply.type ?? 'application/json; charset=utf-8',
    ...reply.headers,
  })
  const status = reply.status ?? 200
  if (reply.events) {
    headers.set('Content-Type', 'text/event-stream')
    headers.set('Cache-Control', 'no-cache')
    return new Response(stream(reply.events, gapMs), { status, headers })
  }
  const asText = reply.type !== undefined && typeof reply.body === 'string'
  const text = asText ? String(reply.body) : JSON.stringify(reply.body)
  const bytes = new TextEncoder().encode(text)
  if (bytes.length < gzipMin || !/\bgzip\b/.test(request.headers.get('accept-encoding') ?? '')) {
    return new Response(bytes, { status, headers })
  }
  headers.set('Content-Encoding', 'gzip')
  headers.set('Vary', 'Accept-Encoding')
  return new Response(Bun.gzipSync(bytes), { status, headers })
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
