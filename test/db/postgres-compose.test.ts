import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { readStandby } from '../../db/postgres/admit'
import type { Query } from '../../db/postgres/Line'
import { account } from '../../src/demo/accounts'
import { askedOf } from '../harness/buyer'
import { caddyPath } from '../harness/caddy'
import { hasPostgres } from '../harness/postgres'
import { main } from '../harness/program'
import { startReplicated } from '../harness/replicated'
import { configText, startNetworks, startUpstream, x402Usdc } from '../harness/target'
import { startVersion, type Version } from '../harness/versions'
import { until } from '../harness/world'
import { freePort } from '../soak/program'

/** The example of docs/cluster.md with the files of deploy/, as processes in place of containers. */

setDefaultTimeout(240_000)

const canRun = hasPostgres && caddyPath !== undefined
const keys = [account(0), account(9)]
const directory = mkdtempSync(join(tmpdir(), 'turnpike-compose-'))
const undo: (() => unknown)[] = []
let database: Awaited<ReturnType<typeof startReplicated>>
let upstream: ReturnType<typeof startUpstream>
const ports: number[] = []
const gateways: Version[] = []
let front = ''
let usdc: Awaited<ReturnType<typeof startNetworks>>[0]
let urls: Parameters<typeof configText>[0]

beforeAll(async () => {
  if (!canRun) return
  upstream = startUpstream()
  undo.push(upstream.stop)
  const [sold, usdg] = await startNetworks()
  usdc = sold
  undo.push(usdc.stop, usdg.stop)
  for (const { chain } of [usdc, usdg])
    for (const { address } of keys)
      await chain.rpc('anvil_setBalance', [address, '0x8ac7230489e80000'])
  urls = { usdc: usdc.chain.url, usdg: usdg.chain.url, upstream: upstream.url }
  database = await startReplicated()
  undo.push(database.stop)
  ports.push(await freePort(), await freePort())
  for (const index of [0, 1]) gateways.push(await startGateway(index))
  await startBalancer(await freePort())
})
afterAll(async () => {
  for (const each of gateways) each.signal('SIGKILL')
  await Promise.all(gateways.map(({ exited }) => exited))
  for (const each of undo.toReversed()) await each()
  rmSync(directory, { recursive: true, force: true })
})

function startGateway(index: number): Promise<Version> {
  const text = configText(urls).replace('127.0.0.1:0', `127.0.0.1:${ports[index]}`)
  return startVersion(main, {
    directory: join(directory, String(index)),
    text: text.replace(
      'base_url = "http://localhost"',
      'base_url = "http://localhost"\ntrust_proxy = 1',
    ),
    env: {
      DATABASE_URL: database.url,
      RELAYER_KEYS: keys.map(({ privateKey }) => privateKey).join(),
      CHALLENGE_SECRETS: '11'.repeat(32),
      RECEIPT_KEY: '22'.repeat(32),
      ADMIN_TOKEN: 'an-admin-token-of-mine',
    },
  })
}

async function startBalancer(port: number): Promise<void> {
  front = `http://127.0.0.1:${port}`
  const file = join(directory, 'Caddyfile')
  const sample = readFileSync(join(import.meta.dir, '../../deploy/cluster.Caddyfile'), 'utf8')
  const text = sample
    .replace('api.example.com {', `${front} {`)
    .replace('gateway-1:4020 gateway-2:4020', ports.map((each) => `127.0.0.1:${each}`).join(' '))
  writeFileSync(file, `{\n\tadmin off\n\tauto_https off\n}\n${text}`)
  const caddy = Bun.spawn([caddyPath ?? '', 'run', '--config', file, '--adapter', 'caddyfile'], {
    ...{ env: { HOME: directory, PATH: process.env.PATH }, stdout: 'ignore', stderr: 'ignore' },
  })
  undo.push(() => {
    caddy.kill('SIGKILL')
    return caddy.exited
  })
  await until('the balancer answers', () =>
    fetch(`${front}/healthz`).then(
      ({ status }) => status === 200,
      () => false,
    ),
  )
}

let buyer = 0

/** Headers that pay for one request, by an offer of the balancer's. */
async function sign(): Promise<Record<string, string>> {
  let asked = await fetch(`${front}/m/a/get`)
  await until('a gateway sells', async () => {
    if (asked.status === 402) return true
    asked = await fetch(`${front}/m/a/get`)
    return asked.status === 402
  })
  buyer = (buyer % 4) + 1
  return x402Usdc.pay(await askedOf(asked), account(buyer).local())
}

/** Buys through the balancer. */
async function buy(): Promise<unknown> {
  const headers = await sign()
  return presentUntilSold(headers, present(headers))
}

/** As a client that presents its credential until it is accepted. */
async function presentUntilSold(
  headers: Record<string, string>,
  presented: ReturnType<typeof present>,
): Promise<unknown> {
  let { status, body } = await presented
  await until('the credential buys', async () => {
    expect([200, 409, 502, 503]).toContain(status)
    if (status !== 200) ({ status, body } = await present(headers))
    return status === 200
  })
  return body
}

/** Transactions that the relayers have sent on the chain of the sales. */
async function sent(): Promise<number> {
  const counts = await Promise.all(
    keys.map(({ address }) => usdc.chain.rpc('eth_getTransactionCount', [address, 'pending'])),
  )
  return counts.reduce<number>((sum, count) => sum + Number(count), 0)
}

async function present(headers: Record<string, string>) {
  const answer = await fetch(`${front}/m/a/get`, { headers })
  return { status: answer.status, body: await answer.json().catch(() => undefined) }
}

async function standbyAt(index: number): Promise<unknown> {
  const answer = await fetch(`http://127.0.0.1:${ports[index]}/readyz`)
  return ((await answer.json()) as { database: { standby: string } }).database.standby
}

describe.skipIf(!canRun)('two gateways, a primary with a standby, and Caddy', () => {
  const goods = { goods: '/base/get' }

  test('the example sells, and each commit waits for the standby', async () => {
    expect(await buy()).toEqual(goods)
    for (const index of [0, 1])
      await until('the standby is seen', async () => (await standbyAt(index)) === 'sync')
  })

  test('error: a gateway that is killed is passed over, and sells when it is started again', async () => {
    gateways[0]?.signal('SIGKILL')
    await gateways[0]?.exited
    for (let count = 0; count < 3; count++) expect(await buy()).toEqual(goods)
    // A new start, as by `restart: unless-stopped`.
    gateways[0] = await startGateway(0)
    await until(
      'it sells again',
      async () => (await fetch(`http://127.0.0.1:${ports[0]}/readyz`)).status === 200,
    )
  })

  test('what is shown of the standby is what a commit of the session waits for', async () => {
    await database.atPrimary(async (client) => {
      const query: Query = async <Row>(text: string) => (await client.query(text)).rows as Row[]
      expect(await readStandby(query)).toBe('sync')
      await client.query('SET synchronous_commit = local')
      expect(await readStandby(query)).toBe('async')
      await client.query('SET synchronous_commit = on')
      await database.ofOwner('REVOKE pg_monitor FROM turnpike')
      expect(await readStandby(query)).toBe('unknown')
      await database.ofOwner('GRANT pg_monitor TO turnpike')
      expect(await readStandby(query)).toBe('sync')
    })
  })

  test('error: the standby takes the place of the primary, with every payment, and nothing is sent that it lacks', async () => {
    const count = async () =>
      Number((await database.sql('SELECT count(*) AS n FROM payments'))[0]?.n)
    await until('each is confirmed', async () => (await count()) === 4)
    const headers = await sign()
    await database.pauseStandby()
    const before = await sent()
    const presented = present(headers)
    await until('its commit waits for the standby', database.isWaiting)
    expect([await sent(), upstream.requests.length]).toEqual([before, 4])
    await database.failOver()
    expect(await count()).toBeGreaterThanOrEqual(4)
    expect(await presentUntilSold(headers, presented)).toEqual(goods)
    expect(await count()).toBe(5)
    expect(await sent()).toBe(before + 1)
    for (const index of [0, 1])
      await until('the standby has ended', async () => (await standbyAt(index)) === 'none')
    expect(upstream.requests).toHaveLength(5)
    const states = await database.sql('SELECT DISTINCT state FROM payments')
    expect(states).toEqual([{ state: 'confirmed' }])
  })
})
