import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { readFileSync } from 'node:fs'
import http from 'node:http'
import { caddyPath, startCaddy } from '../harness/caddy'
import type { FrontProxy } from '../harness/front-proxy'
import { nginxPath, startNginx } from '../harness/nginx'

/** The samples of deploy/ in real proxies, in front of a server that tells what reached it. */

const kinds = [
  { name: 'nginx', path: nginxPath, start: startNginx, install: 'nginx-light' },
  { name: 'Caddy', path: caddyPath, start: startCaddy, install: 'caddy' },
] as const

/** Parts of the stream that were sent; the second one only after `release` was called. */
let release = () => {}
let server: ReturnType<typeof Bun.serve>
beforeAll(() => {
  server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    async fetch(request) {
      const { pathname } = new URL(request.url)
      if (pathname === '/stream') return stream()
      const body = await request.bytes()
      return Response.json({ headers: Object.fromEntries(request.headers), bytes: body.length })
    },
  })
})
afterAll(async () => server.stop(true))

function stream(): Response {
  const { promise, resolve } = Promise.withResolvers<void>()
  release = resolve
  async function* parts() {
    yield 'data: 1\n\n'
    await promise
    yield 'data: 2\n\n'
  }
  return new Response(parts(), { headers: { 'content-type': 'text/event-stream' } })
}

for (const { name, path, start, install } of kinds) {
  if (path === undefined)
    process.stderr.write(`SKIPPED: the tests behind ${name} need it (apt-get install ${install})\n`)

  describe.skipIf(path === undefined)(name, () => {
    let proxy: FrontProxy
    beforeAll(async () => {
      if (path !== undefined) proxy = await start(`http://127.0.0.1:${server.port}`)
    })
    afterAll(async () => proxy?.stop())

    const get = (path: string, init: RequestInit = {}) =>
      fetch(proxy.tlsUrl + path, { ...init, tls: { ca: proxy.cert } })

    test('the server gets the host, the scheme and the address of the client last', async () => {
      const answer = await get('/', { headers: { 'x-forwarded-for': '203.0.113.9' } })
      const { headers } = (await answer.json()) as { headers: Record<string, string> }
      expect(headers.host).toStartWith('localhost')
      expect(headers['x-forwarded-proto']).toBe('https')
      // What stands before it may be invented by the client.
      expect(headers['x-forwarded-for']?.split(', ').at(-1)).toMatch(/^(127\.0\.0\.1|::1)$/)
    })

    test('the first part of a stream arrives before the second is sent', async () => {
      const answer = await get('/stream')
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader()
      expect((await reader?.read())?.value).toBe('data: 1\n\n')
      release()
      expect((await reader?.read())?.value).toBe('data: 2\n\n')
      expect((await reader?.read())?.done).toBe(true)
    })

    test('a body of 10 MB passes, which turnpike limits itself', async () => {
      const body = new Uint8Array(10_000_000)
      const answer = await get('/', { method: 'POST', body })
      expect(await answer.json()).toMatchObject({ bytes: 10_000_000 })
    })

    test('the figures are shown to this machine only', async () => {
      expect((await fetch(`${proxy.url}/metrics`)).status).toBe(200)
      expect(await statusFrom('127.0.0.2', `${proxy.url}/metrics`)).toBe(403)
      expect(await statusFrom('127.0.0.2', `${proxy.url}/`)).toBe(200)
    })
  })
}

test.skipIf(nginxPath === undefined)(
  'nginx redirects to https with the method and the path',
  async () => {
    const nginx = await startNginx(`http://127.0.0.1:${server.port}`)
    const answer = await fetch(`${nginx.redirectUrl}/m/a/b?c=d`, { redirect: 'manual' })
    expect([answer.status, answer.headers.get('location')]).toEqual([
      308,
      'https://127.0.0.1/m/a/b?c=d',
    ])
    await nginx.stop()
  },
)

test.skipIf(caddyPath === undefined)('Caddy accepts its sample as it is', () => {
  const file = `${import.meta.dir}/../../deploy/Caddyfile`
  const run = (...args: string[]) => Bun.spawnSync([caddyPath ?? '', ...args])
  expect(run('adapt', '--config', file, '--validate').exitCode).toBe(0)
  // `caddy fmt` prints the file in its own form.
  expect(run('fmt', file).stdout.toString()).toBe(readFileSync(file, 'utf8'))
})

/** The status that a client at another address of this machine gets. */
function statusFrom(localAddress: string, url: string): Promise<number | undefined> {
  const { promise, resolve, reject } = Promise.withResolvers<number | undefined>()
  http
    .get(url, { localAddress, agent: false }, (answer) => {
      answer.resume()
      resolve(answer.statusCode)
    })
    .on('error', reject)
  return promise
}
