import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { executable } from '../harness/executable'
import { mppx } from '../harness/mppx'
import { main } from '../harness/program'
import { until } from '../harness/world'

// Programs and chains start in each test, perhaps beside other work.
const root = join(import.meta.dir, '../..')
/** Directory of the demo's data, so that a test sees what remains there. */
let temporary: string
/** Directory in which mppx looks for its accounts. */
let home: string
beforeAll(() => {
  temporary = mkdtempSync(join(tmpdir(), 'turnpike-test-'))
  home = mkdtempSync(join(tmpdir(), 'turnpike-home-'))
})
afterAll(() => {
  for (const path of [temporary, home]) rmSync(path, { recursive: true, force: true })
})

function isFree(port: number): boolean {
  try {
    Bun.listen({ hostname: '127.0.0.1', port, socket: { data: () => undefined } }).stop(true)
    return true
  } catch {
    return false
  }
}

/** The first of five consecutive free ports, below those that the system assigns. */
function freePorts(): number {
  for (let attempt = 0; attempt < 1000; attempt++) {
    const port = 10_000 + 5 * Math.floor(Math.random() * 4000)
    if ([0, 1, 2, 3, 4].every((offset) => isFree(port + offset))) return port
  }
  throw new Error('no five free ports in a row')
}

/** The program of a checkout, which has the stock clients, and the executable, which starts faster. */
const checkout = [process.execPath, main, 'demo']
const shipped = [executable, 'demo']

/** Starts `demo`; `out` and `err` grow with what it prints. */
function start(program: readonly string[], port: number | string, cwd = root) {
  const child = Bun.spawn([...program], {
    cwd,
    env: { PATH: process.env.PATH ?? '', TMPDIR: temporary, PORT: String(port) },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const run = { child, pid: child.pid, out: '', err: '' }
  const decoder = new TextDecoder()
  const reading = (async () => {
    for await (const chunk of child.stdout) run.out += decoder.decode(chunk, { stream: true })
  })()
  const complaining = new Response(child.stderr).text().then((text) => {
    run.err = text
  })
  const ended = async () => {
    await Promise.all([reading, complaining])
    return child.exited
  }
  return Object.assign(run, { ended })
}

/** Pids of all descendants of a process. */
function descendants(pid: number): number[] {
  const parents = new Map<number, number>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8')
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]))
    } catch {
      // It ended meanwhile.
    }
  }
  const below = (parent: number): number[] =>
    [...parents].flatMap(([child, of]) => (of === parent ? [child, ...below(child)] : []))
  return below(pid)
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

async function expectNothingLeft(port: number, pids: readonly number[]): Promise<void> {
  await until('every process is gone', () => pids.every((pid) => !isAlive(pid)))
  for (const offset of [0, 1, 2, 3, 4]) expect(isFree(port + offset)).toBe(true)
  expect(readdirSync(temporary)).toEqual([])
}

async function sells(port: number): Promise<boolean> {
  const response = await fetch(`http://localhost:${port}/healthz`).catch(() => undefined)
  return response?.status === 200
}

async function ask(port: number, method: string): Promise<unknown> {
  const response = await fetch(`http://127.0.0.1:${port}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: [] }),
  })
  const { result } = (await response.json()) as { result?: unknown }
  return result
}

describe('turnpike demo', () => {
  test('the demo serves until SIGTERM, its printed commands work, and no process or file remains', async () => {
    const port = freePorts()
    const run = start(checkout, port)
    await until('the demo sells', () => sells(port))
    expect(await Promise.all([1, 2, 3].map((offset) => ask(port + offset, 'eth_chainId')))).toEqual(
      ['0x2105', '0x14a34', '0x1237'],
    )
    const upstream = await fetch(`http://127.0.0.1:${port + 4}/v1/currencies`)
    expect(upstream.status).toBe(200)
    await until('the instructions are printed', () => run.out.includes('Ctrl-C stops everything'))

    expect(run.out).toContain(`http://localhost:${port}/\n`)
    const [, admin = '', token = ''] =
      /(http\S+\/admin) with the token (\w{64})$/m.exec(run.out) ?? []
    const headers = { authorization: `Bearer ${token}` }
    expect((await fetch(admin, { headers })).status).toBe(200)

    const commands = run.out
      .replaceAll('\\\n', ' ')
      .match(/^ {2}(PAY_KEY=|curl |MPPX_PRIVATE_KEY=.*--protocol x402$).*$/gm)
    expect(commands).toHaveLength(12)
    const byUse = commands?.find((each) => each.includes('--scheme upto')) ?? ''
    commands?.push(byUse.replace('{"model"', '{"stream":true,"model"'))
    for (const command of commands ?? []) {
      // The same programs, without a download from the registry, and without compiling hundreds of
      // modules for each command.
      const local = command
        .replace(`npx --yes bun@${Bun.version} src/main.ts`, `'${executable}'`)
        .replace('npx mppx', `'${process.execPath}' '${mppx}'`)
      const shell = Bun.spawn(['sh', '-c', local], {
        cwd: root,
        env: { PATH: process.env.PATH ?? '', HOME: home },
        stdout: 'pipe',
        stderr: 'pipe',
      })
      const [answer, code] = await Promise.all([new Response(shell.stdout).text(), shell.exited])
      expect(code).toBe(0)
      if (command.includes('curl')) expect(answer).toStartWith('HTTP/1.1 402 Payment Required')
      else
        expect(answer).toMatch(
          /"temperature_2m"|"choices"|"status":"delivered"|"pass":|"us_aqi"|"total_market_cap"|1\.490000 USDC came back/,
        )
    }

    // An operator reads one line for each sale, also for those by use, whole and as a stream.
    const buyer = String.raw`from 0x7099\u{2026}79C8 in \d+\.\d s$`
    const salesOf = () => run.out.match(/(?<= INFO {2})sold .*\n/g) ?? []
    await until('every sale is logged', () => salesOf().length >= 9)
    const sold = salesOf().map((line) => line.trimEnd())
    expect(sold).toEqual([
      expect.stringMatching(new RegExp(`^sold weather /forecast 0\\.005 USDC ${buyer}`, 'u')),
      expect.stringMatching(new RegExp(`^sold assistant /chat 0\\.008\\d+ USDG ${buyer}`, 'u')),
      expect.stringMatching(new RegExp(`^sold assistant /chat 0\\.000\\d+ USDC ${buyer}`, 'u')),
      expect.stringMatching(/^sold weather \/forecast 0\.005 USDG from 0x90F7\u{2026}b906 in /u),
      expect.stringMatching(
        /^sold weather \/air-quality\/pass 1 USDC from 0x7099\u{2026}79C8 in /u,
      ),
      expect.stringMatching(new RegExp(`^sold crypto-markets /global 0\\.005 USDC ${buyer}`, 'u')),
      expect.stringMatching(new RegExp(`^sold crypto-markets /global 0\\.005 USDC ${buyer}`, 'u')),
      expect.stringMatching(new RegExp(`^sold weather /forecast 0\\.005 USD[CG] ${buyer}`, 'u')),
      expect.stringMatching(new RegExp(`^sold assistant /chat 0\\.000\\d+ USDC ${buyer}`, 'u')),
    ])

    // The fees of the real networks: on Base gas is a part of a sale of a cent. The channel has a
    // deposit, a claim and a refund for two sales.
    expect(
      await Promise.all([1, 2, 3].map((offset) => ask(port + offset, 'eth_gasPrice'))),
    ).toEqual([6_000_000, 6_000_000, 36_000_000].map((wei) => `0x${wei.toString(16)}`))
    const metrics = await (await fetch(`http://localhost:${port}/metrics`, { headers })).text()
    const spent = /^turnpike_gas_spent_today_wei\{network="eip155:8453",product="gateway"\} (\d+)$/m
    const usd = (Number(spent.exec(metrics)?.[1]) / 1e18) * 4_000
    const onBase = sold.filter((line) => line.includes('USDC'))
    expect(usd / onBase.length).toBeWithin(0.0005, 0.004)

    const pids = [run.pid, ...descendants(run.pid)]
    expect(pids.length).toBeGreaterThan(3)
    process.kill(run.pid, 'SIGTERM')
    expect(await run.ended()).toBe(0)
    expect(run.err).toBe('')
    await expectNothingLeft(port, pids)
  })

  test('Ctrl-C while it starts leaves nothing behind', async () => {
    const port = freePorts()
    const run = start(shipped, port)
    await until('it has started', () => run.out.includes('started'))
    const pids = [run.pid, ...descendants(run.pid)]
    process.kill(run.pid, 'SIGINT')
    expect(await run.ended()).toBe(0)
    await expectNothingLeft(port, pids)
  })

  test('--once buys with every stock client and every balance is right', async () => {
    const port = freePorts()
    const run = start([...checkout, '--once'], port)
    expect(await run.ended()).toBe(0)
    expect(run.out.match(/^\d\. .*$/gm)).toEqual([
      '1. mppx, USDC on eip155:8453',
      '2. @x402/fetch with eip3009, USDC on eip155:8453',
      '3. @x402/fetch with permit2, USDG on eip155:4663',
      '4. @x402/fetch with permit2, a tokenized stock, USDG on eip155:4663',
      '5. @x402/fetch by upto, USDC on eip155:8453',
      '6. a pass that is bought, used twice and refunded, USDC on eip155:8453',
      '7. @x402/fetch over a payment channel, USDC on eip155:8453',
    ])
    expect(run.out.match(/settled by {2}0x[0-9a-f]{64}/g)).toHaveLength(6)
    expect(run.out).toMatch(
      /delivered {3}0\.\d{18} NVDA to 0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC/,
    )
    expect(run.out).toContain('payer   10000.000000 ->  9999.995000 USDC')
    expect(run.out).toContain('payee       0.000000 ->     0.005000 USDC')
    expect(run.out).toContain('relayer     0.000000 ->     0.000000 USDC')
    const [, byUse = '', pass = '', channel = ''] = run.out.split(/^[567]\. .*$/m)
    expect(channel).toContain('200 requests, 199 of them by a voucher alone')
    for (const [event, amount] of Object.entries({
      ...{ deposited: '1.500000', claimed: '1.000000', refunded: '0.500000', settled: '1.000000' },
    }))
      expect(channel).toMatch(new RegExp(`^ {2}${event} +${amount} USDC by 0x[0-9a-f]{64}$`, 'm'))
    expect(pass.match(/kind=pass, remaining=(499|498), until="/g)).toHaveLength(2)
    expect(pass).toMatch(
      /The refund of 1\.000000 for pay_\w+ is requested\.\n {2}refunded by 0x[0-9a-f]{64}/,
    )
    expect(pass).toContain('refunds 10000.000000 ->  9999.000000 USDC')
    const amounts = (pattern: RegExp) =>
      (pattern.exec(byUse) ?? []).slice(1).map((text) => Math.round(Number(text) * 1e6))
    const [ceiling = 0] = amounts(/^ {2}ceiling {5}(0\.\d{6}) USDC$/m)
    const [charge = 0] = amounts(/^ {2}charge {6}(0\.\d{6}) USDC$/m)
    const [from = 0, to = 0] = amounts(/^ {2}payer +([\d.]+) -> +([\d.]+) USDC$/m)
    expect(byUse).toMatch(/^ {2}units {7}\d+ input, \d+ output$/m)
    expect(byUse).toContain(
      `up to 0.${String(ceiling).padStart(6, '0')} USDC on eip155:8453 by permit2 (x402, upto)`,
    )
    expect(charge).toBeGreaterThan(500)
    expect(charge).toBeLessThan(ceiling)
    expect(from - to).toBe(charge)
    expect(run.out).toContain('Every balance is exactly right.')
    expect(run.out).not.toContain('WRONG')
    await expectNothingLeft(port, [run.pid])
  })

  test('error: a port in use is reported, and nothing is started', async () => {
    const port = freePorts()
    for (const offset of [0, 2, 4]) {
      const other = Bun.listen({
        hostname: '127.0.0.1',
        port: port + offset,
        socket: { data: () => undefined },
      })
      // A directory without a file: the executable has the samples that ship.
      const run = start(shipped, port, home)
      expect(await run.ended()).toBe(1)
      other.stop(true)
      expect(run.err).toBe(
        `turnpike: port ${port + offset} is in use. ` +
          `The demo needs ${port} to ${port + 4}; PORT moves all of them.\n`,
      )
      await expectNothingLeft(port, [run.pid])
    }
  })

  test('error: a PORT that is invalid or too high is refused', async () => {
    for (const port of ['0', '65532', '-1', '4020x', '99999999']) {
      const run = start(shipped, port)
      expect(await run.ended()).toBe(1)
      expect(run.err).toBe('turnpike: PORT must be a number from 1 to 65531: 5 ports are used.\n')
    }
  })

  test('error: a file that does not exist is named', async () => {
    const file = join(temporary, 'none.toml')
    const run = start([...shipped, '--config', file], freePorts(), temporary)
    expect(await run.ended()).toBe(1)
    expect(run.err).toStartWith(`turnpike: there is no ${file}.\n`)
  })
})
