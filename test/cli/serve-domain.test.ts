import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as App from '../../src/app'
import { loadSecrets } from '../../src/config/env'
import { parseConfig } from '../../src/config/merchants'
import { createLog } from '../../src/log'
import { executable } from '../harness/executable'
import { connect, connected, type Peer } from '../harness/https'
import { outcomeOf } from '../harness/outcome'
import { freePorts, type Pebble, pebblePath, startPebble } from '../harness/pebble'
import { until } from '../harness/settlement'

/** The whole service with `--domain`, and certificates of a real ACME server. */

const isMissing = pebblePath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the tests of --domain need pebble (apt-get install pebble)\n')

const name = 'api.example.test'
const years = 365 * 24 * 3_600_000
const adminToken = 'an-admin-token-of-mine'
const env = {
  RELAYER_KEYS: `0x${'11'.repeat(32)}`,
  ADMIN_TOKEN: adminToken,
  PATH: process.env.PATH ?? '',
}

const text = `
[service]
payout = "0x1111111111111111111111111111111111111111"
stop_seconds = 5

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
[[merchants.routes]]
path = "/a"
price = "0.005"
`

let pebble: Pebble
let directory: string
const open: { stop(): Promise<unknown> }[] = []
beforeAll(async () => {
  if (isMissing) return
  directory = mkdtempSync(join(tmpdir(), 'turnpike-domain-'))
  pebble = await startPebble()
})
afterEach(async () => {
  for (const each of open.splice(0)) await each.stop()
})
afterAll(async () => {
  await pebble?.stop()
  if (directory !== undefined) rmSync(directory, { recursive: true, force: true })
})

type Service = { port: number; dataDir: string; events: () => string[]; pass(ms: number): void }

/** The service in this process. `from`: a data directory to start with. */
async function start(
  to: string,
  options: { from?: string; httpPort?: number; aheadMs?: number } = {},
): Promise<Service> {
  const dataDir = join(directory, to)
  if (options.from !== undefined)
    cpSync(join(directory, options.from, 'certificate.pem'), join(dataDir, 'certificate.pem'))
  const { config } = parseConfig(text, { file: 'merchants.toml', env, domains: [name] })
  if (config === undefined) throw new Error('the file has faults')
  const [port = 0] = await freePorts(1)
  const lines: string[] = []
  let aheadMs = options.aheadMs ?? 0
  const app = await App.start({
    config,
    secrets: loadSecrets({ dataDir, env }),
    dataDir,
    log: createLog({ write: (line) => void lines.push(line), pretty: false }),
    now: () => Date.now() + aheadMs,
    // The runtime ends idle connections up to four seconds early.
    idleSeconds: 6,
    https: {
      domains: [name],
      hostname: '127.0.0.1',
      httpPort: options.httpPort ?? pebble.httpPort,
      httpsPort: port,
      directoryUrl: pebble.directoryUrl,
      ca: pebble.ca,
      checkMs: 5,
    },
  })
  open.push(app)
  expect(app.url).toBe(`https://127.0.0.1:${port}`)
  return {
    port,
    dataDir,
    events: () =>
      lines.map((line) => JSON.parse(line).event).filter((event) => /^cert/.test(event)),
    pass(ms) {
      aheadMs += ms
    },
  }
}

const to = (port: number) => connected({ port, name, ca: pebble.root })

/** Sends a request and waits for the end of the answer. */
async function ask(peer: Peer, path: string, method = 'GET', more = ''): Promise<string> {
  const before = peer.received().length
  peer.send(`${method} ${path} HTTP/1.1\r\nHost: ${name}\r\n${more}\r\n`)
  const answer = () => peer.received().slice(before)
  await until(() => {
    const [head = '', body = ''] = answer().split('\r\n\r\n')
    const length = /content-length: (\d+)/i.exec(head)?.[1]
    const isWhole =
      method === 'HEAD' ? answer().includes('\r\n\r\n') : body.length >= Number(length)
    if (!isWhole && peer.isClosed()) throw new Error(`no answer for ${path}`)
    return isWhole
  })
  return answer()
}

describe.skipIf(isMissing)('the service with a domain', () => {
  test('the first start gets a certificate, then serves as over HTTP', async () => {
    const limited = { status: 429, headers: { 'retry-after': '1' }, body: {} }
    pebble.refuse(() => limited)
    const service = await start('first')
    await until(() => service.events().length === 1)
    // Nothing listens before there is a certificate.
    expect(await connect({ port: service.port, name })).toContain('ECONNREFUSED')
    pebble.refuse(undefined)
    service.pass(70_000)
    await until(() => service.events().length === 2)
    expect(service.events()).toEqual(['certificate-failed', 'certificate-issued'])

    const peer = await to(service.port)
    expect([peer.names, peer.fault, peer.curve]).toEqual([`DNS:${name}`, undefined, 'prime256v1'])
    const home = await ask(peer, '/')
    expect(home).toStartWith('HTTP/1.1 200 OK\r\n')
    expect(home.toLowerCase()).toContain('\r\nstrict-transport-security: max-age=31536000\r\n')
    expect(await ask(peer, '/%6Fpenapi.json')).toContain(`https://${name}`)
    expect(await ask(peer, '/m/one/b')).toStartWith('HTTP/1.1 404')
    expect(await ask(peer, '/m/%6Fne/a?x=1')).toStartWith('HTTP/1.1 503')
    expect(await ask(peer, '/nothing')).toStartWith('HTTP/1.1 404')
    expect((await ask(peer, '/healthz', 'HEAD')).toLowerCase()).toContain('\r\ndate: ')
    expect(await ask(peer, '/readyz')).toContain('"certificates":[]')
    expect(await ask(peer, '/metrics')).toStartWith('HTTP/1.1 401')
    const bearer = `Authorization: Bearer ${adminToken}\r\n`
    expect(await ask(peer, '/metrics', 'GET', bearer)).toMatch(
      /certificate_expires_seconds\{.*\} 1\d{8}\n/,
    )
    peer.end()
    const plain = await fetch(`http://127.0.0.1:${pebble.httpPort}/a?b`, { redirect: 'manual' })
    expect([plain.status, plain.headers.get('location')]).toEqual([308, `https://${name}/a?b`])
  })

  test('after a renewal new connections get the new certificate', async () => {
    const service = await start('renewal', { from: 'first' })
    let kept = await to(service.port)
    const first = kept.serial
    await ask(kept, '/healthz')
    service.pass(4 * years)
    // Used again and again: a client opens another connection only after it was told.
    await until(async () => {
      // As clients do: a connection that was kept may end between two requests.
      const answer = await ask(kept, '/healthz').catch(() => 'HTTP/1.1\r\nconnection: close\r\n')
      if (!/\r\nconnection: close\r\n/i.test(answer)) return false
      kept.end()
      kept = await to(service.port)
      return kept.serial !== first
    })
    expect([kept.names, kept.fault]).toEqual([`DNS:${name}`, undefined])
    expect(await ask(kept, '/healthz')).not.toMatch(/\r\nconnection: close\r\n/i)
    kept.end()
    expect(service.events()).toEqual(['certificate-issued'])
  })

  test('clients are distinguished by their addresses', async () => {
    const { port } = await start('addresses', { from: 'first' })
    const signIn = async (from: string) => {
      const peer = await connected({ port, name, from })
      const answer = await ask(peer, '/admin', 'POST')
      peer.end()
      return answer.slice(9, 12)
    }
    const statuses = new Set<string>()
    await until(async () => statuses.add(await signIn('127.0.0.1')).has('429'))
    expect(statuses.size).toBe(2)
    expect(await signIn('127.0.0.2')).not.toBe('429')
  })

  test('error: a failed renewal keeps the present certificate, and readyz says it', async () => {
    const [httpPort = 0] = await freePorts(1)
    const service = await start('stays', { from: 'first', httpPort, aheadMs: 4.6 * years })
    await until(() => service.events().length === 1)
    const peer = await to(service.port)
    expect([peer.names, peer.fault]).toEqual([`DNS:${name}`, undefined])
    const ready = await ask(peer, '/readyz')
    expect(ready).toContain(`"certificates":[{"domain":"${name}","reason":"its certificate was not`)
    peer.end()
    expect(service.events()).toEqual(['certificate-failed'])
  })

  test('error: a port that is taken ends the start, before any order', async () => {
    const { promise, resolve } = Promise.withResolvers<number>()
    const taken = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
    resolve(taken.port ?? 0)
    const before = pebble.asked.length
    expect(await outcomeOf(start('taken', { httpPort: await promise }))).toThrow(
      `port ${taken.port} is in use by another program: stop it, or name another port by --http-port`,
    )
    await taken.stop(true)
    expect(pebble.asked.length).toBe(before)
  })
})

describe.skipIf(isMissing)('turnpike serve --domain', () => {
  /** The executable with a file, on ports of its own. */
  async function run(file: string, data: string, ports: number[]) {
    const [httpsPort = 0, httpPort = 0] = ports
    const flags = ['--https-port', `${httpsPort}`, '--http-port', `${httpPort}`]
    const child = Bun.spawn(
      [executable, 'serve', '--config', file, '--data', data, '--domain', name, ...flags],
      {
        env: {
          ...env,
          ACME_DIRECTORY_URL: pebble.directoryUrl,
          ACME_CA_FILE: join(directory, 'ca.pem'),
        },
        stdin: 'ignore',
        stdout: 'pipe',
        stderr: 'pipe',
      },
    )
    const said = { out: '', err: '' }
    const read = async (which: 'out' | 'err', stream: ReadableStream<Uint8Array>) => {
      const decoder = new TextDecoder()
      for await (const chunk of stream) said[which] += decoder.decode(chunk)
    }
    const reading = Promise.all([read('out', child.stdout), read('err', child.stderr)])
    const end = async (signal: NodeJS.Signals = 'SIGTERM') => {
      child.kill(signal)
      const code = await child.exited
      await reading
      return code
    }
    open.push({ stop: () => end('SIGKILL') })
    return { said, child, end }
  }

  test('serve --domain gets a certificate, obeys its signals, and starts again with it', async () => {
    writeFileSync(join(directory, 'ca.pem'), pebble.ca)
    const file = join(directory, 'merchants.toml')
    const data = join(directory, 'executable')
    writeFileSync(file, text)
    const [port = 0] = await freePorts(1)
    const first = await run(file, data, [port, pebble.httpPort])
    await until(() => first.said.out.includes('certificate-issued'))
    const peer = await to(port)
    expect(await ask(peer, '/')).toStartWith('HTTP/1.1 200')
    expect(first.said.err).toContain(
      `turnpike listens on https://[::]:${port} as https://${name}\n`,
    )
    expect(first.said.err).toContain(`  ${name}: no certificate yet`)

    first.child.kill('SIGHUP')
    await until(() => first.said.out.includes('"reloaded"'))
    writeFileSync(file, text.replace('[service]', '[service]\nbase_url = "https://b.example.test"'))
    first.child.kill('SIGHUP')
    await until(() => first.said.out.includes('reload-refused'))
    expect(first.said.out).toContain('contradicts --domain')
    writeFileSync(file, text)
    peer.end()
    expect(await first.end()).toBe(0)
    expect(first.said.out + first.said.err).not.toContain('PRIVATE')

    const before = pebble.asked.length
    const second = await run(file, data, [port, pebble.httpPort])
    await until(() => second.said.err.includes('listens on'))
    const again = await to(port)
    expect([again.serial, second.said.err.includes('no certificate')]).toEqual([peer.serial, false])
    again.end()
    expect(await second.end()).toBe(0)
    expect(pebble.asked.length).toBe(before)
  })
})
