import { describe, expect, test } from 'bun:test'
import zlib from 'node:zlib'
import fc from 'fast-check'
import { redactAnswer, redactStream, secretsOf } from '../src/proxy/redact'
import { merchant, route } from './harness/merchants'
import { until } from './harness/world'

const bytes = (text: string) => new TextEncoder().encode(text)
const secret = 'sk-or-v1-s3cret'

/** A stream that a test writes to. */
function source() {
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined
  let cancelled = false
  const stream = new ReadableStream<Uint8Array>({
    start: (own) => {
      controller = own
    },
    cancel: () => {
      cancelled = true
    },
  })
  return {
    stream,
    write: (chunk: string | Uint8Array) =>
      controller?.enqueue(typeof chunk === 'string' ? bytes(chunk) : chunk),
    close: () => controller?.close(),
    fail: (error: Error) => controller?.error(error),
    isCancelled: () => cancelled,
  }
}

function redact(stream: ReadableStream<Uint8Array>, secrets = [secret], encoding?: string) {
  const headers = new Headers({ etag: '"1"' })
  if (encoding !== undefined) headers.set('content-encoding', encoding)
  return { headers, body: redactStream({ headers, body: stream }, secrets) }
}

function readerOf(stream: ReadableStream<Uint8Array>) {
  const reader = stream.getReader()
  return {
    read: async () => {
      const { value } = await reader.read()
      return value === undefined ? undefined : new TextDecoder().decode(value)
    },
    cancel: () => reader.cancel(),
  }
}

async function through(chunks: readonly string[], secrets: readonly string[]): Promise<string> {
  const upstream = source()
  const { body } = redact(upstream.stream, [...secrets])
  for (const chunk of chunks) upstream.write(chunk)
  upstream.close()
  return new Response(body).text()
}

describe('streams', () => {
  test('behavior: a secret is replaced wherever the chunks are cut', async () => {
    const text = `data: {"key":"${secret}"}\n\ndata: ${secret}${secret}\n\n`
    const wanted = text.replaceAll(secret, '[redacted]')
    for (let first = 0; first <= text.length; first++) {
      const second = Math.min(text.length, first + 5)
      const chunks = [text.slice(0, first), text.slice(first, second), text.slice(second)]
      expect(await through(chunks, [secret])).toBe(wanted)
    }
    expect(await through([...text], [secret])).toBe(wanted)
  })

  test('behavior: cuts change nothing, whatever the secrets have in common', async () => {
    const letters = fc.constantFrom('a', 'b')
    const word = fc.array(letters, { minLength: 2, maxLength: 5 }).map((list) => list.join(''))
    await fc.assert(
      fc.asyncProperty(
        fc.array(word, { minLength: 1, maxLength: 3 }),
        fc.array(fc.array(letters, { maxLength: 6 }).map((list) => list.join(''))),
        async (secrets, chunks) => {
          const whole = await through([chunks.join('')], secrets)
          expect(await through(chunks, secrets)).toBe(whole)
          for (const part of whole.split('[redacted]'))
            for (const kept of secrets) expect(part).not.toContain(kept)
        },
      ),
      { numRuns: 150 },
    )
  })

  test('behavior: a chunk goes out at once, but for an end that a secret begins with', async () => {
    const upstream = source()
    const { body, headers } = redact(upstream.stream)
    const { read } = readerOf(body)
    upstream.write('data: 1\n\n')
    expect(await read()).toBe('data: 1\n\n')
    upstream.write('data: sk-or-v1')
    expect(await read()).toBe('data: ')
    upstream.write('0 is none\n\n')
    expect(await read()).toBe('sk-or-v10 is none\n\n')
    upstream.write('the end is sk')
    expect(await read()).toBe('the end is ')
    upstream.close()
    expect(await read()).toBe('sk')
    expect(await read()).toBeUndefined()
    expect(headers.get('etag')).toBe('"1"')
  })

  test('behavior: without secrets it is the same stream', () => {
    const upstream = source()
    expect(redact(upstream.stream, [], 'gzip').body).toBe(upstream.stream)
  })

  test('behavior: the longer of two secrets is replaced whole', async () => {
    const secrets = ['abcdefgh', 'abcdefghij']
    expect(await through(['1 abcdefgh', 'ij 2 abcdefgh', 'x'], secrets)).toBe(
      '1 [redacted] 2 [redacted]x',
    )
    // One that began earlier and is not completed hides none that lies in it.
    expect(await through(['xxabcdefgh', '!'], ['xxabcdefghyy', 'abcdefgh'])).toBe('xx[redacted]!')
  })

  test('behavior: an encoded event stream goes out plain, event by event', async () => {
    const upstream = source()
    const { body, headers } = redact(upstream.stream, [secret], 'gzip')
    expect(headers.has('content-encoding')).toBe(false)
    expect(headers.has('etag')).toBe(false)
    const { read } = readerOf(body)
    const gzip = zlib.createGzip()
    gzip.on('data', (chunk: Buffer) => upstream.write(new Uint8Array(chunk)))
    const write = (text: string) =>
      new Promise<void>((resolve) => {
        gzip.write(text)
        gzip.flush(zlib.constants.Z_SYNC_FLUSH, () => resolve())
      })
    await write('data: 1\n\n')
    expect(await read()).toBe('data: 1\n\n')
    await write(`data: ${secret}\n\n`)
    expect(await read()).toBe('data: [redacted]\n\n')
  })

  for (const [encoding, pack] of [
    ['gzip', zlib.gzipSync],
    ['x-gzip', zlib.gzipSync],
    ['deflate', zlib.deflateSync],
    ['br', zlib.brotliCompressSync],
    ['zstd', zlib.zstdCompressSync],
  ] as const)
    test(`behavior: a long answer in ${encoding} is opened`, async () => {
      const text = `${'x'.repeat(100_000)}${secret}${'y'.repeat(100_000)}`
      const upstream = source()
      const { body } = redact(upstream.stream, [secret], encoding)
      const packed = new Uint8Array(pack(text))
      for (let at = 0; at < packed.length; at += 7) upstream.write(packed.slice(at, at + 7))
      upstream.close()
      expect(await new Response(body).text()).toBe(text.replace(secret, '[redacted]'))
    })

  test('error: a failure and a cancellation cross', async () => {
    for (const encoding of [undefined, 'gzip']) {
      const failing = source()
      const { read } = readerOf(redact(failing.stream, [secret], encoding).body)
      failing.fail(new Error('cut'))
      await expect(read()).rejects.toThrow('cut')
      const left = source()
      await readerOf(redact(left.stream, [secret], encoding).body).cancel()
      await until('the source is cancelled', left.isCancelled)
    }
  })
})

describe('secrets', () => {
  test('behavior: are what lets us in, in every form that an upstream may repeat', () => {
    const password = `user:pass/word+1`
    const sold = merchant('m', {
      headers: {
        Authorization: `Basic ${btoa(password)}`,
        'X-Api-Key': 'a/key+with=signs',
        'X-Short': 'short',
        'User-Agent': 'Turnpike/1.0 (ops@example.com)',
      },
    })
    const query = { apikey: 'query+secret', format: 'json-long-enough' }
    expect(secretsOf(sold, route('/r', { fixedQuery: query })).toSorted()).toEqual(
      [
        btoa(password),
        encodeURIComponent(btoa(password)),
        password,
        encodeURIComponent(password),
        'user:pass\\/word+1',
        'pass/word+1',
        encodeURIComponent('pass/word+1'),
        'pass\\/word+1',
        'a/key+with=signs',
        encodeURIComponent('a/key+with=signs'),
        'a\\/key+with=signs',
        'query+secret',
        'query%2Bsecret',
      ].toSorted(),
    )
  })

  test('behavior: in the path, behind any scheme, as a cookie, however it is written', () => {
    const sold = merchant('m', {
      headers: { Authorization: 'Key fal-ai/s3cret', Cookie: 'a=1; session=s3cret&cookie' },
    })
    const found = secretsOf(sold, route('/r', { pathSecrets: ['s3cret path!'] }))
    for (const form of [
      'fal-ai/s3cret',
      'fal-ai\\/s3cret',
      's3cret&cookie',
      's3cret&amp;cookie',
      's3cret path!',
      's3cret%20path!',
      's3cret+path%21',
    ])
      expect(found).toContain(form)
    expect(found).not.toContain('1')
  })
})

describe('whole answers', () => {
  test('behavior: one that opens into more than is kept is a stream without secrets', async () => {
    const text = `${'x'.repeat(6_000_000)}${secret}`
    const headers = new Headers({ 'content-encoding': 'gzip' })
    const body = redactAnswer({ headers, body: new Uint8Array(zlib.gzipSync(text)) }, [secret])
    expect(body).toBeInstanceOf(ReadableStream)
    expect(headers.has('content-encoding')).toBe(false)
    expect((await new Response(body).text()).slice(-30)).toBe(`${'x'.repeat(20)}[redacted]`)
  })

  test('error: one that is broken, or not what its header says, shows nothing either', async () => {
    const text = JSON.stringify({ key: secret, filler: 'x'.repeat(5000) })
    const packed = zlib.gzipSync(text)
    const damaged = Buffer.from(packed)
    damaged[damaged.length - 6] = (damaged.at(-6) ?? 0) ^ 1
    /** What a client that takes what it can get would see. */
    const shown = async (encoding: string, body: Uint8Array) => {
      const headers = new Headers({ 'content-encoding': encoding })
      const answer = redactAnswer({ headers, body }, [secret])
      const left = headers.get('content-encoding')
      let seen = ''
      try {
        if (answer instanceof Uint8Array)
          return new TextDecoder().decode(left === 'deflate' ? zlib.inflateRawSync(answer) : answer)
        const decoder = new TextDecoder()
        for await (const chunk of answer) seen += decoder.decode(chunk, { stream: true })
      } catch {
        // Cut.
      }
      expect(left).toBeNull()
      return seen
    }
    const bodies: [encoding: string, body: Uint8Array][] = [
      ['deflate', zlib.deflateRawSync(text)],
      ['deflate', zlib.deflateSync(text)],
      ['gzip', packed.subarray(0, -4)],
      ['gzip', damaged],
      ['gzip', Buffer.concat([packed, bytes('junk')])],
      ['zstd', zlib.zstdCompressSync(text).subarray(0, -4)],
      ['gzip', bytes(text)],
      ['br', bytes(text)],
    ]
    for (const [encoding, body] of bodies) expect(await shown(encoding, body)).not.toContain(secret)
    // Nothing is done to what holds no secret and cannot be opened.
    const junk = bytes('no gzip at all')
    const headers = new Headers({ 'content-encoding': 'gzip' })
    expect(redactAnswer({ headers, body: junk }, [secret])).toBe(junk)
  })

  test('behavior: what holds no secret, packed or plain, is the same array', () => {
    for (const [encoding, body] of [
      ['identity', bytes('nothing here, sk-or')],
      ['gzip', new Uint8Array(zlib.gzipSync('nothing here'))],
      ['gzip', bytes('this is not gzip')],
    ] as const) {
      const headers = new Headers({ 'content-encoding': encoding, etag: '"1"' })
      expect(redactAnswer({ headers, body }, [secret])).toBe(body)
      expect(headers.get('etag')).toBe('"1"')
    }
  })
})
