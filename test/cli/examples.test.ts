import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as App from '../../src/app'
import { loadSecrets } from '../../src/config/env'
import { account } from '../../src/demo/accounts'
import { buyWithX402 } from '../../src/demo/buyers'
import type { Chain } from '../../src/demo/chains'
import { silent } from '../../src/log'
import { startChains } from '../harness/chains'
import { configOf, payout } from '../harness/config'

/** The examples of docs/examples: each API is started as its page says, sold by its file, and bought. */

const examples = join(import.meta.dir, '../../docs/examples')
const base = 'eip155:8453'
const directory = mkdtempSync(join(tmpdir(), 'turnpike-examples-'))
const key = 'choose-one'
/** Debian has its packages for its own Python only. */
const python = '/usr/bin/python3'
const hasFastApi = Bun.spawnSync([python, '-c', 'import fastapi, uvicorn']).success
if (!hasFastApi)
  process.stderr.write(
    'SKIPPED: the example in FastAPI needs it (apt-get install python3-fastapi uvicorn)\n',
  )

let chain: Chain
const running: Bun.Subprocess[] = []
beforeAll(async () => {
  const [started] = await startChains(configOf(textOf('openai', 'http://127.0.0.1:1')).networks)
  if (started === undefined) throw new Error('no chain')
  chain = started
})
afterAll(async () => {
  for (const child of running) child.kill('SIGKILL')
  await Promise.all(running.map(({ exited }) => exited))
  await chain?.stop()
  rmSync(directory, { recursive: true, force: true })
})

/** The file of an example, with the API and the node of this run. */
function textOf(name: string, api: string, rpc = 'http://127.0.0.1:1'): string {
  const text = readFileSync(join(examples, name, 'merchants.toml'), 'utf8')
  return `${text.replace(/^upstream = .*$/m, `upstream = "${api}"`)}
[networks."${base}"]
rpc_urls = ["${rpc}"]
`
}

/** Starts the API of an example. Resolves with the URL that it prints. */
async function startApi(name: string, command: readonly string[]): Promise<string> {
  const child = Bun.spawn([...command], {
    cwd: join(examples, name),
    env: { ...process.env, PORT: '0', API_KEY: key, PYTHONDONTWRITEBYTECODE: '1' },
    stdout: 'pipe',
    stderr: 'pipe',
  })
  running.push(child)
  let printed = ''
  const read = async (stream: ReadableStream<Uint8Array>) => {
    for await (const chunk of stream) {
      printed += new TextDecoder().decode(chunk)
      const [url] = /http:\/\/127\.0\.0\.1:\d+/.exec(printed) ?? []
      if (url !== undefined) return url
    }
    throw new Error(`${name} ended: ${printed}`)
  }
  return Promise.any([read(child.stdout), read(child.stderr)])
}

/** Sells an example, and returns what buys a path of it. */
async function sell(name: string, api: string) {
  const env = { PAYOUT: payout, API_KEY: key, RELAYER_KEYS: account(0).privateKey }
  const text = textOf(name, api, chain.url)
  const config = configOf(text, { env, overrides: { listen: '127.0.0.1:0' } })
  const dataDir = join(directory, name)
  const secrets = loadSecrets({ dataDir, env })
  const app = await App.start({ config, secrets, dataDir, log: silent })
  const terms = { network: base, method: 'eip3009' } as const
  return {
    async buy(path: string, body?: object) {
      const init = body && {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      }
      const url = `${app.url}/m/${path}`
      const { response, body: answer } = await buyWithX402({ config }, url, account(1), {
        ...terms,
        init,
      })
      return [response.status, answer]
    },
    /** The answer to a request without a payment. */
    ask: (path: string) => fetch(`${app.url}/m/${path}`),
    [Symbol.asyncDispose]: () => app.stop(),
  }
}

test('Express', async () => {
  const api = await startApi('express', ['node', 'app.mjs'])
  expect((await fetch(`${api}/convert?celsius=1`)).status).toBe(401)
  await using shop = await sell('express', api)
  const unpaid = await shop.ask('units/convert?celsius=warm')
  expect([unpaid.status, await unpaid.text()]).toEqual([402, expect.stringContaining('celsius')])
  expect(await shop.buy('units/convert?celsius=21.5')).toEqual([
    200,
    '{"celsius":21.5,"fahrenheit":70.7}',
  ])
  expect(await shop.buy('units/words', { text: 'one two' })).toEqual([200, '{"words":2}'])
})

test.skipIf(!hasFastApi)('FastAPI', async () => {
  const api = await startApi('fastapi', [python, '-m', 'uvicorn', 'app:app', '--port', '0'])
  expect((await fetch(`${api}/primes/10`)).status).toBe(401)
  await using shop = await sell('fastapi', api)
  expect(await shop.buy('numbers/primes/20')).toEqual([200, '[2,3,5,7,11,13,17,19]'])
  expect(await shop.buy('numbers/count', { text: 'a 1 b' })).toEqual([200, '{"letters":2}'])
})

test('an OpenAI-compatible server', async () => {
  const api = await startApi('openai', ['node', 'server.mjs'])
  await using shop = await sell('openai', api)
  const chat = { model: 'echo-1', max_tokens: 5, messages: [{ role: 'user', content: 'say it' }] }
  const [status, answer] = await shop.buy('model/chat', chat)
  expect([status, JSON.parse(`${answer}`).choices[0].message.content]).toEqual([200, 'say it'])
  const [, streamed] = await shop.buy('model/chat', { ...chat, stream: true })
  expect(streamed).toMatch(/"say "[\s\S]*"it "[\s\S]*completion_tokens[\s\S]*\[DONE\]/)
})
