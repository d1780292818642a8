import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { account } from '../../src/demo/accounts'
import { networkOf, startNetwork } from '../harness/settlement'
import { configText, price, seller } from '../harness/target'
import { findMismatches, readCharges, readMoves } from './charges'
import { buyHonestly, honestPayers, p99, type Sale } from './honest'

/**
 * Hostile clients of all kinds beside honest buyers, against the built executable on chains with
 * 200 ms blocks. It fails when an honest buyer is charged without an answer, or when requests,
 * ledger and transfers do not match one to one. It also fails when the p99 of honest paid requests
 * (the median of windows) is 5 times the one before, or when the process takes 400 MB.
 */

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    without: { type: 'string', default: '' },
  },
})
const seconds = Number(values.seconds)
if (!(seconds > 0)) throw new Error('--seconds wants a number')

const ratioMax = 5
const memoryMaxMb = 400
const blockTimeMs = 200
/** A machine that stalls for a second affects one window, not the median of all. */
const windowMs = 10_000
/** Time until the hostile clients have opened their connections. */
const warmSeconds = 10
const kinds = ['chunks', 'announcements', 'readers', 'streams', 'breaker', 'mcp'].filter(
  (kind) => !values.without.split(',').includes(kind),
)
const root = join(import.meta.dir, '..', '..')
process.exitCode = await soak()

async function soak(): Promise<number> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-hostile-'))
  const networks = await Promise.all([
    startNetwork('usdc', { blockTimeMs }),
    startNetwork('usdg', { blockTimeMs }),
  ])
  const children: Bun.Subprocess[] = []
  try {
    const upstream = Bun.spawn(['bun', join(import.meta.dir, 'hostile-upstream.ts')], {
      stdout: 'pipe',
    })
    children.push(upstream)
    const upstreamUrl = await firstLine(upstream.stdout)
    const [usdc, usdg] = networks
    const urls = { usdc: usdc.chain.url, usdg: usdg.chain.url, upstream: upstreamUrl }
    const { child, url } = await serve(directory, urls)
    children.push(child)
    const memory = watchMemory(child.pid)

    const first = await buyHonestly(url, performance.now() + 3_000)
    const quiet = await buyInWindows(url, seconds / 2)
    const quietMb = memory.peakMb()
    const quietAnonMb = memory.anonMb()
    const peers = kinds.map((kind) => startPeers(kind, url))
    children.push(...peers.map((peer) => peer.child))
    const warm = await buyHonestly(url, performance.now() + warmSeconds * 1_000)
    const attacked = await buyInWindows(url, seconds)
    memory.stop()
    for (const { kind, last } of peers) print(`${kind}: ${last()}`)
    for (const peer of peers) peer.child.kill('SIGKILL')
    child.kill('SIGTERM')
    const code = await child.exited
    const sites = [
      { chain: usdc.chain, token: networkOf(usdc.chain.url, 'usdc').asset.address },
      { chain: usdg.chain, token: networkOf(usdg.chain.url, 'usdg').asset.address },
    ]
    const mismatches = await audit(directory, sites, [first, ...quiet, warm, ...attacked].flat())
    const memoryMb = { quietMb, quietAnonMb, peakMb: memory.peakMb(), anonMb: memory.anonMb() }
    return evaluate({ quiet, attacked, mismatches, ...memoryMb, code })
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await Promise.all(networks.map((network) => network.stop()))
    rmSync(directory, { recursive: true, force: true })
  }
}

/** The sales of each ten seconds or less. */
async function buyInWindows(url: string, length: number): Promise<Sale[][]> {
  const windows: Sale[][] = []
  const end = performance.now() + length * 1_000
  while (performance.now() < end) {
    windows.push(await buyHonestly(url, Math.min(end, performance.now() + windowMs)))
  }
  return windows
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

async function serve(directory: string, urls: Parameters<typeof configText>[0]) {
  const file = join(directory, 'merchants.toml')
  const merchant = (slug: string, path: string) => `
[[merchants]]
slug = "${slug}"
upstream = "${urls.upstream}"
allow_private = true
[[merchants.routes]]
path = "${path}"
price = "0.001"
`
  const more = merchant('big', '/file') + merchant('live', '/events')
  // The limits are the defaults; every client has an address of its own.
  const plenty = '"1000000000000000000000"'
  const gas = `gas_per_day_wei = { gateway = ${plenty}, facilitator = "1", desk = "1", sponsor = "1" }`
  const text = configText(urls, more)
    .replace('paid_per_minute = 1000000', 'trust_proxy = 1')
    .replaceAll('rpc_urls =', `${gas}\nrpc_urls =`)
  writeFileSync(file, text)
  const command = [join(root, 'dist', 'turnpike'), 'serve', '--config', file]
  const child = Bun.spawn([...command, '--data', join(directory, 'data')], {
    env: { RELAYER_KEYS: account(0).privateKey },
    stdout: Bun.file(join(directory, 'log')),
    stderr: 'pipe',
  })
  const url = /http:\/\/\S+/.exec(await firstLine(child.stderr))?.[0]
  if (url === undefined) throw new Error('it does not listen')
  return { child, url }
}

function startPeers(kind: string, url: string) {
  const command = ['bun', join(import.meta.dir, 'hostile-peers.ts'), kind, url]
  // They stand for other machines, so they must not take processor time from the gateway.
  const child = Bun.spawn(['nice', '-n', '19', ...command], { stdout: 'pipe' })
  let text = '{}'
  void (async () => {
    for await (const part of child.stdout)
      text = new TextDecoder().decode(part).trim().split('\n').at(-1) ?? text
  })().catch(() => {})
  return { kind, child, last: () => text }
}

async function firstLine(stream: ReadableStream<Uint8Array>): Promise<string> {
  const reader = stream.getReader()
  let text = ''
  while (!text.includes('\n')) {
    const { done, value } = await reader.read()
    if (done) throw new Error(`it ended: ${text}`)
    text += new TextDecoder().decode(value)
  }
  // Reads on, because a full pipe would block the program.
  void (async () => {
    while (!(await reader.read()).done);
  })().catch(() => {})
  return text.split('\n')[0] ?? ''
}

/** The resident memory of a process: all of it, and the part that no file backs. */
function watchMemory(pid: number) {
  const peakKb = { VmRSS: 0, RssAnon: 0 }
  const timer = setInterval(() => {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    for (const name of ['VmRSS', 'RssAnon'] as const) {
      const kb = Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1] ?? 0)
      peakKb[name] = Math.max(peakKb[name], kb)
    }
  }, 50)
  return {
    peakMb: () => (peakKb.VmRSS * 1024) / 1e6,
    anonMb: () => (peakKb.RssAnon * 1024) / 1e6,
    stop: () => clearInterval(timer),
  }
}

/** Mismatches between honest clients, the ledger and the chains. */
async function audit(
  directory: string,
  sites: Parameters<typeof readMoves>[0],
  sales: readonly Sale[],
): Promise<string[]> {
  const charges = readCharges(join(directory, 'data', 'turnpike.sqlite'))
  const moves = await readMoves(sites, seller, charges)
  const answered = sales.filter(({ isGood }) => isGood).length
  const delivered = charges.filter(({ delivery }) => delivery === 'delivered').length
  print(`answers that honest clients saw: ${answered}`)
  print(`ledger: ${charges.length} payments, ${delivered} delivered`)
  print(`chains: ${moves.transfers.length} transfers to the payout`)
  const honest = honestPayers.map(({ address }) => address)
  return findMismatches({ seen: sales, charges, moves, honest, priceAtomic: price })
}

type Result = {
  /** By window. */
  quiet: readonly Sale[][]
  attacked: readonly Sale[][]
  mismatches: readonly string[]
  quietMb: number
  quietAnonMb: number
  peakMb: number
  anonMb: number
  code: number
}

function evaluate(result: Result): number {
  const { quiet, attacked, mismatches, quietMb, peakMb, code } = result
  const good = (sales: readonly Sale[]) => sales.filter(({ isGood }) => isGood)
  const paid = (windows: Result['quiet']) =>
    middle(windows.map((sales) => p99(good(sales).map(({ paidMs }) => paidMs))))
  const asked = (windows: Result['quiet']) =>
    middle(windows.map((sales) => p99(sales.map(({ askedMs }) => askedMs))))
  const sold = attacked.flat()
  const refused = sold.filter(({ isGood }) => !isGood)
  const ratio = paid(attacked).median / paid(quiet).median
  print(`against: ${kinds.join(', ')}`)
  print(`honest sales: ${good(quiet.flat()).length} quiet, ${good(sold).length} under attack`)
  print(`refused under attack: ${refused.length}`)
  for (const said of new Set(refused.map((sale) => sale.said.slice(0, 200)))) print(`  ${said}`)
  print(`p99 of a paid request: ${format(paid(quiet))} ms quiet, ${format(paid(attacked))} ms`)
  print(`p99 of a 402: ${format(asked(quiet))} ms quiet, ${format(asked(attacked))} ms`)
  print(`ratio ${ratio.toFixed(2)} (below ${ratioMax})`)
  print(`memory: ${quietMb.toFixed()} MB quiet, ${peakMb.toFixed()} MB at most`)
  const { quietAnonMb, anonMb } = result
  print(`  not backed by a file: ${quietAnonMb.toFixed()} MB quiet, ${anonMb.toFixed()} MB at most`)
  print(`mismatches: ${mismatches.length}; exit code ${code}`)
  for (const mismatch of mismatches.slice(0, 20)) print(`  ${mismatch}`)
  const isGood =
    ratio < ratioMax &&
    peakMb < memoryMaxMb &&
    mismatches.length === 0 &&
    code === 0 &&
    refused.length * 100 <= sold.length
  print(isGood ? 'passed' : 'FAILED')
  return isGood ? 0 : 1
}

type Middle = { median: number; min: number; max: number }

function middle(values: readonly number[]): Middle {
  const sorted = values.toSorted((left, right) => left - right)
  const at = (index: number) => sorted[index] ?? 0
  return { median: at(Math.floor(sorted.length / 2)), min: at(0), max: at(sorted.length - 1) }
}

function format({ median, min, max }: Middle): string {
  return `${median.toFixed()} [${min.toFixed()}..${max.toFixed()}]`
}
