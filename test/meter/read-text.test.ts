import { afterAll, describe, expect, test } from 'bun:test'
import zlib from 'node:zlib'
import { readText, TooLongError } from '../../src/net/read-text'
import { outcomeOf } from '../harness/outcome'

/** 64 MiB of spaces in a few hundred bytes. */
const bomb = zlib.brotliCompressSync(Buffer.alloc(64 << 20, ' '), {
  params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 },
})
const text = 'price '.repeat(1000)
const server = Bun.serve({
  hostname: '127.0.0.1',
  port: 0,
  routes: {
    '/bomb': () => new Response(bomb, { headers: { 'content-encoding': 'br' } }),
    '/long': () => new Response(text),
    '/endless': () => new Response(new Blob([text, text]).stream()),
    '/packed': () => new Response(zlib.gzipSync(text), { headers: { 'content-encoding': 'gzip' } }),
    '/none': () => new Response(null),
  },
})
afterAll(() => server.stop(true))
const ask = (path: string) => fetch(new URL(path, server.url))

describe('the answer of another server', () => {
  test('attack: a compressed answer is not decompressed beyond the limit', async () => {
    const response = await ask('/bomb')
    const before = process.memoryUsage.rss()
    expect(await outcomeOf(readText(response, 1 << 20))).toThrow(TooLongError)
    expect(process.memoryUsage.rss() - before).toBeLessThan(32 << 20)
  })

  test('error: an answer above the limit is refused, whether its length is announced or not', async () => {
    for (const path of ['/long', '/endless', '/packed'])
      expect(await outcomeOf(ask(path).then((answer) => readText(answer, 100)))).toThrow(
        'more than 100 bytes',
      )
  })

  test('an answer within the limit is read whole', async () => {
    expect(await readText(await ask('/long'), text.length)).toBe(text)
    expect(await readText(await ask('/packed'), text.length)).toBe(text)
    expect(await readText(await ask('/endless'), 2 * text.length)).toBe(text + text)
    expect(await readText(await ask('/none'), 0)).toBe('')
  })
})
