import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { documentedPayout } from '../../src/config/cross-checks'
import { format, parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import { payout } from '../harness/config'
import { executable } from '../harness/executable'
import { type Fence, fencesOf, markFault, pages, readPage, wholeToml } from '../harness/fences'
import { mppx } from '../harness/mppx'
import { secret } from '../harness/receiver'
import { type TestWorld, testWorld, until } from '../harness/world'

/** Runs what the documents tell a reader to run, against one world. */

// Each page starts several programs, beside those of the other pages.
const root = join(import.meta.dir, '../..')
const shipped = await Bun.file(join(root, 'merchants.toml')).text()
/** Tables of the shipped file before its merchants. */
const head = shipped.slice(0, shipped.indexOf('[[merchants]]'))
const all = pages.flatMap((page) => fencesOf(page))

/** What the output of each block of a page has, in their order. */
const expected: Readonly<Record<string, readonly RegExp[]>> = {
  'README.md': [/^wrote merchants.toml$[\s\S]*^ok$/m, /"latitude":52.52/],
  'docs/buy.md': [
    /^HTTP\/1.1 402 [\s\S]*payment-required:/i,
    /"latitude":52.52/,
    /"latitude":52.52/,
    /^200 {"latitude":52.52/,
    /^200 {"latitude":52.52/,
    /^200 {"latitude":52.52/,
    /signed by/,
    /request {6}sha256 [0-9a-f]{64}[\s\S]*\nvalid: signed by the receipt key/,
  ],
  'docs/channels.md': [/^[0-9a-f]{64}\s*$/],
  'docs/facilitator.md': [/exact eip155:8453/, /^$/],
  'docs/gasless-wallets.md': [/"granted":true/, /"latitude":52.52/],
  'docs/machines.md': [
    /# Turnpike[\s\S]*"x402Version":2[\s\S]*"openapi":"3.1.0"/,
    /true[\s\S]*accepts/,
  ],
  'docs/operate.md': [/turnpike listens on/, /^networks[\s\S]*^merchants/m, /checked; the keys/],
  'docs/pricing.md': [/\d+ \{\s+ceiling: /, /charge +0\.\d+ USDC/, /0.000918/],
  'docs/refunds.md': [/^[0-9a-f]{64}\s*$/],
  'docs/sell.md': [/turnpike listens on/],
  'docs/stocks.md': [/"symbol":"NVDA"[\s\S]*estimatedShares/, /"status":"delivered"/, /0 held/],
}

let world: TestWorld
let directory: string
/** Servers that still run, by page, with what they have printed. */
const running = new Map<string, { child: Bun.Subprocess; printed: string[] }>()

beforeAll(async () => {
  world = await testWorld({ exchange: true })
  // Below node_modules, so that the samples find their packages.
  const cache = join(root, 'node_modules', '.cache')
  mkdirSync(cache, { recursive: true })
  directory = mkdtempSync(join(cache, 'documents-'))
  script('turnpike', `exec ${executable} "$@"`)
  // npx would ask the registry, because the page has no node_modules of its own.
  script('npx', `shift; exec ${process.execPath} ${mppx} "$@"`)
})

afterAll(async () => {
  for (const { child } of running.values()) child.kill('SIGTERM')
  await Promise.all([...running.values()].map(({ child }) => child.exited))
  await world?.stop()
  if (directory !== undefined) rmSync(directory, { recursive: true, force: true })
})

function script(name: string, text: string): void {
  mkdirSync(join(directory, 'bin'), { recursive: true })
  const path = join(directory, 'bin', name)
  writeFileSync(path, `#!/bin/sh\n${text}\n`)
  chmodSync(path, 0o755)
}

/** A directory with the file that the page describes. */
function prepare(page: string): { cwd: string; env: Record<string, string> } {
  const cwd = join(directory, page.replaceAll(/\W/g, '-'))
  mkdirSync(join(cwd, 'backups'), { recursive: true })
  const own = all.find(
    ({ page: on, language, text }) =>
      on === page && language === 'toml' && text.startsWith('[[merchants'),
  )
  let text = own === undefined ? shipped : wholeToml(own.text, head)
  for (const [id, { url }] of Object.entries(world.chains))
    text = text.replace(
      new RegExp(`(\\[networks\\."${id}"\\]\\n(?:[^[\\n]*\\n)*?rpc_urls = )[^\\n]*`),
      (_, before: string) => `${before}["${url}"]`,
    )
  text = text.replace(/^listen = .*$/m, `listen = "127.0.0.1:${freePort()}"`)
  writeFileSync(join(cwd, 'merchants.toml'), text)
  // As a build leaves it.
  symlinkSync(join(directory, 'bin'), join(cwd, 'dist'))
  const serves = fencesOf(page).some((fence) => isRun(fence) && /turnpike serve/.test(fence.text))
  if (!serves) symlinkSync(world.dataDir, join(cwd, 'data'))
  const buyer = account(page === 'docs/gasless-wallets.md' ? 3 : 1)
  const env = {
    PATH: `${join(directory, 'bin')}:${process.env.PATH}`,
    HOME: cwd,
    NO_COLOR: '1',
    PAYOUT: payout,
    PAY_KEY: buyer.privateKey,
    ADDRESS: buyer.address,
    RPC_URL: world.chains['eip155:4663']?.url ?? '',
  }
  return { cwd, env }
}

function freePort(): number {
  const socket = { data: () => undefined }
  const listener = Bun.listen({ hostname: '127.0.0.1', port: 0, socket })
  listener.stop(true)
  return listener.port
}

function isRun({ language, mark }: Fence): boolean {
  return mark === undefined && (language === 'sh' || language === 'ts')
}

/** The block with the addresses of this run. */
function local(text: string, cwd: string): string {
  const url = world.url.replace('127.0.0.1', 'localhost')
  return text
    .replaceAll('https://pay.example.com', url)
    .replaceAll('/var/backups', `${cwd}/backups`)
}

type Place = ReturnType<typeof prepare>

/** What a server has printed when it listens, or when it has ended. */
async function listening(
  page: string,
  child: Bun.Subprocess<'ignore', 'pipe', 'pipe'>,
): Promise<string> {
  const printed: string[] = []
  running.set(page, { child, printed })
  const decoder = new TextDecoder()
  const write = (chunk: Uint8Array) => {
    printed.push(decoder.decode(chunk))
  }
  void child.stdout.pipeTo(new WritableStream({ write }))
  void child.stderr.pipeTo(new WritableStream({ write }))
  const hasEnded = () => child.exitCode !== null
  await until('it listens', () => printed.join('').includes('listens on') || hasEnded())
  return printed.join('')
}

/** Runs a block and returns what it printed. A server that the block starts last keeps running. */
async function run(fence: Fence, { cwd, env }: Place): Promise<string> {
  const text = local(fence.text, cwd)
  const file = join(cwd, `block-${fence.line}.${fence.language}`)
  await Bun.write(file, fence.language === 'sh' ? `set -e\n${text}\n` : text)
  const command = fence.language === 'sh' ? ['bash', file] : [process.execPath, file]
  const isServer = /(^|\n)turnpike serve[^\n]*$/.test(text)
  // The server gets the signals itself.
  if (isServer)
    await Bun.write(file, `set -e\n${text.replace(/turnpike serve/, 'exec turnpike serve')}\n`)
  const child = Bun.spawn(command, { cwd, env, stdin: 'ignore', stdout: 'pipe', stderr: 'pipe' })
  if (isServer) {
    env.TURNPIKE_PID = String(child.pid)
    return listening(fence.page, child)
  }
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  expect([`${fence.page}:${fence.line}`, code, code === 0 ? '' : out + err]).toEqual([
    `${fence.page}:${fence.line}`,
    0,
    '',
  ])
  return out + err
}

describe('the documents', () => {
  test('every block of commands is run, or says why it is not', () => {
    expect(all.length).toBeGreaterThan(30)
    const faults = all.flatMap((fence) => {
      const fault = markFault(fence)
      return fault === undefined ? [] : [`${fence.page}:${fence.line} ${fault}`]
    })
    expect(faults).toEqual([])
    const languages = new Set(all.map(({ language }) => language))
    // Another name for commands or programs would not be run.
    for (const other of ['', 'bash', 'shell', 'console', 'js', 'javascript', 'typescript'])
      expect(languages).not.toContain(other)
  })

  test('error: on a real network turnpike refuses each payout of the documents', () => {
    const written = all.flatMap(({ text }) =>
      [...text.matchAll(/payout[ ="]+(0x[0-9a-f]{40})\b/gi)].map(([, address = '']) => address),
    )
    expect(written.length).toBeGreaterThan(1)
    expect(new Set(written)).toEqual(new Set([documentedPayout.toLowerCase()]))
  })

  test('the README has at most 8 kB', () => {
    expect(Buffer.byteLength(readPage('README.md'))).toBeLessThanOrEqual(8192)
  })

  test('each page begins with what its reader can do after it', () => {
    for (const page of pages.filter((each) => each.startsWith('docs/')))
      expect([page, readPage(page)]).toEqual([
        page,
        expect.stringMatching(/^# [^\n]+\n\nWith this page [^\n]+/),
      ])
  })

  test('the parser of the file accepts every block of TOML', () => {
    const key = 'a-long-key'
    const keys = { WEATHER_KEY: key, ASSISTANT_KEY: key, RPC_KEY: key }
    const hook = 'https://hooks.example.com/a'
    const places = {
      ...{ SLACK_URL: hook, DISCORD_URL: hook, SMTP_PASSWORD: key },
      TELEGRAM_TOKEN: `12345:${'a'.repeat(35)}`,
    }
    const own = { PAYOUT: payout, WEBHOOK_SECRET: secret, REFUND_KEY: '11'.repeat(32) }
    const env = { ...own, ...keys, ...places }
    const samples = all.filter(({ language, mark }) => language === 'toml' && mark === undefined)
    expect(samples.length).toBeGreaterThan(2)
    for (const { page, line, text } of samples) {
      const { faults } = parseConfig(wholeToml(text, head), { file: page, env })
      expect([page, line, faults.map(format)]).toEqual([page, line, []])
    }
  })

  const executed = [...new Set(all.filter(isRun).map(({ page }) => page))]
  const outputs = new Map<string, Promise<string[]>>()
  // Two pages run at the same time: on a busy machine programs wait only so long for an answer.
  beforeAll(() => {
    const ended: Promise<unknown>[] = []
    for (const [index, page] of executed.entries()) {
      const outs = (async () => {
        await ended[index - 2]
        const place = prepare(page)
        const printed: string[] = []
        for (const fence of all.filter((each) => each.page === page && isRun(each)))
          printed.push(await run(fence, place))
        return printed
      })()
      // It is awaited by the test of its page.
      ended.push(outs.catch(() => undefined))
      outputs.set(page, outs)
    }
  })

  for (const page of executed)
    test(`the blocks of ${page} work as the page says`, async () => {
      const printed = (await outputs.get(page)) ?? []
      const patterns = expected[page] ?? []
      expect(printed.length).toBe(patterns.length)
      for (const [index, pattern] of patterns.entries()) expect(printed[index]).toMatch(pattern)
      const server = running.get(page)
      expect(server?.child.exitCode ?? null).toBeNull()
      if (page === 'docs/operate.md')
        await until(
          'SIGHUP reloads',
          () => server?.printed.join('').includes('"reloaded"') === true,
        )
    })
})

describe('the reader of blocks', () => {
  const page = '# A\n\n<!-- not run: needs the internet -->\n```sh\ncurl x\n```\n\n```ts\n1\n```\n'

  test('a comment above a block marks it', () => {
    const [first, second] = fencesOf('a.md', page)
    expect(first).toMatchObject({ line: 4, text: 'curl x', mark: { of: 'needs the internet' } })
    expect(second?.mark).toBeUndefined()
  })

  test('error: a mark without a reason, or with a file that does not exist, is found', () => {
    const faultOf = (mark: string) =>
      fencesOf('a.md', `<!-- ${mark} -->\n\`\`\`sh\na\n\`\`\``).map(markFault)
    expect(faultOf('run by: test/gone.ts')).toEqual(['test/gone.ts does not exist'])
    expect(faultOf('not run: no')).toEqual(['no reason'])
    expect(faultOf('run by: .ci/run')).toEqual([undefined])
    expect(() => fencesOf('a.md', '```sh\n')).toThrow('no end')
  })
})
