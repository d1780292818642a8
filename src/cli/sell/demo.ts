import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import shipped from '../../../merchants.toml' with { type: 'text' }
import { account } from '../../demo/accounts'
import { assertClients } from '../../demo/buyers'
import { startWorld, type World } from '../../demo/world'
import { createLog } from '../../log'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { isCompiled, self, unreadable } from '../words'
import { buyWithEveryClient, goods, question, refundAccount } from './trials'

const defaultPort = 4020
/** A route whose buyers come back, in place of that of the samples. */
const regular = `path = "/air-quality"
again = "24h"
trial = { requests = 1, per = "wallet", total_per_day = 500, min_balance_age_blocks = 0 }
pass = { price = "1.00", period = "24h", requests = 500 }
`
/** Sold by transfers only: the head of its 402 has no room for channels and every challenge. */
const forecastRoute = 'path = "/forecast"\n'
/** A merchant on one network, whose head has room for channels. */
const alone = 'slug = "crypto-markets"\n'
/** Payment channels: one deposit is enough for the requests of the demo, whose last makes a claim due. */
const channels = `
[networks."eip155:8453".channels]
min_deposit = "1.50"
claim_above = "1.00"
`
/** Ports of the gateway, three chains and the upstreams. */
const portsUsed = 5

/**
 * Runs the shipped configuration on local chains until Ctrl-C or SIGTERM. Returns the exit code. In
 * every case it stops everything that it started.
 */
export async function demo({ once = false, config, env, now }: Run<'demo'>): Promise<number> {
  // Installed before anything starts: an early Ctrl-C must not leave files behind.
  const interrupted = interruption()
  const logged: string[] = []
  const write = once ? (line: string) => void logged.push(line) : undefined
  let world: World | undefined
  try {
    const port = parsePort(env.PORT)
    const text = await readConfiguration(config)
    if (once) await assertClients()
    assertFree(port)
    world = await startWorld({
      text,
      file: config ?? 'merchants.toml',
      port,
      exchange: true,
      refunds: refundAccount,
      log: createLog({ pretty: true, ...(write && { write }) }),
      progress: (step) => print(`started ${step}`),
    })
    if (!once) {
      print(instructions(world, port))
      await interrupted
      return 0
    }
    const buying = buyWithEveryClient(world, `http://localhost:${port}`, { print, now })
    const bought = await Promise.race([buying, interrupted])
    if (bought !== true) print(logged.join('\n'))
    return bought === true ? 0 : 1
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    process.stderr.write(`turnpike: ${message.trim()}\n`)
    return 1
  } finally {
    await world?.stop()
  }
}

function parsePort(text: string | undefined): number {
  if (text === undefined || text === '') return defaultPort
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0
  const last = 65_536 - portsUsed
  if (port < 1 || port > last)
    throw new CommandError(`PORT must be a number from 1 to ${last}: ${portsUsed} ports are used.`)
  return port
}

/** By default the demo sells the samples of the file that ships, wherever it runs. */
async function readConfiguration(file: string | undefined): Promise<string> {
  if (file === undefined)
    return shipped
      .replace('path = "/air-quality"\n', regular)
      .replace(forecastRoute, `${forecastRoute}schemes = ["exact"]\n`)
      .replace(alone, `${alone}networks = ["eip155:8453"]\n`)
      .concat(channels)
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw new CommandError(unreadable(resolve(file), error))
  }
}

/** Checks the ports first, for a better message than that of the program that would fail. */
function assertFree(port: number): void {
  for (let candidate = port; candidate < port + portsUsed; candidate++) {
    try {
      const socket = { data: () => undefined }
      Bun.listen({ hostname: '127.0.0.1', port: candidate, exclusive: true, socket }).stop(true)
    } catch {
      throw new CommandError(
        `port ${candidate} is in use. The demo needs ${port} to ${port + portsUsed - 1}; ` +
          'PORT moves all of them.',
      )
    }
  }
}

function interruption(): Promise<void> {
  return new Promise((done) => {
    // Not `once`: a second Ctrl-C during the stop would end this process before the chains.
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => done())
  })
}

function instructions(world: World, port: number): string {
  const base = `http://localhost:${port}`
  const forecast = `'${base}${goods.forecast}'`
  const key = account(1).privateKey
  const onBase = world.chains['eip155:8453']?.url
  const pay = `PAY_KEY=${key} ${self()} pay`
  const chains = Object.values(world.chains)
    .toSorted((a, b) => a.port - b.port)
    .map(({ chainId, url }) => `  chain ${String(chainId).padEnd(10)} ${url}`)
  const mppx = isCompiled()
    ? []
    : [
        '',
        'Buy with the stock client of MPP, by either protocol',
        `  MPPX_PRIVATE_KEY=${key} npx mppx ${forecast} --protocol mpp`,
        `  MPPX_PRIVATE_KEY=${key} npx mppx ${forecast} --protocol x402`,
      ]
  return [
    '',
    `  gateway          ${base}`,
    `  page for people  ${base}/`,
    `  for operators    ${base}/admin with the token ${world.adminToken}`,
    `  catalogue        ${base}/openapi.json`,
    `  stocks           ${base}/api/stock/list`,
    `  health           ${base}/healthz`,
    ...chains,
    `  upstreams        ${world.upstreams.url}`,
    '',
    "The keys below are anvil's well-known accounts, which hold 10,000 USDC or USDG on each chain.",
    '',
    'Ask for the price',
    `  curl -i ${forecast}`,
    '',
    'Buy by MPP, with USDC on 8453',
    `  ${pay} ${forecast} --protocol mpp --network eip155:8453`,
    '',
    'Buy by x402, with USDG on 4663 through Permit2',
    `  ${pay} '${base}${goods.chat}' --body '${question}' \\`,
    '    --protocol x402 --network eip155:4663 --transfer permit2',
    '',
    'Buy by the x402 scheme upto: the answer costs what it uses, and the price is the ceiling',
    `  ${pay} '${base}${goods.chat}' --body '${question}' \\`,
    '    --scheme upto --network eip155:8453',
    '',
    'Buy with a wallet that has USDG and no gas: it is sponsored, approves Permit2, pays',
    `  PAY_KEY=${account(3).privateKey} ${self()} pay ${forecast} \\`,
    '    --protocol mpp --network eip155:4663 --transfer permit2 ' +
      `--rpc ${world.chains['eip155:4663']?.url}`,
    '',
    'Buy a pass for 500 requests of a day, and use it: the second line costs nothing',
    `  ${pay} '${base}${goods.pass}' --max 1 --network eip155:8453`,
    `  ${pay} '${base}${goods.air}' --sign-in-only`,
    '',
    'Deposit 1.50 USDC into a payment channel, buy from it without a transaction, get the rest back',
    `  ${pay} '${base}${goods.global}' --scheme channel --deposit 1.50 --rpc ${onBase}`,
    `  ${pay} '${base}${goods.global}' --scheme channel --rpc ${onBase}`,
    `  PAY_KEY=${key} ${self()} channels close --rpc ${onBase}`,
    '',
    'Buy a tokenized stock for 2 USDG',
    `  ${pay} '${base}${goods.stock}' --method POST --max 2 --network eip155:4663`,
    ...mppx,
    '',
    'Ctrl-C stops everything.',
    '',
  ].join('\n')
}

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
