import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Address, LocalAccount } from 'viem'
import * as App from '../../src/app'
import type { AppOptions } from '../../src/app/options'
import type { Config } from '../../src/config/Config'
import { loadSecrets } from '../../src/config/env'
import { format, parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain } from '../../src/demo/chains'
import { createLog } from '../../src/log'
import { type Asked, type MppOptions, payMpp, payMppPermit2, payX402 } from './buyer'
import { placeDatabase } from './database'
import { networkOf, startNetwork, type startTap } from './settlement'
import type { Sql } from './sql'
import { dropDatabaseOf, isPostgres, openTestServer, sqlBeside } from './test-ledger'
import { until } from './world'

/** The attacked gateway, with control over its chains, its upstream and its clock. */
export type Target = {
  url: string
  app: App.App
  dataDir: string
  /**
   * Tokens behave like USDC on 8453 and like USDG on 4663. The gateway's calls to them pass through
   * the taps.
   */
  usdc: Side
  usdg: Side
  upstream: Upstream
  logged: string[]
  /** The gateway's clock, unix ms. */
  clock: { offsetMs: number }
  /** Applies a change of `[service]`, as a reload of the file does. */
  reload(changes: Partial<Config['service']>): Promise<void>
  /** Rows of the tables that a payment writes to. */
  rows(): number
  payments(): PaymentRow[]
  stop(): Promise<void>
}

export type Side = {
  chain: Chain
  tap: ReturnType<typeof startTap>
  token: Address
  balanceOf(holder: Address): Promise<bigint>
}

export type Seen = {
  method: string
  target: string
  headers: Record<string, string>
  body: string
}

export type Upstream = {
  url: string
  requests: Seen[]
  /** Replaces the usual answer. */
  answer: ((seen: Seen) => Response | Promise<Response>) | undefined
  stop(): void
}

type PaymentRow = {
  state: string
  delivery: string
  attempts: number
  truncated: number
  route: string
  transaction_hash: string
}

/** Price of every route of the target, atomic. */
export const price = 5000n
export const seller = account(7).address
export const merchantSecret = 'sk-live-0123456789abcdef'

/** The file of the target. `more` is appended after its merchants. */
export function configText(
  urls: { usdc: string; usdg: string; upstream: string },
  more = '',
): string {
  const merchant = (slug: string) => `
[[merchants]]
slug = "${slug}"
upstream = "${urls.upstream}/base"
allow_private = true
headers = { "Authorization" = "Bearer ${merchantSecret}", "X-Upstream" = "${slug}" }
timeout_ms = 3000
[[merchants.routes]]
path = "/get"
price = "0.005"
[[merchants.routes]]
path = "/post"
methods = ["POST"]
price = "0.005"
[[merchants.routes]]
path = "/both"
methods = ["GET", "POST"]
price = "0.005"
pass_headers = ["x-total"]
`
  return `
[service]
payout = "${seller}"
listen = "127.0.0.1:0"
base_url = "http://localhost"
mpp_order = ["eip155:8453", "eip155:4663"]
paid_per_minute = 1000000
settle_wait_seconds = 10
stop_seconds = 1
${networkText('eip155:8453', urls.usdc, 'usdc', '["eip3009"]')}
${networkText('eip155:4663', urls.usdg, 'usdg', '["permit2", "eip3009"]')}
${merchant('a')}${merchant('b')}${more}`
}

function networkText(id: string, url: string, manners: 'usdc' | 'usdg', transfer: string): string {
  const { asset } = networkOf(url, manners)
  return `
[networks."${id}"]
name = "${manners}"
rpc_urls = ["${url}"]
[networks."${id}".asset]
symbol = "${asset.symbol}"
address = "${asset.address}"
transfer = ${transfer}
eip712 = { name = "${asset.eip712.name}", version = "${asset.eip712.version}" }
reverts_on_used_nonce = ${manners === 'usdc'}`
}

/** The chains of a target. */
export type Networks = Awaited<ReturnType<typeof startNetworks>>
export const startNetworks = () => Promise.all([startNetwork('usdc'), startNetwork('usdg')])

/** Starts a target; `more` is appended to its merchants.toml. */
export async function startTarget(
  options: {
    more?: (upstreamUrl: string) => string
    service?: Partial<Config['service']>
    /** Chains that outlive the target. */
    networks?: Networks
  } & Partial<AppOptions> = {},
): Promise<Target> {
  const { more, service, networks: lent, ...limits } = options
  const upstream = startUpstream()
  const networks = lent ?? (await startNetworks())
  const [usdc, usdg] = networks
  const urls = { usdc: usdc.tap.url, usdg: usdg.tap.url, upstream: upstream.url }
  const text = configText(urls, more?.(upstream.url))
  const env = { RELAYER_KEYS: account(0).privateKey }
  const { config: parsed, faults } = parseConfig(text, { file: 'target.toml', env })
  if (parsed === undefined) throw new Error(faults.map(format).join('\n'))
  const config = { ...parsed, service: { ...parsed.service, ...service } }
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-target-'))
  if (!isPostgres) placeDatabase(dataDir)
  const secrets = loadSecrets({ dataDir, env })
  const logged: string[] = []
  const clock = { offsetMs: 0 }
  const app = await App.start({
    ...(isPostgres && { openServer: (context) => openTestServer(context, secrets) }),
    config,
    secrets,
    dataDir,
    log: createLog({ write: (line) => void logged.push(line), pretty: false }),
    now: () => Date.now() + clock.offsetMs,
    // One buyer attacks in many ways here; test/settlement/settlement-budgets.test.ts tests how often it may.
    payerFailuresMax: 1_000,
    blockTimeMs: 100,
    // Tests move one clock without the others.
    clockSkewMaxMs: Number.POSITIVE_INFINITY,
    ...limits,
  })
  const database = sqlBeside(dataDir, { isReader: true })
  return {
    url: app.url,
    app,
    dataDir,
    usdc: sideOf(usdc, 'usdc'),
    usdg: sideOf(usdg, 'usdg'),
    upstream,
    logged,
    clock,
    async reload(changes) {
      const places = await app.reload({ ...config, service: { ...config.service, ...changes } })
      if (places.length > 0) throw new Error(`needs a restart: ${places.join()}`)
    },
    ...readers(database),
    async stop() {
      await app.stop()
      database.close()
      upstream.stop()
      if (lent === undefined) await Promise.all(networks.map((network) => network.stop()))
      await dropDatabaseOf(dataDir)
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}

/** Reads the gateway's database through another connection. */
export function readers(database: Sql): Pick<Target, 'rows' | 'payments'> {
  const tables = ['payments', 'transactions', 'answers', 'gas_spent']
  const sum = tables.map((table) => `(SELECT count(*) FROM ${table})`).join(' + ')
  return {
    rows: () => database.query<{ n: number }, []>(`SELECT ${sum} AS n`).get()?.n ?? -1,
    payments: () =>
      database.query<PaymentRow, []>('SELECT * FROM payments ORDER BY created_at, id').all(),
  }
}

function sideOf(
  { chain, tap }: Awaited<ReturnType<typeof startNetwork>>,
  manners: 'usdc' | 'usdg',
): Side {
  const token = networkOf(chain.url, manners).asset.address
  return { chain, tap, token, balanceOf: (holder) => balanceOf(chain, token, holder) }
}

/** An upstream that stores its requests. */
export function startUpstream(): Upstream {
  const requests: Seen[] = []
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    idleTimeout: 0,
    async fetch(incoming) {
      const { pathname, search } = new URL(incoming.url)
      const seen: Seen = {
        method: incoming.method,
        target: pathname + search,
        headers: Object.fromEntries(incoming.headers),
        body: await incoming.text(),
      }
      requests.push(seen)
      return upstream.answer?.(seen) ?? Response.json({ goods: seen.target })
    },
  })
  const upstream: Upstream = {
    url: `http://127.0.0.1:${server.port}`,
    requests,
    answer: undefined,
    stop: () => void server.stop(true),
  }
  return upstream
}

/** A way to pay: protocol, transfer method and chain. */
export type Way = {
  name: string
  protocol: 'mpp' | 'x402'
  method: 'eip3009' | 'permit2'
  side: 'usdc' | 'usdg'
  /** Headers that pay for the request. */
  pay(
    asked: Asked,
    signer: LocalAccount,
    options?: Omit<MppOptions, 'echo' | 'source'>,
  ): Promise<Record<string, string>>
}

const mpp = (chainId: number, method: Way['method']): Way => ({
  name: `MPP ${method} on ${chainId}`,
  protocol: 'mpp',
  method,
  side: chainId === 8453 ? 'usdc' : 'usdg',
  async pay(asked, signer, options) {
    const challenge = asked.challenges.find(
      ({ request }) => request.methodDetails.chainId === chainId,
    )
    if (challenge === undefined) throw new Error(`no challenge of ${chainId}`)
    const sign = method === 'eip3009' ? payMpp : payMppPermit2
    return { authorization: await sign(challenge, signer, options) }
  },
})

const x402 = (chainId: number, method: Way['method']): Way => ({
  name: `x402 ${method} on ${chainId}`,
  protocol: 'x402',
  method,
  side: chainId === 8453 ? 'usdc' : 'usdg',
  async pay(asked, signer, options) {
    const network = `eip155:${chainId}`
    return {
      'payment-signature': await payX402(asked.required, signer, { network, method, ...options }),
    }
  },
})

export const mppUsdc = mpp(8453, 'eip3009')
export const mppUsdg = mpp(4663, 'eip3009')
export const mppPermit = mpp(4663, 'permit2')
export const x402Usdc = x402(8453, 'eip3009')
export const x402Usdg = x402(4663, 'eip3009')
export const x402Permit = x402(4663, 'permit2')
export const ways: readonly Way[] = [mppUsdc, mppUsdg, mppPermit, x402Usdc, x402Usdg, x402Permit]

/**
 * The credential in payment headers with members replaced, named by their paths; undefined removes
 * one. The signature is unchanged.
 */
export function tampered(
  headers: Record<string, string>,
  changes: Readonly<Record<string, unknown>>,
): Record<string, string> {
  return rewritten(headers, (text) => {
    const json: unknown = JSON.parse(text)
    for (const [path, value] of Object.entries(changes)) {
      const names = path.split('.')
      const last = names.pop() ?? ''
      let parent = json as Record<string, unknown>
      for (const name of names) parent = parent[name] as Record<string, unknown>
      if (value === undefined) delete parent[last]
      else parent[last] = value
    }
    return JSON.stringify(json)
  })
}

/** The credential in payment headers with its JSON text changed. */
export function rewritten(
  headers: Record<string, string>,
  change: (text: string) => string | Uint8Array,
): Record<string, string> {
  const rewrite = (value: string, encoding: 'base64' | 'base64url') =>
    Buffer.from(change(Buffer.from(value, encoding).toString())).toString(encoding)
  const { authorization, 'payment-signature': signature, ...others } = headers
  return {
    ...others,
    ...(authorization === undefined
      ? {}
      : { authorization: `Payment ${rewrite(authorization.slice(8), 'base64url')}` }),
    ...(signature === undefined ? {} : { 'payment-signature': rewrite(signature, 'base64') }),
  }
}

/** Runs requests to their end and reports their cost and effects. */
export async function effects<T>(
  target: Target,
  run: () => Promise<T>,
): Promise<{ result: T; rows: number; forwarded: number; paidAtomic: bigint }> {
  const held = async () =>
    (await target.usdc.balanceOf(seller)) + (await target.usdg.balanceOf(seller))
  const before = [target.rows(), target.upstream.requests.length, await held()] as const
  const result = await run()
  // The delivery is recorded after the answer was sent.
  await until('it is recorded', () =>
    target.payments().every(({ delivery }) => delivery !== 'delivering'),
  )
  return {
    result,
    rows: target.rows() - before[0],
    forwarded: target.upstream.requests.length - before[1],
    paidAtomic: (await held()) - before[2],
  }
}

/** The expected effects of a refused request. */
export const nothing = { rows: 0, forwarded: 0, paidAtomic: 0n }
