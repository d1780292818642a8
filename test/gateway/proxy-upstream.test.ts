import { afterEach, describe, expect, test } from 'bun:test'
import type net from 'node:net'
import zlib from 'node:zlib'
import { UpstreamError } from '../../src/net/watch'
import { failure, forward, raw, readerOf, serve, stopUpstreams, text } from '../harness/forward'
import { outcomeOf } from '../harness/outcome'

afterEach(stopUpstreams)

describe('the request', () => {
  test('path, query and body are forwarded unchanged; headers by rule', async () => {
    const seen: string[] = []
    const upstream = await raw((piece, { socket }) => {
      seen.push(piece)
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    })
    const buyer = {
      authorization: 'Payment abc',
      'content-type': 'application/json',
      'x-api-key': 'buyer',
      'idempotency-key': 'buyer',
      'accept-encoding': 'gzip',
      cookie: 'a=b',
    }
    const forwarded = await forward(upstream, {
      method: 'POST',
      path: '/m/m/r/AC%2FDC',
      search: '?page[size]=2&x=%27a+b',
      headers: new Headers(buyer),
      body: new TextEncoder().encode('{"a": 1}'),
      merchant: { headers: { 'X-Api-Key': 'own' } },
    })
    expect(text(forwarded)).toBe('ok')
    const [head, body] = seen.join('').split('\r\n\r\n')
    const [line, ...lines] = (head ?? '').split('\r\n')
    expect(line).toBe('POST /r/AC%2FDC?page[size]=2&x=%27a+b HTTP/1.1')
    expect(body).toBe('{"a": 1}')
    expect(lines.map((header) => header.toLowerCase()).sort()).toEqual([
      'accept-encoding: gzip',
      'accept: */*',
      'connection: keep-alive',
      'content-length: 8',
      'content-type: application/json',
      `host: ${upstream.host}`,
      'idempotency-key: pay_1',
      'user-agent: turnpike',
      'x-api-key: own',
    ])
  })

  test('the mapped members of a JSON body are rewritten, nothing else', async () => {
    const upstream = serve(async (request) => new Response(await request.text()))
    const rewrite = { model: { fast: 'vendor/fast-1' } }
    const sent = async (body: string) =>
      text(
        await forward(upstream, {
          method: 'POST',
          body: new TextEncoder().encode(body),
          route: { rewrite },
        }),
      )
    expect(await sent('{"n":12345678901234567890, "model" : "fast","x":{"model":"fast"}}')).toBe(
      '{"n":12345678901234567890, "model" : "vendor/fast-1","x":{"model":"fast"}}',
    )
    expect(await sent('{"m\\u006fdel":"fas\\u0074"}')).toBe('{"m\\u006fdel":"vendor/fast-1"}')
    const same = [
      '{"model":"other"}',
      '{"model":["fast"],"a":"model"}',
      '["model","fast"]',
      '{"model":"toString"}',
      '{"Model":"fast"}',
      '{"__proto__":{"model":"fast"}}',
      '{"model":"fast"',
      'model=fast',
      '',
      `${'['.repeat(100_000)}`,
    ]
    for (const body of same) expect(await sent(body)).toBe(body)
  })

  test('GET and HEAD have no body', async () => {
    const upstream = serve(
      async (request) => new Response(await request.text(), { headers: { 'content-length': '0' } }),
    )
    const body = new TextEncoder().encode('x')
    expect(text(await forward(upstream, { body }))).toBe('')
    expect(text(await forward(upstream, { method: 'HEAD', body }))).toBe('')
  })
})

describe('the answer', () => {
  test('a redirect is not followed and shows no location', async () => {
    let count = 0
    const upstream = serve(() => {
      count++
      return Response.redirect('http://169.254.169.254/latest', 302)
    })
    const { status, headers } = await forward(upstream)
    expect([status, headers.has('location'), count]).toEqual([302, false, 1])
  })

  test('an encoded body is forwarded unchanged', async () => {
    const packed = Bun.gzipSync(new TextEncoder().encode('hello '.repeat(1_000)))
    const upstream = serve(() => new Response(packed, { headers: { 'content-encoding': 'gzip' } }))
    const forwarded = await forward(upstream, {
      headers: new Headers({ 'accept-encoding': 'gzip' }),
    })
    expect(forwarded.headers.get('content-encoding')).toBe('gzip')
    expect(Buffer.from(forwarded.body as Uint8Array).equals(Buffer.from(packed))).toBe(true)
    expect(forwarded.body).toBeInstanceOf(Uint8Array)
  })

  test('an answer of 1 MiB less one byte is bytes, a longer one a stream of all of it', async () => {
    const upstream = serve((request) => {
      const size = Number(request.headers.get('x-size'))
      return new Response(new Uint8Array(size).fill(7))
    })
    const sized = (size: number) =>
      forward(upstream, { merchant: { headers: { 'x-size': String(size) } } })
    const short = await sized(1024 * 1024 - 1)
    expect(short.body).toBeInstanceOf(Uint8Array)
    expect((short.body as Uint8Array).byteLength).toBe(1024 * 1024 - 1)
    const long = await sized(5_000_000)
    expect(long.body).toBeInstanceOf(ReadableStream)
    const bytes = await new Response(long.body).bytes()
    expect(bytes.byteLength).toBe(5_000_000)
    expect(bytes.every((byte) => byte === 7)).toBe(true)
  })

  test('chunks of an event stream arrive as they are sent', async () => {
    const sent = Promise.withResolvers<ReadableStreamDefaultController<Uint8Array>>()
    const upstream = serve(
      () =>
        new Response(new ReadableStream({ start: (controller) => sent.resolve(controller) }), {
          headers: { 'content-type': 'text/event-stream; charset=utf-8' },
        }),
    )
    const answer = forward(upstream)
    const controller = await sent.promise
    const event = (name: string) => new TextEncoder().encode(`data: ${name}\n\n`)
    controller.enqueue(event('one'))
    // The stream is still open, so each of these would fail if anything waited for its end.
    const reader = readerOf(await answer)
    const next = async () => new TextDecoder().decode((await reader.read()).value)
    expect(await next()).toBe('data: one\n\n')
    controller.enqueue(event('two'))
    expect(await next()).toBe('data: two\n\n')
    controller.close()
    expect((await reader.read()).done).toBe(true)
  })

  test('a buyer that disconnects from a stream ends it upstream', async () => {
    const closed = Promise.withResolvers<void>()
    const upstream = await raw((_, { socket }) => {
      socket.on('close', () => closed.resolve())
      socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n')
    })
    const reader = readerOf(await forward(upstream))
    await reader.read()
    await reader.cancel()
    await closed.promise
  })

  test('answers without a body are empty and whole', async () => {
    const upstream = serve((request) =>
      request.method === 'HEAD'
        ? new Response(null, { headers: { 'content-length': '77' } })
        : new Response(null, { status: 204 }),
    )
    const none = await forward(upstream)
    expect([none.status, text(none)]).toEqual([204, ''])
    const head = await forward(upstream, { method: 'HEAD' })
    expect([text(head), head.headers.get('content-length')]).toEqual(['', '77'])
  })

  test('secrets of the merchant are redacted from body and headers', async () => {
    const upstream = serve((request) => {
      const auth = request.headers.get('authorization') ?? ''
      const body = `${request.url} ${auth} ${request.headers.get('x-key')} ${request.headers.get('user-agent')}`
      return new Response(body, { status: 403, headers: { etag: '"e"', 'x-echo': auth } })
    })
    const forwarded = await forward(upstream, {
      merchant: {
        headers: {
          Authorization: 'Bearer s3cr3t-token',
          'X-Key': 'short',
          'User-Agent': 'Turnpike/1.0',
        },
      },
      route: {
        passHeaders: ['x-echo'],
        fixedQuery: { apikey: 'query+secret', format: 'json-long' },
      },
    })
    const body = text(forwarded)
    expect(body).not.toContain('s3cr3t')
    expect(body).not.toContain('query%2Bsecret')
    expect(body).toContain('Bearer [redacted] short Turnpike/1.0')
    expect(body).toContain('&format=[redacted] ')
    expect(forwarded.headers.has('x-echo')).toBe(false)
    expect(forwarded.headers.has('etag')).toBe(false)
  })
})

describe('encoded secrets', () => {
  const secret = 's3cr3t-token'
  const page = new TextEncoder().encode(`denied: ${secret}`)
  const encodings: [string, Uint8Array][] = [
    ['gzip', zlib.gzipSync(page)],
    ['deflate', zlib.deflateSync(page)],
    ['br', zlib.brotliCompressSync(page)],
    ['zstd', zlib.zstdCompressSync(page)],
  ]
  const answer = (body: Uint8Array, encoding: string) =>
    forward(
      serve(() => new Response(body, { status: 400, headers: { 'content-encoding': encoding } })),
      { merchant: { headers: { 'X-Key': secret } } },
    )

  test.each(encodings)('an error page in %s shows no secret', async (encoding, body) => {
    const forwarded = await answer(body, encoding)
    expect(text(forwarded)).toBe('denied: [redacted]')
    expect(forwarded.headers.has('content-encoding')).toBe(false)
  })

  test('an encoded page without secrets is unchanged', async () => {
    const body = zlib.gzipSync('denied')
    const forwarded = await answer(body, 'gzip')
    expect(Buffer.from(forwarded.body as Uint8Array).equals(Buffer.from(body))).toBe(true)
    expect(forwarded.headers.get('content-encoding')).toBe('gzip')
  })

  const unreadable: [string, string, Uint8Array][] = [
    ['a truncated gzip', 'gzip', zlib.gzipSync(page).subarray(0, -3)],
    ['text that is said to be gzip', 'gzip', page],
    ['gzip in gzip', 'gzip, gzip', zlib.gzipSync(zlib.gzipSync(page))],
    ['an unknown encoding', 'compress', page],
  ]
  test.each(unreadable)('attack: %s is not delivered', async (_, encoding, body) => {
    const error = await failure(answer(body, encoding))
    expect([error.kind, error.code]).toEqual(['cut', 'unreadable'])
  })

  test('a request with a secret asks for an unencoded answer', async () => {
    const asked: (string | null)[] = []
    const upstream = serve((request) => {
      asked.push(request.headers.get('accept-encoding'))
      return new Response('ok')
    })
    const headers = new Headers({ 'accept-encoding': 'gzip, br' })
    await forward(upstream, { headers, merchant: { headers: { 'X-Key': secret } } })
    await forward(upstream, { headers })
    expect(asked).toEqual(['identity', 'gzip, br'])
  })
})

describe('failures', () => {
  const cuts: [string, string][] = [
    ['before the head', ''],
    ['in the head', 'HTTP/1.1 200 OK\r\nContent-Len'],
    ['before the first byte', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n'],
    ['before the announced length', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc'],
    ['before the last chunk', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n'],
    [
      'before the first event',
      'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 5\r\n\r\n',
    ],
  ]
  test.each(cuts)('error: a connection that ends %s is a cut', async (_, answer) => {
    const upstream = await raw((_piece, { socket }) => socket.end(answer))
    expect((await failure(forward(upstream))).kind).toBe('cut')
  })

  const malformed: [string, string][] = [
    [
      'a protocol that was not asked for',
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n',
    ],
    ['two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nokxyz'],
    ['a status that is none', 'HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nok'],
    [
      'a huge header',
      `HTTP/1.1 200 OK\r\nX-Big: ${'a'.repeat(8 << 20)}\r\nContent-Length: 2\r\n\r\nok`,
    ],
    ['500 headers', `HTTP/1.1 200 OK\r\n${'x: y\r\n'.repeat(500)}Content-Length: 2\r\n\r\nok`],
  ]
  test.each(malformed)('error: an answer with %s is a cut', async (_, answer) => {
    const upstream = await raw((_piece, { socket }) => socket.end(answer))
    expect((await failure(forward(upstream))).kind).toBe('cut')
  })

  test('a large header that was not asked for does not reach the buyer', async () => {
    const answer = `HTTP/1.1 200 OK\r\nX-Big: ${'a'.repeat(100_000)}\r\nContent-Length: 2\r\n\r\nok`
    const upstream = await raw((_, { socket }) => socket.write(answer))
    expect((await forward(upstream)).headers.has('x-big')).toBe(false)
  })

  test('error: a cut after the buffered part fails the stream', async () => {
    const upstream = await raw((_, { socket }) => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n')
      socket.end(Buffer.alloc(2_000_000))
    })
    const forwarded = await forward(upstream)
    expect(forwarded.body).toBeInstanceOf(ReadableStream)
    const error: unknown = await new Response(forwarded.body).bytes().catch((caught) => caught)
    expect(error).toBeInstanceOf(UpstreamError)
    expect((error as UpstreamError).kind).toBe('cut')
  })

  test('error: a cut in an event stream fails it after its events', async () => {
    const opened = Promise.withResolvers<net.Socket>()
    const upstream = await raw((_, { socket }) => {
      socket.write(
        'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\n',
      )
      socket.write('data: 1\n\n')
      opened.resolve(socket)
    })
    const reader = readerOf(await forward(upstream))
    expect(new TextDecoder().decode((await reader.read()).value)).toBe('data: 1\n\n')
    // Read only now: Bun drops unread bytes when a connection breaks.
    const socket = await opened.promise
    socket.end()
    expect(await outcomeOf(reader.read())).toThrow('upstream cut')
  })

  test('error: a refused connection is a connect error that shows no address', async () => {
    const upstream = await raw(() => {})
    stopUpstreams()
    const error = await failure(forward(upstream, { search: '?key=secret' }))
    expect(error.kind).toBe('connect')
    expect(`${error.message}${error.stack}${JSON.stringify(error)}`).not.toMatch(/127\.0|secret/)
    expect(error.cause).toBeUndefined()
  })

  test('error: a head that does not come in time is a timeout', async () => {
    const upstream = await raw(() => {})
    const error = await failure(forward(upstream, { merchant: { timeoutMs: 20 } }))
    expect(error.kind).toBe('timeout')
  })

  test('error: a name that is not resolved in time is a timeout', async () => {
    const options = { resolve: () => new Promise<string[]>(() => {}) }
    const pending = forward(new URL('https://a.test'), { options, merchant: { timeoutMs: 20 } })
    expect((await failure(pending)).kind).toBe('timeout')
  })

  test('error: a pause in a buffered answer is a timeout', async () => {
    const answer = 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc'
    const upstream = await raw((_, { socket }) => socket.write(answer))
    expect((await failure(forward(upstream, { merchant: { idleMs: 20 } }))).kind).toBe('timeout')
  })

  test('error: a pause in a stream fails it', async () => {
    const answer = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n'
    const upstream = await raw((_, { socket }) => socket.write(answer))
    const reader = readerOf(await forward(upstream, { merchant: { idleMs: 20 } }))
    await reader.read()
    expect(await outcomeOf(reader.read())).toThrow('upstream timeout')
  })

  test('error: a signal ends the exchange', async () => {
    const leave = new AbortController()
    const upstream = await raw(() => leave.abort())
    const error = await failure(forward(upstream, { signal: leave.signal }))
    expect([error.kind, error.code]).toEqual(['cut', 'aborted'])
  })

  test('error: a name without addresses is a connect error', async () => {
    const options = { resolve: () => Promise.reject(new Error('ENOTFOUND a.test')) }
    expect((await failure(forward(new URL('https://a.test'), { options }))).kind).toBe('connect')
  })
})
