import { describe, expect, test } from 'bun:test'
import zlib from 'node:zlib'
import fc from 'fast-check'
import type { Secret } from '../../src/gateway/redact/redact'
import { compile, redactAnswer, redactStream } from '../../src/gateway/redact/redact'
import { secretsOf } from '../../src/gateway/redact/secrets'
import { UnreadableError } from '../../src/net/watch'
import { merchant, route } from '../harness/merchants'
import { outcomeOf } from '../harness/outcome'
import { runs } from '../harness/samples'
import { until } from '../harness/world'

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
  return { headers, body: redactStream({ headers, body: stream }, compile(secrets)) }
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
  test('a secret is replaced for every split into chunks', async () => {
    const text = `data: {"key":"${secret}"}\n\ndata: ${secret}${secret}\n\n`
    const wanted = text.replaceAll(secret, '[redacted]')
    for (let first = 0; first <= text.length; first++) {
      const second = Math.min(text.length, first + 5)
      const chunks = [text.slice(0, first), text.slice(first, second), text.slice(second)]
      expect(await through(chunks, [secret])).toBe(wanted)
    }
    expect(await through([...text], [secret])).toBe(wanted)
  })

  test('the result is the same for every split, with any common parts of the secrets', async () => {
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
      runs(150),
    )
  })

  test('a secret beyond ASCII is replaced where its other characters are encoded', async () => {
    const key = 'gr\u00fc\u00df+8f&41/x2'
    for (const shown of [key, key.replace('+', '%2B'), key.replace('&', '\\u0026')]) {
      const whole = await through([`1 ${shown} 2`], [key])
      expect(whole).toBe('1 [redacted] 2')
      expect(await through([...`1 ${shown} 2`], [key])).toBe(whole)
    }
  })

  test('a chunk is sent at once, except for an end that may begin a secret', async () => {
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

  test('without secrets it is the same stream', () => {
    const upstream = source()
    expect(redact(upstream.stream, [], 'gzip').body).toBe(upstream.stream)
  })

  test('the longer of two secrets is replaced whole', async () => {
    const secrets = ['abcdefgh', 'abcdefghij']
    expect(await through(['1 abcdefgh', 'ij 2 abcdefgh', 'x'], secrets)).toBe(
      '1 [redacted] 2 [redacted]x',
    )
    // An incomplete match does not hide a complete one inside it.
    expect(await through(['xxabcdefgh', '!'], ['xxabcdefghyy', 'abcdefgh'])).toBe('xx[redacted]!')
  })

  test('an encoded event stream is sent unencoded, event by event', async () => {
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
    test(`a long answer in ${encoding} is decoded`, async () => {
      const text = `${'x'.repeat(100_000)}${secret}${'y'.repeat(100_000)}`
      const upstream = source()
      const { body } = redact(upstream.stream, [secret], encoding)
      const packed = new Uint8Array(pack(text))
      for (let at = 0; at < packed.length; at += 7) upstream.write(packed.slice(at, at + 7))
      upstream.close()
      expect(await new Response(body).text()).toBe(text.replace(secret, '[redacted]'))
    })

  test('error: a failure and a cancellation are passed on', async () => {
    for (const encoding of [undefined, 'gzip']) {
      const failing = source()
      const { read } = readerOf(redact(failing.stream, [secret], encoding).body)
      failing.fail(new Error('cut'))
      expect(await outcomeOf(read())).toThrow('cut')
      const left = source()
      await readerOf(redact(left.stream, [secret], encoding).body).cancel()
      await until('the source is cancelled', left.isCancelled)
    }
  })
})

/** The answer that a buyer gets for a text. */
function shown(text: string | Uint8Array, secrets: readonly Secret[]): string {
  const body = typeof text === 'string' ? bytes(text) : text
  const answer = redactAnswer({ headers: new Headers(), body }, compile(secrets))
  if (!(answer instanceof Uint8Array)) throw new Error('a stream')
  return new TextDecoder().decode(answer)
}

describe('secrets', () => {
  const secretsOfQuery = (fixedQuery: Record<string, string>) =>
    secretsOf(merchant('m'), route('/r', { fixedQuery }))

  test('secrets are the credentials of a merchant, also in base64 and hex', () => {
    const password = 'user:pass/word+1'
    const sold = merchant('m', {
      headers: {
        Authorization: `Basic ${btoa(password)}`,
        'X-Api-Key': 'a/key+with=signs',
        'X-Short': 'short',
        'User-Agent': 'Turnpike/1.0 (ops@example.com)',
      },
      secrets: ['from-the-environment', 'tiny'],
    })
    const query = { apikey: 'query+secret', format: 'json-long-enough' }
    const found = secretsOf(sold, route('/r', { fixedQuery: query }))
    for (const value of [
      btoa(password),
      password,
      'pass/word+1',
      'a/key+with=signs',
      'query+secret',
      'from-the-environment',
      Buffer.from('query+secret').toString('hex'),
    ])
      expect(found).toContain(value)
    for (const value of ['short', 'tiny', 'json-long-enough', 'Turnpike/1.0 (ops@example.com)'])
      expect(found).not.toContain(value)
    for (const before of ['', 'a', 'ab'])
      expect(shown(btoa(`${before}query+secret and more`), found)).toContain('[redacted]')
  })

  test('secrets are found in the path, after any scheme, and in a cookie', () => {
    const sold = merchant('m', {
      headers: { Authorization: 'Key fal-ai/s3cret', Cookie: 'a=1; session=s3cret&cookie' },
    })
    const found = secretsOf(sold, route('/r', { pathSecrets: ['s3cret path!'] }))
    for (const form of ['fal-ai/s3cret', 's3cret&cookie', 's3cret path!'])
      expect(found).toContain(form)
    expect(found).not.toContain('1')
  })

  test('attack: a parameter of any name may be a credential, but plain words stay in the answers', () => {
    for (const [name, value] of [
      ['appid', 'aaaabbbb'],
      ['app_id', 'plainwords'],
      ['code', 'plainwords'],
      ['sig', 'plainwords'],
      ['q', 'd41d8cd98f00b204'],
      ['mode', '8f14e45f-ceea-467a-9575-1a2b3c4d5e6f'],
      ['x', 'AbCdEfGhIj'],
    ] as const)
      expect(secretsOfQuery({ [name]: value })).toContain(value)
    for (const value of [
      'front_page',
      'name,capital,population',
      'temperature_2m,wind_speed_10m',
      '2026-01-31',
      'application/json',
      'bitcoin-cash',
    ]) {
      const found = secretsOfQuery({ tags: value })
      expect(found).not.toContain(value)
      expect(shown(`${value} and {"_tags":["${value}"]}`, found)).toContain(`"_tags":["${value}"]`)
      expect(shown(`?tags=${value}&a=1`, found)).toBe('?tags=[redacted]&a=1')
    }
  })
})

describe('the ways to write a secret', () => {
  const key = 's3cret+/=&"<key>'
  const written: readonly string[] = [
    's3cret\\u002B\\u002f\\u003d\\u0026\\u0022\\u003Ckey\\u003e',
    's3cret+\\/=&\\"<key>',
    '\\u0073\\u0033\\u0063ret\\u{2b}/\\x3d&\\x22<key>',
    's3cret%2b%2F%3d%26%22%3Ckey%3e',
    's3cret%252B%252F%253D%2526%2522%253ckey%253E',
    's3cret+&#x2F;&#61;&amp;&quot;&lt;key&gt;',
    's3cret&plus;&sol;&equals;&amp;&QUOT;&LT;key&#x0003E',
    's3cret&amp;#43;&amp;amp;#47;=&amp;amp;&#034;&#60key&#62;',
    's3cret\\\\u002b\\\\\\/=&\\\\\\"<key>',
    '%73%33%63%72%65%74%2B%2F%3D%26%22%3C%6B%65%79%3E',
  ]
  for (const form of written)
    test(`attack: ${form} is replaced, for every split into chunks`, async () => {
      const text = `{"a":"${form}","b":"50 %, \\n&nbsp;"}`
      expect(shown(text, [key])).toBe(text.replace(form, () => '[redacted]'))
      for (let first = 1; first < text.length; first++)
        expect(await through([text.slice(0, first), text.slice(first)], [key])).toBe(
          text.replace(form, () => '[redacted]'),
        )
      expect(await through([...text], [key])).toBe(text.replace(form, () => '[redacted]'))
    })

  for (const order of ['little', 'big'])
    test(`attack: UTF-16, ${order} end first, is replaced and stays readable`, async () => {
      const encode = (text: string) => {
        const wide = Buffer.from(`\ufeff${text}`, 'utf16le')
        return new Uint8Array(order === 'big' ? wide.swap16() : wide)
      }
      for (const form of [key, ...written]) {
        const text = `{"a":"${form}","b":1}`
        const wanted = text.replace(form, () => '[redacted]')
        const decoder = new TextDecoder(order === 'big' ? 'utf-16be' : 'utf-16le')
        const answer = redactAnswer({ headers: new Headers(), body: encode(text) }, compile([key]))
        expect(decoder.decode(answer as Uint8Array)).toBe(wanted)
        const upstream = source()
        const { body } = redact(upstream.stream, [key])
        for (const byte of encode(text)) upstream.write(new Uint8Array([byte]))
        upstream.close()
        expect(decoder.decode(await new Response(body).arrayBuffer())).toBe(wanted)
      }
    })

  test('a backslash in a secret does not slow the search', () => {
    const backslashes = '\\'.repeat(4)
    const text = `${'\\'.repeat(20_000)}x`
    expect(shown(text, [`${backslashes}secret`])).toBe(text)
    expect(shown(`a${JSON.stringify('a\\b\\c-d"e')}`, ['a\\b\\c-d"e'])).toBe('a"[redacted]"')
  })

  test('binary bytes are returned as the same array', () => {
    const body = new Uint8Array(4096)
    for (let at = 0; at < body.length; at++) body[at] = (at * 7919) % 251
    body.fill(0, 100, 400)
    expect(redactAnswer({ headers: new Headers(), body }, compile([key]))).toBe(body)
  })

  test('a blank may be a plus sign', () => {
    expect(shown('a=s3cret+path%21', ['s3cret path!'])).toBe('a=[redacted]')
    expect(shown('a=s3cret%20path!', ['s3cret path!'])).toBe('a=[redacted]')
  })
})

describe('whole answers', () => {
  test('an answer that decodes to more than the buffer is a stream without secrets', async () => {
    const text = `${'x'.repeat(6_000_000)}${secret}`
    const headers = new Headers({ 'content-encoding': 'gzip' })
    const body = redactAnswer(
      { headers, body: new Uint8Array(zlib.gzipSync(text)) },
      compile([secret]),
    )
    expect(body).toBeInstanceOf(ReadableStream)
    expect(headers.has('content-encoding')).toBe(false)
    expect((await new Response(body).text()).slice(-30)).toBe(`${'x'.repeat(20)}[redacted]`)
  })

  test('error: an answer that is broken, or not in its declared encoding, is not sent', () => {
    const text = JSON.stringify({ key: secret, filler: 'x'.repeat(5000) })
    const packed = zlib.gzipSync(text)
    const damaged = Buffer.from(packed)
    damaged[damaged.length - 6] = (damaged.at(-6) ?? 0) ^ 1
    const bodies: [encoding: string, body: Uint8Array][] = [
      ['gzip', packed.subarray(0, -4)],
      ['gzip', damaged],
      ['gzip', Buffer.concat([packed, bytes('junk')])],
      ['deflate', zlib.deflateSync(text).subarray(0, -1)],
      ['br', zlib.brotliCompressSync(text).subarray(0, -1)],
      ['zstd', zlib.zstdCompressSync(text).subarray(0, -4)],
      ['gzip', bytes(text)],
      ['br', bytes('no br at all')],
      ['gzip, gzip', zlib.gzipSync(packed)],
      ['compress', bytes(text)],
      ['x', bytes('y')],
    ]
    for (const [encoding, body] of bodies) {
      const headers = () => new Headers({ 'content-encoding': encoding })
      expect(() => redactAnswer({ headers: headers(), body }, compile([secret]))).toThrow(
        UnreadableError,
      )
      // Without secrets the buyer decodes it.
      expect(redactAnswer({ headers: headers(), body }, compile([]))).toBe(body)
    }
  })

  test('error: a long answer that breaks off fails at that place', async () => {
    const packed = zlib.gzipSync(Buffer.from(crypto.getRandomValues(new Uint8Array(60_000))))
    const upstream = source()
    const { body } = redact(upstream.stream, [secret], 'gzip')
    upstream.write(new Uint8Array(packed.subarray(0, -4)))
    upstream.close()
    expect(await outcomeOf(new Response(body).arrayBuffer())).toThrow()
    expect(() => redact(source().stream, [secret], 'gzip, br')).toThrow(UnreadableError)
  })

  test.each([
    ['gzip', zlib.gzipSync],
    ['deflate', zlib.deflateSync],
    ['deflate', zlib.deflateRawSync],
    ['br', zlib.brotliCompressSync],
    ['zstd', zlib.zstdCompressSync],
  ] as const)('attack: bytes behind the end of %s are not sent', (encoding, compress) => {
    const plain = 'nothing here'
    const headers = new Headers({ 'content-encoding': encoding })
    const body = new Uint8Array(Buffer.concat([compress(plain), bytes(`\0 warning: ${secret}`)]))
    const sent = redactAnswer({ headers, body }, compile([secret]))
    expect(new TextDecoder().decode(sent as Uint8Array)).toBe(plain)
    expect(headers.has('content-encoding')).toBe(false)
  })

  test('an answer without a secret, compressed or not, is the same array', () => {
    for (const [encoding, body] of [
      ['identity', bytes('nothing here, sk-or')],
      ['gzip', new Uint8Array(zlib.gzipSync('nothing here'))],
      ['deflate', new Uint8Array(zlib.deflateRawSync('nothing here'))],
    ] as const) {
      const headers = new Headers({ 'content-encoding': encoding, etag: '"1"' })
      expect(redactAnswer({ headers, body }, compile([secret]))).toBe(body)
      expect(headers.get('etag')).toBe('"1"')
    }
  })
})
