import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { numberToHex } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { ask } from '../harness/buyer'
import { executable } from '../harness/executable'
import { moveOn, type Wallet } from '../harness/farm'
import { networkOf, startNetwork } from '../harness/settlement'
import { signIn } from '../harness/siwe'
import { age, batch, setTokens, sponsorDefaults, wallets, weiOf } from '../harness/sponsor'
import { configText, startUpstream } from '../harness/target'

/**
 * An attack by many wallets on trials: `soak:trials [ADDRESSES]`. An attacker moves one capital from
 * row to row of wallets and signs in with each, from an address of its own. It holds the capital in a
 * row for the age that a trial demands, or it is there only at the two blocks that are looked at. Others
 * have dust, nothing, or a balance that was just moved in. It fails when there are more free answers than
 * the pool of a day, a wallet has more than its trial, or honest wallets get none.
 */

const addresses = Number(Bun.argv[2] ?? 10_000)
const [requests, perDay] = [3, 500]
/** Wallets that have the capital at the same time: what one transaction moves. */
const rowLength = 64
const least = sponsorDefaults.minBalanceAtomic
const concurrency = 24
const baseFeeWei = 100_000_000n
const memoryMaxMb = 400
const farmer = account(8).address

const net = await startNetwork('usdc')
const usdg = await startNetwork('usdg')
const upstream = startUpstream()
const directory = mkdtempSync(join(tmpdir(), 'turnpike-trials-'))
const network = networkOf(net.chain.url, 'usdc')
const token = network.asset.address
const kinds = new Map<string, Kind>()
const freeOf = new Map<string, number>()
let clients = 0
const costs = new Map<string, { wei: bigint; blocks: number; wallets: number }>()
const of = (list: readonly Wallet[]) => list.map(({ address }) => address)
const height = async () => Number(await net.chain.rpc('eth_blockNumber', []))
const children: Bun.Subprocess[] = []
try {
  process.exitCode = await attack()
} finally {
  for (const child of children) child.kill('SIGKILL')
  upstream.stop()
  await Promise.all([net.stop(), usdg.stop()])
  rmSync(directory, { recursive: true, force: true })
}

async function attack(): Promise<number> {
  const { url, peakMb } = await serve()
  const all = wallets(addresses, 'trials')
  const take = (percent: number) => all.splice(0, Math.floor((addresses * percent) / 100))
  const [dusty = [], empty = [], moved = []] = [10, 10, 10].map(take)
  const honest = wallets(4, 'honest').map((wallet) => [wallet])
  const startedAt = performance.now()
  await setTokens(net.chain, token, of(dusty), least - 1n)
  await setTokens(net.chain, token, honest.flatMap(of), least)
  await age(net.chain)
  const coldMb = peakMb()
  await sendAll(url, 'honest', honest[0] ?? [], 1)
  await sendAll(url, 'dust', dusty, 1)
  await sendAll(url, 'nothing', empty, 1)
  await setTokens(net.chain, token, of(moved), least)
  await sendAll(url, 'just moved in', moved, 1)
  await setTokens(net.chain, token, of(moved), 0n)
  await sendAll(url, 'honest', honest[1] ?? [], 1)
  const half = all.splice(0, all.length / 2)
  for (const [kind, act, list] of [
    ['held', hold, half],
    ['hopping', hop, all],
  ] as const) {
    const rows = Array.from({ length: Math.ceil(list.length / rowLength) }, (_, row) =>
      list.slice(row * rowLength, (row + 1) * rowLength),
    )
    const [weiBefore, blocksBefore] = [await weiOf(net.chain, farmer), await height()]
    await act(rows, (row) => sendAll(url, kind, row, requests + 1))
    const wei = weiBefore - (await weiOf(net.chain, farmer))
    costs.set(kind, { wei, blocks: (await height()) - blocksBefore, wallets: list.length })
  }
  await sendAll(url, 'honest after it', honest[2] ?? [], 1)
  const seconds = (performance.now() - startedAt) / 1_000
  return evaluate({ seconds, coldMb, peakMb: peakMb() })
}

type Rows = readonly (readonly Wallet[])[]
type Use = (row: readonly Wallet[]) => Promise<unknown>

/** Until the pool of a day is empty each row has the capital for the whole age. */
async function hold(rows: Rows, use: Use): Promise<void> {
  for (const [index, row] of rows.entries()) {
    await fill(row, rows[index - 1])
    await age(net.chain)
    await use(row)
  }
}

/** Each row has the capital in one block, and again in the one that is as much later as its age. */
async function hop(rows: Rows, use: Use): Promise<void> {
  const together = sponsorDefaults.minBalanceAgeBlocks
  let before: readonly Wallet[] | undefined
  for (let from = 0; from < rows.length; from += together) {
    const group = rows.slice(from, from + together)
    for (const isSecond of [false, true]) {
      for (const row of group) {
        await fill(row, before)
        before = row
        if (isSecond) await use(row)
      }
      // A shorter group waits for the rest of the age.
      if (group.length < together) await mine(net.chain, together - group.length)
    }
  }
}

/** Moves the capital in one block. */
async function fill(row: readonly Wallet[], before: readonly Wallet[] | undefined): Promise<void> {
  if (before === undefined) {
    await setTokens(net.chain, token, of(row), least)
    await mine(net.chain)
    return
  }
  const length = Math.min(before.length, row.length)
  // The last row may be shorter.
  if (length < row.length) await setTokens(net.chain, token, of(row.slice(length)), least)
  await batch(net.chain, [['anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)]]])
  const moved = { from: before.slice(0, length), to: row.slice(0, length) }
  await moveOn(net, network, moved, baseFeeWei)
}

type Kind = { answers: Record<string, number>; calls: number; free: number }

/** Signs in with each wallet so often, each time from another client. Answers by reason. */
async function sendAll(url: string, kind: string, list: readonly Wallet[], times: number) {
  const own: Kind = kinds.get(kind) ?? { answers: {}, calls: 0, free: 0 }
  kinds.set(kind, own)
  const counts: Record<string, number> = {}
  const callsBefore = net.tap.calls.length
  const queue = list.flatMap((wallet) => Array<Wallet>(times).fill(wallet)).values()
  const work = async () => {
    for (const wallet of queue) {
      const client = `10.${(++clients >> 16) & 255}.${(clients >> 8) & 255}.${clients & 255}`
      const headers = { 'x-forwarded-for': client }
      const target = `${url}/m/club/${kind === 'hopping' ? 'other' : 'try'}`
      const signer = privateKeyToAccount(wallet.privateKey)
      const signed = await signIn(await ask(target, { headers }), signer)
      const response = await fetch(target, { headers: { ...headers, ...signed } })
      const body = (await response.json()) as { reason?: string; code?: string }
      const answer =
        response.status === 200 ? 'free' : (body.reason ?? `${response.status} ${body.code}`)
      counts[answer] = (counts[answer] ?? 0) + 1
      own.answers[answer] = (own.answers[answer] ?? 0) + 1
      if (response.status !== 200) continue
      own.free++
      freeOf.set(wallet.address, (freeOf.get(wallet.address) ?? 0) + 1)
    }
  }
  await Promise.all(Array.from({ length: concurrency }, work))
  own.calls += net.tap.calls.length - callsBefore
  return counts
}

type Result = { seconds: number; coldMb: number; peakMb: number }

function evaluate({ seconds, coldMb, peakMb }: Result): number {
  const free = (kind: string) => kinds.get(kind)?.free ?? 0
  const most = Math.max(0, ...freeOf.values())
  const lines = [
    `${addresses} wallets, ${clients} requests that sign in, ${seconds.toFixed(1)} s`,
    ...[...kinds].map(
      ([kind, { answers, calls }]) =>
        `  ${kind.padEnd(16)}${JSON.stringify(answers)}, ${calls} calls of the node`,
    ),
    ...[...costs].map(([kind, { wei, blocks, wallets: count }]) => {
      const usd = (Number(wei) / 1e18) * sponsorDefaults.ethPriceUsd
      const each = (usd / count / requests).toFixed(4)
      return `  ${kind}: ${free(kind)} of ${perDay} free answers, ${count} wallets in ${blocks} blocks; at ${Number(baseFeeWei) / 1e9} gwei gas of ${(usd / count).toFixed(4)} USD a wallet, ${each} USD a free answer`
    }),
    `at most ${most} of ${requests} of a wallet; a capital of ${(Number(least) * rowLength) / 1e6} USD`,
    `memory: ${coldMb.toFixed()} MB before, ${peakMb.toFixed()} MB at most`,
  ]
  process.stdout.write(`${lines.join('\n')}\n`)
  const isGood =
    ['held', 'hopping'].every((kind) => free(kind) <= perDay) &&
    ['dust', 'nothing', 'just moved in'].every((kind) => free(kind) === 0) &&
    most <= requests &&
    free('honest') === 2 &&
    peakMb < memoryMaxMb
  process.stdout.write(isGood ? 'good\n' : 'NOT GOOD\n')
  return isGood ? 0 : 1
}

/** The executable, whose limits of a client are the defaults. */
async function serve(): Promise<{ url: string; peakMb: () => number }> {
  await mine(net.chain, 60)
  const least6 = (Number(least) / 1e6).toFixed(2)
  const more = `
[[merchants]]
slug = "club"
upstream = "${upstream.url}"
allow_private = true
networks = ["${network.id}"]
${['/try', '/other']
  .map(
    (path) => `[[merchants.routes]]
path = "${path}"
price = "0.005"
trial = { requests = ${requests}, per = "wallet", total_per_day = ${perDay}, min_balance = "${least6}", min_balance_age_blocks = ${sponsorDefaults.minBalanceAgeBlocks} }
`,
  )
  .join('')}`
  const urls = { usdc: net.tap.url, usdg: usdg.tap.url, upstream: upstream.url }
  const file = join(directory, 'merchants.toml')
  writeFileSync(
    file,
    configText(urls, more).replace('paid_per_minute = 1000000', 'trust_proxy = 1'),
  )
  const command = [executable, 'serve', '--config', file, '--data', join(directory, 'data')]
  const child = Bun.spawn(command, {
    env: { RELAYER_KEYS: account(0).privateKey },
    stdout: Bun.file(join(directory, 'log')),
    stderr: 'pipe',
  })
  children.push(child)
  const banner = Promise.withResolvers<string>()
  void (async () => {
    let said = ''
    for await (const chunk of child.stderr) {
      said += new TextDecoder().decode(chunk)
      const url = /listens on (\S+)/.exec(said)?.[1]
      if (url !== undefined) banner.resolve(url)
    }
    banner.reject(new Error(said))
  })()
  const peakMb = () =>
    (Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) * 1024) /
    1e6
  return { url: await banner.promise, peakMb }
}
