import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { health } from '../../src/cli/operate/health'
import { exitCode } from '../harness/command'
import { executable } from '../harness/executable'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-health-'))
const file = join(directory, 'merchants.toml')

let status = 200
let asked: string[] = []
let server: ReturnType<typeof Bun.serve>
beforeAll(() => {
  server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    fetch(request) {
      asked.push(new URL(request.url).pathname)
      return new Response(null, { status, headers: { location: '/other' } })
    },
  })
})
beforeEach(() => {
  status = 200
  asked = []
})
afterAll(async () => {
  await server.stop(true)
  rmSync(directory, { recursive: true })
})

async function ask(listen: string, url?: string) {
  writeFileSync(
    file,
    `[service]\nlisten = ${listen}\n[networks]\nbroken = "the rest is not read"\n`,
  )
  const lines: string[] = []
  const env = { PORT: `${server.port}` }
  const code = await exitCode(health, { file, env, url, out: (line) => void lines.push(line) })
  return { code, text: lines.join('\n') }
}

test('health asks /healthz at the address of the file, and its exit code is the answer', async () => {
  const here = `http://127.0.0.1:${server.port}`
  for (const listen of [
    `"127.0.0.1:${server.port}"`,
    `"0.0.0.0:${server.port}"`,
    `"0.0.0.0:\${PORT}"`,
  ])
    expect(await ask(listen)).toEqual({ code: 0, text: `${here} can sell` })
  status = 503
  const text = `${here} cannot sell now: ${here}/readyz names the reason`
  expect(await ask(`"127.0.0.1:${server.port}"`)).toEqual({ code: 1, text })
  expect(new Set(asked)).toEqual(new Set(['/healthz']))
})

test('--url asks another address, and a redirect is no answer', async () => {
  const base = `http://localhost:${server.port}`
  expect((await ask('"127.0.0.1:1"', `${base}/`)).code).toBe(0)
  status = 302
  const { code, text } = await ask('"127.0.0.1:1"', base)
  expect([code, text]).toEqual([1, expect.stringContaining('answers 302')])
  expect(asked).toEqual(['/healthz', '/healthz'])
})

test('error: an address that cannot be asked is reported with exit code 1', async () => {
  const cases: [string, string | undefined, string][] = [
    ['"127.0.0.1:1"', undefined, 'http://127.0.0.1:1 does not answer: is serve running?'],
    ['"[::]:1"', undefined, 'http://[::1]:1 does not answer'],
    ['4020', undefined, 'listen must be host:port'],
    ['"127.0.0.1:1"', 'file:///etc/passwd', '--url is the base URL'],
    ['"127.0.0.1:1"', 'api.example.com', '--url is the base URL'],
  ]
  for (const [listen, url, message] of cases) {
    const { code, text } = await ask(listen, url)
    expect([code, text]).toEqual([1, expect.stringContaining(message)])
  }
  expect(asked).toEqual([])
})

test('a proxy of the environment is not asked for the own address', async () => {
  await ask(`"127.0.0.1:${server.port}"`)
  asked = []
  const proxy = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response('proxy') })
  const env = { http_proxy: proxy.url.href, HTTP_PROXY: proxy.url.href }
  status = 503
  const run = Bun.spawn([executable, 'health', '--config', file], { env, stdout: 'ignore' })
  expect([await run.exited, asked]).toEqual([1, ['/healthz']])
  await proxy.stop(true)
})
