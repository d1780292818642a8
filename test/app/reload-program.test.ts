import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { cookieOf, formHeaders } from '../harness/admin'
import { lineWith } from '../harness/config'
import { executable } from '../harness/executable'
import { until } from '../harness/world'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-reload-'))
const file = join(directory, 'merchants.toml')
const keyFile = join(directory, 'key')

const text = `
[service]
payout = "0x1111111111111111111111111111111111111111"
listen = "127.0.0.1:0"
base_url = "http://localhost"

[networks."eip155:8453"]
name = "Base"
rpc_urls = ["http://127.0.0.1:1"]
[networks."eip155:8453".asset]
symbol = "USDC"
address = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
transfer = ["eip3009"]
eip712 = { name = "USD Coin", version = "2" }

[[merchants]]
slug = "one"
upstream = "https://one.example.com"
headers = { "X-Key" = "\${ONE_KEY}" }
[[merchants.routes]]
path = "/a"
price = "0.005"
`

type Line = { event: string; ok?: boolean; faults?: string[]; merchants?: number; routes?: number }
const logged: Line[] = []
const said: string[] = []
const adminToken = 'an-admin-token-of-mine'
let url = ''
let child: ReturnType<typeof start>

function start() {
  writeFileSync(file, text)
  writeFileSync(keyFile, `0x${'11'.repeat(32)}`)
  return Bun.spawn([executable, 'serve'], {
    cwd: directory,
    env: {
      PATH: process.env.PATH,
      RELAYER_KEYS_FILE: keyFile,
      ONE_KEY: 'b@d"key',
      ADMIN_TOKEN: adminToken,
    },
    stdout: 'pipe',
    stderr: 'pipe',
  })
}

beforeAll(async () => {
  child = start()
  void follow(child.stdout, (line) => logged.push(JSON.parse(line)))
  void follow(child.stderr, (line) => {
    said.push(line)
    url ||= /listens on (http:\S+)/.exec(line)?.[1] ?? ''
  })
  await until('it listens', () => url !== '')
})
afterAll(async () => {
  child.kill('SIGKILL')
  await child.exited
  rmSync(directory, { recursive: true })
})

async function follow(stream: ReadableStream<Uint8Array>, take: (line: string) => void) {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of stream) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) take(line)
  }
}

/** Writes the file, sends the signal, and returns the log lines about it. */
async function reload(contents: string): Promise<Line> {
  writeFileSync(file, contents)
  const seen = logged.length
  child.kill('SIGHUP')
  const answer = () => logged.slice(seen).find(({ event }) => event.startsWith('reload'))
  await until('the reload is logged', () => answer() !== undefined)
  return answer() ?? { event: '' }
}

async function price(): Promise<string | undefined> {
  const page = await (await fetch(url)).text()
  return /class="price">\$([\d.]+)</.exec(page)?.[1]
}

/** A session at `/admin` of the program. `act` returns the page after an action. */
async function signIn() {
  const { host: _, ...headers } = formHeaders
  const post = (path: string, fields: Record<string, string>, cookie = '') =>
    fetch(url + path, {
      method: 'POST',
      body: new URLSearchParams(fields).toString(),
      headers: { ...headers, cookie },
      redirect: 'manual',
    })
  const cookie = cookieOf(await post('/admin', { token: adminToken }))
  const read = async (path = '') =>
    (await fetch(`${url}/admin${path}`, { headers: { cookie } })).text()
  const csrf = /name="csrf" value="([\w-]{43})"/.exec(await read())?.[1] ?? ''
  return {
    read,
    async act(action: string): Promise<string> {
      expect((await post(`/admin/actions/${action}`, { csrf }, cookie)).status).toBe(303)
      return read()
    },
  }
}

test('serve prints where its pages are, and that ADMIN_TOKEN signs in', async () => {
  await until('the banner is printed', () => said.some((line) => line.includes('sells 1 route')))
  expect(said).toContain(`  pages for buyers http://localhost/`)
  expect(said).toContain(`  pages for you    http://localhost/admin  sign in with ADMIN_TOKEN`)
})

describe('SIGHUP', () => {
  test('SIGHUP applies the file', async () => {
    expect(await price()).toBe('0.005')
    const line = await reload(text.replace('0.005', '0.25'))
    expect(line).toMatchObject({ event: 'reloaded', merchants: 1, routes: 1 })
    expect(await price()).toBe('0.25')
  })

  test('error: a broken file is refused with every fault and its line, and the old one stays', async () => {
    await reload(text)
    const broken = text.replace('"/a"', '"a"').replace('slug = "one"', 'slug = "one"\nprise = 1')
    const line = await reload(broken)
    expect(line.event).toBe('reload-refused')
    expect(line.faults).toHaveLength(2)
    expect(line.faults?.join('\n')).toContain(`merchants.toml:${lineWith(broken, 'prise')}: `)
    expect(line.faults?.join('\n')).toContain(`merchants.toml:${lineWith(broken, 'path')}: `)
    expect(await price()).toBe('0.005')
  })

  test('error: an invalid or missing file changes nothing', async () => {
    expect((await reload('[[merchants]\n')).faults?.[0]).toStartWith('merchants.toml:1: ')
    rmSync(file)
    const seen = logged.length
    child.kill('SIGHUP')
    await until('it is logged', () => logged.length > seen)
    expect(logged.at(-1)?.event).toBe('reload-refused')
    expect(await price()).toBe('0.005')
  })

  test('error: a change that needs a restart is reported with its line, and nothing else is applied', async () => {
    const moved = text
      .replace('127.0.0.1:0', '127.0.0.1:4444')
      .replace('http://127.0.0.1:1', 'http://127.0.0.1:2')
      .replace('0.005', '0.25')
    const { event, faults } = await reload(moved)
    expect(event).toBe('reload-refused')
    expect(faults).toEqual([
      `merchants.toml:${lineWith(moved, 'listen')}: service.listen has changed, which needs a restart`,
      `merchants.toml:${lineWith(moved, 'rpc_urls')}: networks.eip155:8453.rpc_urls has changed, which needs a restart`,
    ])
    expect(await price()).toBe('0.005')
  })

  test('error: another relayer key needs a restart', async () => {
    writeFileSync(keyFile, `0x${'22'.repeat(32)}`)
    const { event, faults } = await reload(text.replace('0.005', '0.25'))
    expect(event).toBe('reload-refused')
    expect(faults?.join()).toContain('relayer keys')
    writeFileSync(keyFile, `0x${'11'.repeat(32)}`)
    expect(await price()).toBe('0.005')
  })

  test('/admin reloads the file, shows the faults of a broken one, and makes a backup', async () => {
    const admin = await signIn()
    writeFileSync(file, text.replace('0.005', '0.75'))
    expect(await admin.read('/configuration')).toContain(`<code class="hash">${file}</code>`)
    expect(await admin.act('reload')).toContain('The file is in force.')
    expect(await price()).toBe('0.75')
    writeFileSync(file, text.replace('price = "0.005"', 'price = "<b>free</b>"'))
    const refused = await admin.act('reload')
    expect(refused).toContain('Nothing was changed: merchants.toml:')
    expect(refused).not.toContain('<b>free')
    expect(await price()).toBe('0.75')
    await reload(text)
    const done = await admin.act('backup')
    const copy = /backups\/(turnpike-[\dT-]+\.sqlite): \d+ bytes, checked/.exec(done)?.[1] ?? ''
    const copies = join(directory, 'data', 'backups')
    expect(readdirSync(copies)).toEqual([copy])
    expect(statSync(join(copies, copy)).mode & 0o777).toBe(0o600)
    const actions = logged.filter(({ event }) => event === 'admin-action')
    expect(actions.map(({ ok }) => ok)).toEqual([true, false, true])
  })

  test('SIGTERM after a reload ends the program with 0', async () => {
    child.kill('SIGTERM')
    child.kill('SIGHUP')
    expect(await child.exited).toBe(0)
  })
})
