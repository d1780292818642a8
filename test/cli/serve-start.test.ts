import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Db, open } from '../../db/sqlite/open'
import * as App from '../../src/app'
import { createOutput } from '../../src/cli/output'
import { loadSecrets } from '../../src/config/env'
import { silent } from '../../src/log'
import { configOf, stockTable } from '../harness/config'
import { executable } from '../harness/executable'
import { outcomeOf } from '../harness/outcome'
import { until } from '../harness/settlement'

/** The program itself: starts that fail, and a log that is not read. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-serve-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const text = (listen: string) => `
[service]
payout = "0x1111111111111111111111111111111111111111"
listen = "${listen}"
base_url = "https://pay.test"
metrics = "public"

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

let serial = 0
function command(listen: string, data = `data-${++serial}`): string[] {
  const file = join(directory, `m${++serial}.toml`)
  writeFileSync(file, text(listen))
  return [executable, 'serve', '--config', file, '--data', join(directory, data)]
}

const env = { PATH: process.env.PATH ?? '', RELAYER_KEYS: `0x${'11'.repeat(32)}` }

async function run(listen: string, data?: string) {
  const child = Bun.spawn(command(listen, data), { env, stdout: 'ignore', stderr: 'pipe' })
  const [err, code] = await Promise.all([new Response(child.stderr).text(), child.exited])
  return { code, err }
}

describe('a start that fails', () => {
  test('error: an address in use is reported, and the program ends', async () => {
    const other = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
    const address = `127.0.0.1:${other.port}`
    const { code, err } = await run(address)
    await other.stop(true)
    expect([code, err]).toEqual([
      1,
      `turnpike: ${address} is in use by another program: stop that program, or name another port by listen under [service]\n`,
    ])
  })

  for (const address of ['203.0.113.5:4020', '[2001:db8::5]:4020', 'no.such.host.invalid:4020'])
    test(`error: ${address}, which is no address of this machine, ends the program`, async () => {
      const { code, err } = await run(address)
      expect([code, err]).toEqual([
        1,
        expect.stringMatching(/^turnpike: \S+ is no address to listen on here \(E[A-Z]+\)/),
      ])
      expect(err).toContain(address)
    })

  test('error: an empty database in place of an earlier one is reported, and the program ends', async () => {
    const other = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
    const address = `127.0.0.1:${other.port}`
    expect((await run(address, 'lost')).err).toContain('in use')
    await other.stop(true)
    const file = join(directory, 'lost', 'turnpike.sqlite')
    truncateSync(file, 0)
    const { code, err } = await run('127.0.0.1:0', 'lost')
    expect([code, err]).toEqual([1, expect.stringContaining(`turnpike: ${file} is empty`)])
  })
})

test('error: a start that fails late stops all parts that it started', async () => {
  const polls: string[] = []
  const node = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    async fetch(request) {
      const { id } = (await request.json()) as { id: number }
      polls.push(new URL(request.url).pathname)
      return Response.json({ jsonrpc: '2.0', id, error: { code: -32000, message: 'no' } })
    },
  })
  const free = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
  const listen = `127.0.0.1:${free.port}`
  await free.stop(true)
  const optionsFor = (name: string) => {
    const dataDir = join(directory, name)
    const config = configOf(text(listen).replace('http://127.0.0.1:1', `${node.url}${name}`))
    return { config, secrets: loadSecrets({ dataDir, env }), dataDir, log: silent }
  }
  let db: Db | undefined
  const late = optionsFor('late')
  const started = App.start({
    ...late,
    openDatabase(from) {
      db = open(from)
      db.sqlite.run('DROP TABLE merchants')
      return db
    },
  })
  expect(await outcomeOf(started)).toThrow('merchants')
  expect(() => db?.sqlite.query('SELECT 1').get()).toThrow('closed')
  expect(await outcomeOf(fetch(`http://${listen}/healthz`))).toThrow()
  // The lock is released.
  open({ dataDir: late.dataDir, now: Date.now }).close()
  // A start that succeeds has the address, and polls its node; the other one does not.
  const sound = await App.start(optionsFor('sound'))
  const rounds = polls.length
  await until(() => polls.length >= rounds * 3)
  await sound.stop()
  await node.stop(true)
  expect(new Set(polls)).toEqual(new Set(['/sound']))
})

const stock = stockTable('eip155:8453')

test('error: a start that cannot read the orders to continue fails', async () => {
  const dataDir = join(directory, 'orders')
  const started = App.start({
    config: configOf(text('127.0.0.1:0') + stock),
    secrets: loadSecrets({ dataDir, env }),
    dataDir,
    log: silent,
    openDatabase(from) {
      const db = open(from)
      db.sqlite.run('DROP TABLE orders')
      return db
    },
  })
  expect(await outcomeOf(started)).toThrow('orders')
})

describe('a log that is not read', () => {
  test('error: a closed stdout loses lines of the log, and the service continues', async () => {
    const data = 'unread'
    const child = Bun.spawn(command('127.0.0.1:0', data), {
      // An empty value is none, as in files of containers.
      env: { ...env, ADMIN_TOKEN: '' },
      stdout: 'pipe',
      stderr: 'pipe',
    })
    try {
      let err = ''
      const decoder = new TextDecoder()
      const reading = (async () => {
        for await (const chunk of child.stderr) err += decoder.decode(chunk)
      })()
      await until(() => /listens on \S+/.test(err))
      const url = /listens on (\S+)/.exec(err)?.[1] ?? ''
      await child.stdout.cancel()
      const dropped = async () => {
        const metrics = await (await fetch(`${url}/metrics`)).text()
        return Number(/^turnpike_log_lines_dropped_total (\d+)/m.exec(metrics)?.[1])
      }
      // Each logs one line. The pipe may still accept the first ones: it closes after `cancel`.
      await until(async () => {
        child.kill('SIGHUP')
        return (await dropped()) >= 1
      })
      for (let count = 2; count <= 3; count++) {
        child.kill('SIGHUP')
        await until(async () => (await dropped()) >= count)
      }
      child.kill('SIGTERM')
      expect(await child.exited).toBe(0)
      await reading
      const lines = err.split('\n').filter((line) => line.includes('cannot be written'))
      expect(lines).toEqual(['turnpike: the log cannot be written (EPIPE): lines are dropped'])
      // The banner counts what is sold, says where the pages are, and warns of how clients reach it.
      expect(err).toContain('\n  pages for buyers https://pay.test/\n')
      const token = join(directory, data, 'admin.token')
      expect(err).toContain(
        `\n  pages for you    https://pay.test/admin  sign in with the token in ${token}\n`,
      )
      expect(err).toContain('\n  1 merchant sells 1 route\n')
      const warnings = err.split('\n').filter((line) => line.startsWith('warning'))
      expect(warnings).toEqual([
        expect.stringMatching(/^warning: \S+\.toml:2: trust_proxy is 0, but base_url is https/),
      ])
    } finally {
      child.kill('SIGKILL')
      await child.exited
    }
  })

  test('error: a closed stderr loses messages, and the service continues', async () => {
    const free = Bun.serve({ hostname: '127.0.0.1', port: 0, fetch: () => new Response() })
    const address = `127.0.0.1:${free.port}`
    await free.stop(true)
    const child = Bun.spawn(command(address), { env, stdout: 'pipe', stderr: 'pipe' })
    try {
      // The banner finds no reader, nor does the message about the log.
      await Promise.all([child.stderr.cancel(), child.stdout.cancel()])
      const dropped = async () => {
        const answer = await fetch(`http://${address}/metrics`).catch(() => undefined)
        const metrics = answer?.ok ? await answer.text() : ''
        return Number(/^turnpike_log_lines_dropped_total (\d+)/m.exec(metrics)?.[1] ?? -1)
      }
      await until(async () => (await dropped()) >= 0)
      // Only after the banner the signal means a reload; before, it ends the program.
      await until(() => handles(child.pid, 'SIGHUP'))
      for (let count = 1; count <= 2; count++) {
        child.kill('SIGHUP')
        await until(async () => child.exitCode !== null || (await dropped()) >= count)
        expect(child.exitCode).toBeNull()
      }
      child.kill('SIGTERM')
      expect(await child.exited).toBe(0)
    } finally {
      child.kill('SIGKILL')
      await child.exited
    }
  })

  test('a terminal gets lines for people, and every other reader gets JSON', async () => {
    for (const isTerminal of [true, false]) {
      let out = ''
      const decoder = new TextDecoder()
      const data = (_: unknown, chunk: Uint8Array) => {
        out += decoder.decode(chunk)
      }
      const options = isTerminal
        ? { terminal: { data } }
        : { stdout: 'pipe' as const, stderr: 'ignore' as const }
      const child = Bun.spawn(command('127.0.0.1:0'), { env, ...options })
      const reading = isTerminal ? undefined : readAll(child.stdout as ReadableStream, data)
      try {
        await until(() => handles(child.pid, 'SIGHUP'))
        child.kill('SIGHUP')
        await until(() => out.includes('reloaded'))
        child.kill('SIGTERM')
        expect(await child.exited).toBe(0)
        await reading
        const lines = out.split('\n').filter((line) => line.includes('reloaded'))
        expect(lines.map((line) => line.startsWith('{"time":'))).toEqual([!isTerminal])
      } finally {
        child.kill('SIGKILL')
        await child.exited
      }
    }
  })

  test('error: a reader that does not read loses the lines that do not fit, which are counted', async () => {
    let gate = Promise.withResolvers<number>()
    const taken: string[] = []
    const told: unknown[] = []
    const output = createOutput({
      sink: {
        write: (lines) => {
          taken.push(lines)
          return 0
        },
        flush: () => gate.promise,
      },
      waitingMaxBytes: 20,
      onLoss: (reason) => told.push(reason),
      onResumed: (missing) => told.push(missing),
    })
    output.write('first')
    await until(() => taken.length === 1)
    for (let line = 0; line < 9; line++) output.write(`line ${line}`)
    expect([output.dropped(), told]).toEqual([6, ['its reader does not read']])
    gate.resolve(0)
    await output.end()
    expect([taken, told[1]]).toEqual([['first\n', 'line 0\nline 1\nline 2\n'], 6])
    // A fault of one write does not last.
    gate = Promise.withResolvers()
    gate.reject(Object.assign(new Error('full'), { code: 'ENOSPC' }))
    output.write('lost')
    await output.end()
    expect([output.dropped(), told[2]]).toEqual([7, 'ENOSPC'])
    gate = Promise.withResolvers()
    gate.resolve(0)
    output.write('again')
    await output.end()
    expect([taken.at(-1), told[3]]).toEqual(['again\n', 1])
  })
})

async function readAll(stream: ReadableStream, take: (_: unknown, chunk: Uint8Array) => void) {
  for await (const chunk of stream) take(undefined, chunk)
}

/** Whether a process has a handler of a signal: proc_pid_status(5). */
function handles(pid: number, signal: 'SIGHUP'): boolean {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const caught = BigInt(`0x${/^SigCgt:\s*(\w+)/m.exec(status)?.[1] ?? 0}`)
  return ((caught >> BigInt(constants.signals[signal] - 1)) & 1n) === 1n
}
