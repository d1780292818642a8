import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { createRateLimit } from '../../src/http/rate-limit'
import { type Asked, ask } from '../harness/buyer'
import { isSame, mutate, pick, random, textOf } from '../harness/mutants'
import { close, exchange, request } from '../harness/raw'
import { countOf } from '../harness/samples'
import {
  effects,
  mppPermit,
  mppUsdc,
  nothing,
  rewritten,
  startTarget,
  type Target,
  tampered,
  type Way,
  ways,
  x402Permit,
  x402Usdc,
} from '../harness/target'

let target: Target
let asked: Asked
beforeAll(async () => {
  target = await startTarget()
})
afterAll(() => target?.stop())
beforeEach(async () => {
  asked = await ask(at('a/get'))
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const linesOf = (headers: Record<string, string>) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${value}`)

/** Checks a problem: a 4xx status, without internals of the service. */
function expectProblem(what: unknown, status: number, headers: Headers, body: string): void {
  expect([what, status >= 400 && status < 500]).toEqual([what, true])
  expect([what, headers.get('content-type')]).toEqual([what, 'application/problem+json'])
  const problem = JSON.parse(body)
  expect([what, problem.status, typeof problem.code]).toEqual([what, status, 'string'])
  expect(headers.get('x-request-id')).not.toBeNull()
  expect(body).not.toMatch(/\bat \w|node_modules|\/src\/|SyntaxError|TypeError|SQLITE/)
}

/** Sends credentials and expects a problem for each, and no effect of all. */
async function refusedAll(credentials: readonly (readonly [unknown, Record<string, string>])[]) {
  const { result, ...caused } = await effects(target, async () => {
    for (const [what, headers] of credentials) {
      const response = await fetch(at('a/get'), { headers })
      expectProblem(what, response.status, response.headers, await response.text())
    }
  })
  expect(caused).toEqual(nothing)
}

describe('credentials', () => {
  const values: [string, string][] = [
    ['nothing', ''],
    ['one character', 'A'],
    ['no base64', '!!!!'],
    ['base64 with a space', 'e30= e30='],
    ['padding only', '===='],
    ['padding in the middle', 'e3=0'],
    ['too much padding', 'e30==='],
    ['left over bits', 'e31='],
    ['both alphabets', 'e30-_+/='],
    ['quotes', '"e30="'],
    ['the JSON itself', '{"x402Version":2}'],
    ['percent encoding', '%7B%7D'],
    ['a hundred braces', base64('{'.repeat(100))],
    ['no object', base64('[]')],
    ['null', base64('null')],
    ['a number', base64('5')],
    ['a string', base64('"x"')],
    ['an empty object', base64('{}')],
    ['a cut object', base64('{"x402Version":2,')],
    ['two objects', base64('{}{}')],
    ['a comment', base64('{"a":1}//')],
    ['a trailing comma', base64('{"a":1,}')],
    ['single quotes', base64("{'a':1}")],
    ['NaN', base64('{"x402Version":NaN}')],
    ['Infinity', base64('{"x402Version":Infinity}')],
    ['a byte order mark', base64('\ufeff{}')],
    ['half a character', base64(Uint8Array.of(0x7b, 0x22, 0xc3, 0x22, 0x3a, 0x31, 0x7d))],
    [
      'an overlong character',
      base64(Uint8Array.of(0x7b, 0x22, 0xc0, 0xaf, 0x22, 0x3a, 0x31, 0x7d)),
    ],
    ['UTF-16', base64(Buffer.from('{"x402Version":2}', 'utf16le'))],
    ['a lone surrogate', base64('{"x402Version":"\\ud800"}')],
    ['a NUL', base64('{"a":"\\u0000"}\0')],
    ['16 levels of arrays', base64(`{"a":${'['.repeat(16)}${']'.repeat(16)}}`)],
    ['5,000 levels of arrays', base64(`${'['.repeat(5000)}${']'.repeat(5000)}`)],
    ['1,500 levels of objects', base64(`${'{"a":'.repeat(1500)}1${'}'.repeat(1500)}`)],
    ['gzip', base64(Bun.gzipSync('{"x402Version":2}'))],
    ['almost as long as headers may be', 'A'.repeat(15_000)],
  ]

  test('attack 41: values that are not credentials', async () => {
    await refusedAll(
      values.flatMap(([what, value]) => [
        [what, { 'payment-signature': value }] as const,
        [what, { 'x-payment': value }] as const,
        [what, { authorization: `Payment ${value}` }] as const,
        [what, { 'payment-redeem': value }] as const,
      ]),
    )
  })

  test('attack 41: Authorization headers that resemble ours', async () => {
    const { authorization = '' } = await mppUsdc.pay(asked, buyer)
    const token = authorization.slice(8)
    const almost = [
      'Payment',
      'payment',
      'PAYMENT ',
      `Payment\t${token}`,
      `Payment  ${token.slice(1)}`,
      `Payment ${token} x`,
      // Padding that does not complete the last group.
      `Payment ${token}${token.length % 4 === 3 ? '==' : '='}`,
      `Payment token="${token}"`,
      `Payment credential=${token}`,
      `Bearer ${token}`,
      `Basic ${token}`,
      token,
      `Paymentx ${token}`,
    ]
    await refusedAll(almost.map((value) => [value, { authorization: value }]))
    expect((await fetch(at('a/get'), { headers: { authorization } })).status).toBe(200)
  })

  /** Every member of a credential's JSON, by its path. */
  function pathsOf(value: unknown, prefix = ''): string[] {
    if (typeof value !== 'object' || value === null) return []
    return Object.entries(value).flatMap(([name, member]) => [
      `${prefix}${name}`,
      ...pathsOf(member, `${prefix}${name}.`),
    ])
  }
  const wrong: unknown[] = [
    null,
    true,
    -1,
    0.5,
    1e21,
    '',
    'x',
    '0x',
    '\u0000',
    'x'.repeat(3000),
    [],
    {},
    [[]],
    { toString: 'x' },
  ]
  // These may be absent or have any content without an effect on the payment.
  const free = /^(?:resource|extensions|accepted\.extra$)|^source$|^challenge\.description/

  for (const way of [mppUsdc, mppPermit, x402Usdc, x402Permit]) {
    test(`attack 41: a credential with any member of the wrong type, ${way.name}`, async () => {
      const headers = await way.pay(asked, buyer)
      const paths = pathsOf(textOf(headers)).filter((path) => !free.test(path))
      expect(paths.length).toBeGreaterThan(15)
      const cases = paths.flatMap((path) => {
        // Members that may be omitted may also be null.
        const optional = path === 'accepted' || /\.spender$|witness\.validAfter$/.test(path)
        const all = optional ? wrong.filter((value) => value !== null) : [...wrong, undefined]
        return all.map((value) => [[path, value], tampered(headers, { [path]: value })] as const)
      })
      await refusedAll(cases)
      expect((await fetch(at('a/get'), { headers })).status).toBe(200)
    })

    test(`attack 41: duplicate members and __proto__, ${way.name}`, async () => {
      const headers = await way.pay(asked, buyer)
      const text = JSON.stringify(textOf(headers))
      const firsts = [...text.matchAll(/"(\w+)":("[^"]*"|\d+|\{|\[)/g)]
      const texts = [
        // Repeated with the same value, before and after.
        ...firsts.flatMap(([all, name, value = '']) =>
          /[{[]/.test(value)
            ? [text.replace(all, `"${name}":null,${all}`)]
            : [text.replace(all, `${all},${all}`), text.replace(all, `"${name}":"1",${all}`)],
        ),
        text.replace('{', '{"__proto__":{"payload":1},'),
        text.replace(/\{(?="(?:payload|authorization|type|signature)")/, '{"__proto__":{},'),
        text.replace('"payload":{', '"payload":{"__proto__":{"value":"1"},'),
        text.replace('"payload":{', '"payload":{"\\u005f_proto__":null,'),
        text.replace('"payload":', '"payload\\u0000":'),
        text.replace('"payload":', '"Payload":'),
        `${text.slice(0, -1)},"payload":{}}`,
        `${text.slice(0, -1)},"\\u0070ayload":{}}`,
      ]
      await refusedAll(texts.map((changed) => [changed, rewritten(headers, () => changed)]))
      expect((await fetch(at('a/get'), { headers })).status).toBe(200)
      expect(({} as Record<string, unknown>).payload).toBeUndefined()
    })
  }
})

describe('requests', () => {
  test('error: headers of a megabyte are refused without a second request being read', async () => {
    const long = 'A'.repeat(1 << 20)
    const huge = [
      [`Payment-Signature: ${long}`],
      [`Authorization: Payment ${long}`],
      [`X-Payment: ${long}`],
      [`Payment-Redeem: ${long}`],
      [`Idempotency-Key: ${long}`],
      [`X-${long}: a`],
      [`Cookie: ${long}`],
      Array.from({ length: 20_000 }, (_, index) => `X-${index}: ${'b'.repeat(40)}`),
    ]
    for (const lines of huge) {
      const { result, ...caused } = await effects(target, () =>
        exchange(target.url, request('/m/a/get', [...lines, close])),
      )
      const statuses = result.map(({ status }) => status)
      expect([lines[0]?.slice(0, 20), statuses]).toEqual([lines[0]?.slice(0, 20), [431]])
      expect(caused).toEqual(nothing)
    }
  })

  test('error: long URLs and bodies over the cap', async () => {
    const headers = await mppUsdc.pay(asked, buyer)
    const long = await fetch(at(`a/get?x=${'a'.repeat(9000)}`), { headers })
    expectProblem('long', long.status, long.headers, await long.text())
    expect(long.status).toBe(414)
    const body = new Uint8Array(11 * 1024 * 1024)
    const { result, ...caused } = await effects(target, () =>
      fetch(at('a/post'), { method: 'POST', body, headers }),
    )
    expect([result.status, caused]).toEqual([413, nothing])
    const lying = request('/m/a/post', ['Content-Length: 99999999999', ...linesOf(headers)], 'POST')
    const [refusal] = await exchange(target.url, lying.replace('\r\n\r\n', `\r\n${close}\r\n\r\n`))
    expect(refusal?.status).toBe(413)
  })

  test('error: a request with any host, absolute or empty, gets the same 4xx', async () => {
    const hosts = ['x', '', 'a@b', '[::', 'x/m/a/get?', 'x/zz', '%00', 'x:99999', 'evil.example:80']
    for (const host of hosts) {
      for (const path of ['/m/a/get', '/m/a/zz', '/openapi.json/x', '/x://y/m/a/get', '/zz']) {
        const text = `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${close}\r\n\r\n`
        const [answer] = await exchange(target.url, text)
        const status = answer?.status ?? 400
        expect([host, path, status >= 400 && status < 500]).toEqual([host, path, true])
      }
    }
    for (const path of ['/m/a/get', '/x://y/m/a/get', '/healthz', '/zz']) {
      const [answer] = await exchange(target.url, `GET ${path} HTTP/1.0\r\n${close}\r\n\r\n`)
      const expected: Record<string, number> = { '/healthz': 200, '/m/a/get': 402 }
      expect([path, answer?.status]).toEqual([path, expected[path] ?? 404])
    }
  })

  test('error: bytes that are not ASCII in credentials and keys', async () => {
    const { authorization = '' } = await mppUsdc.pay(asked, buyer)
    for (const byte of ['\x80', '\xff', '\xc3\xa9', '\xef\xbf\xbd']) {
      for (const lines of [
        [`Payment-Signature: ${byte}`],
        [`Authorization: Payment ${byte}`],
        [`Authorization: ${authorization}${byte}`],
        [`Payment-Redeem: ${byte}`],
        [`Authorization: ${authorization}`, `Idempotency-Key: ${byte}`],
      ]) {
        const { result, ...caused } = await effects(target, () =>
          exchange(target.url, request('/m/a/get', [...lines, close])),
        )
        const [answer] = result
        expectProblem(
          lines,
          answer?.status ?? 0,
          answer?.headers ?? new Headers(),
          answer?.body ?? '',
        )
        expect(caused).toEqual(nothing)
      }
    }
  })

  test('a clock that is set back refuses no client', () => {
    const rateLimit = createRateLimit()
    const now = 1_000_000_000
    expect(rateLimit.take('a', 60, now).ok).toBe(true)
    for (let count = 0; count < 60; count++)
      expect(rateLimit.take('a', 60, now - 3_600_000).ok).toBe(true)
    expect(rateLimit.take('a', 60, now - 3_600_000).ok).toBe(false)
  })
})

describe('fuzz', () => {
  test('error: hundreds of broken credentials are never served or stored, and never a 5xx', async () => {
    const die = random(41)
    const originals: [Way, Record<string, string>][] = []
    for (const way of ways) originals.push([way, await way.pay(await ask(at('a/get')), buyer)])
    const mutants: Record<string, string>[] = []
    while (mutants.length < countOf(20_000)) {
      const [, original] = pick(die, originals)
      const mutant = mutate(die, original)
      if (!isSame(original, mutant)) mutants.push(mutant)
    }
    const { result, ...caused } = await effects(target, () =>
      sendAll(mutants.map((headers) => ({ headers }))),
    )
    expect(result).toEqual([])
    expect(caused).toEqual(nothing)
    for (const [way, headers] of originals) {
      const response = await fetch(at('a/get'), { headers })
      expect([way.name, response.status]).toEqual([way.name, 200])
    }
  })

  test('error: hundreds of broken paths, queries and headers without a payment are never a 5xx', async () => {
    const die = random(23)
    const parts = [
      '/',
      '//',
      '/m',
      '/m/a',
      '/get',
      '/both',
      '..',
      '.',
      '%2e',
      '%2f',
      '%5c',
      '%00',
      '%ff',
      ';',
      '@',
      ':',
      '?',
      '&',
      '=',
      '#',
      'x',
      '~',
      '%',
      '%zz',
      '__proto__',
      'openapi.json',
      '%E2%80%A8',
      '%c0%af',
      '+',
      '*',
    ]
    const names = [
      'accept-payment',
      'origin',
      'x-forwarded-for',
      'x-forwarded-host',
      'x-http-method-override',
      'access-control-request-headers',
      'idempotency-key',
      'if-none-match',
      'content-type',
      'cookie',
    ]
    const cases = Array.from({ length: countOf(10_000) }, () => {
      let path = die(2) === 0 ? '/m/a/get' : ''
      for (let count = 0; count <= die(6); count++) path += pick(die, parts)
      const headers: Record<string, string> = {}
      for (let count = 0; count < die(4); count++)
        headers[pick(die, names)] = Array.from({ length: die(6) }, () => pick(die, parts)).join('')
      return { path: path.startsWith('/') ? path : `/${path}`, headers }
    })
    const { result, ...caused } = await effects(target, () => sendAll(cases))
    const documents = /^\/+(?:m\/a\/)?openapi\.json/
    // The pages for people are free.
    const isFree = (line: string) => documents.test(line) || line.includes('<!doctype html>')
    expect(result.filter((line) => !isFree(line))).toEqual([])
    expect(caused).toEqual(nothing)
  })

  /** Sends all, several at a time; returns those with an answer other than 4xx. */
  async function sendAll(
    cases: readonly { path?: string; headers: Record<string, string> }[],
  ): Promise<string[]> {
    const wrong: string[] = []
    let next = 0
    const worker = async () => {
      for (let index = next++; index < cases.length; index = next++) {
        const { path = '/m/a/get', headers } = cases[index] ?? { headers: {} }
        const response = await fetch(target.url + path, { headers, redirect: 'manual' })
        const body = await response.text()
        const isProblem = response.headers.get('content-type') === 'application/problem+json'
        if (response.status < 400 || response.status >= 500 || !isProblem)
          wrong.push(`${path} ${response.status} ${JSON.stringify(headers)} ${body.slice(0, 200)}`)
      }
    }
    await Promise.all(Array.from({ length: 8 }, worker))
    return wrong
  }
})

function base64(content: string | Uint8Array): string {
  return Buffer.from(content as Uint8Array).toString('base64')
}
