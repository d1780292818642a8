import { afterEach, expect, test } from 'bun:test'
import { connect } from 'node:net'
import { type HttpPortOptions, listenHttp } from '../../src/acme/http-port'
import { exchange } from '../harness/raw'
import { until } from '../harness/settlement'

/** The port of HTTP, on which the CA asks for its challenges. */

const cleanups: (() => unknown)[] = []
afterEach(() => {
  for (const cleanup of cleanups.splice(0).toReversed()) cleanup()
})

function listen(options: Partial<HttpPortOptions> = {}): string {
  const server = listenHttp({
    hostname: '127.0.0.1',
    port: 0,
    challenges: new Map([['token-1', 'token-1.thumbprint']]),
    domains: ['api.example.com', 'pay.example.com'],
    baseUrl: 'https://api.example.com',
    connectionsMax: 10_000,
    ...options,
  })
  cleanups.push(server.stop)
  return `http://127.0.0.1:${server.port}`
}

const challenge = '/.well-known/acme-challenge'
const ask = async (url: string, target: string, host = 'api.example.com', method = 'GET') => {
  const text = `${method} ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`
  const [answer] = await exchange(url, text)
  if (answer === undefined) throw new Error('no answer')
  const { status, headers, body } = answer
  return [status, headers.get('location') ?? body]
}

test('a challenge in progress is answered, and no other', async () => {
  const url = listen()
  expect(await ask(url, `${challenge}/token-1`)).toEqual([200, 'token-1.thumbprint'])
  expect(await ask(url, `http://api.example.com${challenge}/token-1`)).toEqual([
    200,
    'token-1.thumbprint',
  ])
  for (const token of ['token-2', '', 'token-1/', 'token-1?x', '../token-1', '__proto__'])
    expect(await ask(url, `${challenge}/${token}`)).toEqual([404, 'no challenge of this service'])
})

test('all other requests are redirected to the domain that was asked for', async () => {
  const url = listen()
  for (const method of ['GET', 'POST', 'HEAD', 'DELETE'])
    expect(await ask(url, '/m/a?b=c%20d', 'api.example.com', method)).toEqual([
      308,
      'https://api.example.com/m/a?b=c%20d',
    ])
  expect(await ask(url, '/', 'PAY.example.com:80')).toEqual([308, 'https://pay.example.com/'])
  const own = listen({ baseUrl: 'https://api.example.com:8443' })
  expect(await ask(own, '/a', 'pay.example.com')).toEqual([308, 'https://pay.example.com:8443/a'])
})

test('attack: the redirect names a domain of ours for any Host and any target', async () => {
  const url = listen()
  for (const host of ['evil.example.net', '', 'api.example.com.evil.net', 'api.example.com@evil'])
    expect(await ask(url, '/a', host)).toEqual([308, 'https://api.example.com/a'])
  for (const [target, path] of [
    ['//evil.example.net/x', '//evil.example.net/x'],
    ['http://evil.example.net/x', '/x'],
    ['@evil.example.net', '/'],
    ['.evil.example.net', '/'],
    ['/\\evil.example.net', '/'],
    ['*', '/'],
    ['/a\x01b', '/'],
    ['/\xe9', '/'],
  ] as const)
    expect([target, await ask(url, target)]).toEqual([
      target,
      [308, `https://api.example.com${path}`],
    ])
})

test('attack: bytes that are not a request get 400, and a second request of a connection no answer', async () => {
  const url = listen()
  for (const text of ['nonsense\r\n\r\n', 'GET /\r\n\r\n', `GET /${'a'.repeat(9000)}`])
    expect((await exchange(url, text)).map(({ status }) => status)).toEqual([400])
  const twice = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(2)
  expect(await exchange(url, twice)).toHaveLength(1)
})

test('attack: a flood has a quarter of the connections; the oldest end, and a request is answered', async () => {
  const url = listen({ connectionsMax: 80 })
  let ended = 0
  let opened = 0
  for (let count = 0; count < 60; count++) {
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    socket.on('error', () => undefined)
    socket.on('connect', () => opened++)
    socket.on('close', () => ended++)
    cleanups.push(() => socket.destroy())
  }
  await until(() => opened === 60 && ended === 40)
  expect(await ask(url, `${challenge}/token-1`)).toEqual([200, 'token-1.thumbprint'])
  await until(() => ended === 41)
})

test('error: a port that is taken fails', () => {
  const port = Number(new URL(listen()).port)
  expect(() => listen({ port })).toThrow('Failed to listen')
})
