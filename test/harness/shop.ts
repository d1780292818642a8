import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { LocalAccount } from 'viem'
import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, open as openDatabase } from '../../db/sqlite/open'
import * as App from '../../src/app'
import type { AppOptions } from '../../src/app/options'
import type { Config } from '../../src/config/Config'
import { loadSecrets, type Secrets } from '../../src/config/env'
import { format, parseConfig } from '../../src/config/merchants'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain } from '../../src/demo/chains'
import { openExchange } from '../../src/demo/exchange'
import { createLog } from '../../src/log'
import type * as Network from '../../src/protocol/Network'
import {
  ask,
  type MppOptions,
  payMpp,
  payMppPermit2,
  payX402,
  wholeChallenges,
  type X402Options,
} from './buyer'
import { startChains } from './chains'
import { placeDatabase } from './database'
import { leaseChains, returnChain } from './lease'
import { connect, request } from './raw'
import { startTap } from './settlement'
import { dropDatabaseOf, isPostgres, notSqlite, openTestServer, sqlBeside } from './test-ledger'
import { type ScriptedUpstream, startScripted } from './upstream'
import { until } from './world'

/** Account that the merchants of a shop are paid to. */
export const payee = account(7).address

/**
 * Sells the answers of a scripted upstream, on three chains, with a tap between the gateway and
 * each. The price is 0.005 unless a route has another one.
 */
export const merchants = `
[[merchants]]
slug = "shop"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453", "eip155:84532"]
testnet_ok = true
headers = { Authorization = "Bearer upstream-s3cret-key" }

[[merchants.routes]]
path = "/item"
methods = ["GET", "POST"]
price = "0.005"
pass_headers = ["X-Passed"]

[[merchants.routes]]
path = "/other"
methods = ["GET", "POST"]
price = "0.005"

[[merchants.routes]]
path = "/form"
methods = ["GET", "POST"]
price = "0.02"
tail = "none"
[[merchants.routes.params]]
name = "symbol"
required = true
schema = { type = "string", maxLength = 4 }
[merchants.routes.body]
type = "object"
required = ["symbol"]
additionalProperties = false
properties.symbol = { type = "string" }

[[merchants]]
slug = "hasty"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
timeout_ms = 300
idle_ms = 300
[[merchants.routes]]
path = "/item"
price = "0.005"

[[merchants]]
slug = "closed"
upstream = "https://shop.example.com"
headers = { X-Key = "\${NOT_SET}" }
[[merchants.routes]]
path = "/item"
price = "0.005"

[[merchants]]
slug = "away"
upstream = "https://away.example.com"
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/item"
price = "0.005"
`

export type Tap = ReturnType<typeof startTap>

export type Shop = {
  url: string
  app: App.App
  config: Config
  secrets: Secrets
  chains: Readonly<Record<Network.Id, Chain>>
  taps: Readonly<Record<Network.Id, Tap>>
  upstream: ScriptedUpstream
  /** Every line that was logged. */
  logged: string[]
  dataDir: string
  /** The gateway's own connection to SQLite. */
  readonly db: Db
  /** A ledger over the gateway's database. */
  readonly ledger: Ledger
  /** Moves the gateway's clock; the chains keep theirs. */
  advance(ms: number): void
  /** The gateway's clock, unix ms. */
  now(): number
  /** Stops the gateway's clock during an action, in which limits of a minute allow no more. */
  still(action: () => Promise<void>): Promise<void>
  /** The database as another process reads it. */
  rows(sql: string): Record<string, unknown>[]
  /** Rows of every table that a request can write to. */
  counts(): Record<string, number>
  balance(network: Network.Id, holder: `0x${string}`): Promise<bigint>
  /** JSON-RPC requests of the gateway so far, by all taps. */
  calls(): number
  /** The configuration of the file after a change of its text. */
  edited(edit: (text: string) => string): Config
  /**
   * Ends the gateway and starts it over the same data directory, with another configuration if one
   * is given.
   */
  restart(config?: Config): Promise<void>
  stop(): Promise<void>
}

export type ShopOptions = {
  /** Changes the text of the shipped file, to which the merchants above are added. */
  edit?: (text: string) => string
  /** Changes settings that the file does not have. */
  adjust?: (config: Config) => Config
  /** Limit of the stored answers, bytes. */
  answersMaxBytes?: number
  refundsMax?: number
  /** Replaces the function that opens the gateway's database. */
  openDatabase?: typeof openDatabase
  orderRetryMs?: number
  clockSkewMaxMs?: number
  transferRateMin?: AppOptions['transferRateMin']
  posting?: AppOptions['posting']
  /** Keys in addition to the relayer's. */
  env?: Readonly<Record<string, string>>
  /** Also the Uniswap pools, stock tokens and price feeds of `[stock]`. */
  exchange?: boolean
  /** Chains that outlive the shop. */
  chains?: readonly Chain[]
}

const tables = [
  'payments',
  'authorizations',
  'transactions',
  'transaction_members',
  'answers',
  'gas_spent',
]

const nowhere = 'http://127.0.0.1:1'
const ids = ['eip155:4663', 'eip155:8453', 'eip155:84532']

/** The chains of a shop. */
export async function startShopChains(): Promise<Chain[]> {
  const shipped = await Bun.file(`${import.meta.dir}/../../merchants.toml`).text()
  return startChains(placesOf(shipped).networks)
}

/** The networks and the stocks of a file, which are known before its chains have URLs. */
type Places = Pick<Config, 'networks' | 'stock'>
const places = new Map<string, Places>()

/** Most shops have the same file, and to read it takes a quarter of the time of a start. */
function placesOf(text: string, env?: ShopOptions['env']): Places {
  const known =
    places.get(text) ??
    configOf(text, Object.fromEntries(ids.map((id) => [id, nowhere])), nowhere, env)
  places.set(text, known)
  return known
}

/** Starts a shop; `stop` ends everything. Throws when any part does not start. */
export async function startShop(options: ShopOptions = {}): Promise<Shop> {
  const shipped = await Bun.file(`${import.meta.dir}/../../merchants.toml`).text()
  const text = options.edit?.(shipped + merchants) ?? shipped + merchants
  const upstream = await startScripted()
  const unstarted = placesOf(text, options.env)
  const { networks } = unstarted
  const started = options.chains ?? (await leaseChains(networks))
  if (options.exchange === true) await openPools(unstarted, started)
  const taps = started.map((chain) => startTap(chain.url))
  const byId = <T>(list: readonly T[]): Record<Network.Id, T> =>
    Object.fromEntries(networks.map(({ id }, index) => [id, list[index] as T]))
  const rpcUrls = byId(taps.map((tap) => tap.url))
  const parsed = configOf(text, rpcUrls, upstream.url, options.env)
  const config = options.adjust?.(parsed) ?? parsed
  const dataDir = mkdtempSync(join(tmpdir(), 'turnpike-shop-'))
  if (!isPostgres) placeDatabase(dataDir)
  const gateway = gatewayOf(config, dataDir, options.env)
  const { secrets, logged } = gateway
  const app = await startGateway(gateway, options)
  const chains = byId(started)
  const reader = sqlBeside(dataDir, { isReader: true })
  const rows = (sql: string) => reader.query<Record<string, unknown>>(sql).all()
  const shop: Shop = {
    url: app.url,
    app,
    config,
    secrets,
    chains,
    taps: byId(taps),
    upstream,
    logged,
    dataDir,
    get db() {
      return gateway.db ?? notSqlite()
    },
    get ledger() {
      return gateway.ledger ?? createLedger(shop.db)
    },
    ...clockOf(gateway),
    rows,
    counts: () => Object.fromEntries(tables.map((table) => [table, countOf(rows, table)])),
    async balance(network, holder) {
      const chain = chains[network]
      const asset = config.networks.find(({ id }) => id === network)?.asset
      if (chain === undefined || asset === undefined) throw new Error(`no ${network}`)
      return balanceOf(chain, asset.address, holder)
    },
    calls: () => taps.reduce((sum, tap) => sum + tap.calls.length, 0),
    edited: (edit) => configOf(edit(text), rpcUrls, upstream.url, options.env),
    async restart(config = gateway.config) {
      await shop.app.stop()
      gateway.config = config
      shop.app = await startGateway(gateway, options)
      shop.url = shop.app.url
    },
    async stop() {
      await shop.app.stop()
      reader.close()
      for (const tap of taps) tap.stop()
      upstream.stop()
      if (options.chains === undefined) await Promise.all(started.map(returnChain))
      await dropDatabaseOf(dataDir)
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
  return shop
}

function gatewayOf(config: Config, dataDir: string, env: ShopOptions['env']): Gateway {
  const secrets = loadSecrets({
    dataDir,
    env: { RELAYER_KEYS: account(0).privateKey, ...env },
    hasChannels: config.networks.some(({ channels }) => channels !== undefined),
  })
  return {
    ...{ config, secrets, dataDir, logged: [] },
    ...{ db: undefined, ledger: undefined, offsetMs: 0, stillAt: undefined },
  }
}

function countOf(rows: Shop['rows'], table: string): number {
  return Number(rows(`SELECT count(*) AS n FROM ${table}`)[0]?.n)
}

/** Prepares the parts of `[stock]` on its chain. */
async function openPools({ networks, stock }: Places, chains: readonly Chain[]): Promise<void> {
  if (stock === undefined) return
  const index = networks.findIndex(({ id }) => id === stock.network)
  const [chain, network] = [chains[index], networks[index]]
  if (chain === undefined || network === undefined) throw new Error(`no ${stock.network}`)
  await openExchange(chain, network.asset.address, stock)
}

/** The gateway of a shop, from one start to the next. */
type Gateway = {
  config: Config
  readonly secrets: Secrets
  readonly dataDir: string
  readonly logged: string[]
  /** Its own connection to SQLite, once it was started. */
  db: Db | undefined
  /** Its ledger in PostgreSQL. */
  ledger: Ledger | undefined
  /** How far the gateway's clock is ahead, ms. */
  offsetMs: number
  /** Its time while the clock stands still. */
  stillAt: number | undefined
}

function nowOf({ offsetMs, stillAt }: Gateway): number {
  return stillAt ?? Date.now() + offsetMs
}

function clockOf(gateway: Gateway): Pick<Shop, 'advance' | 'now' | 'still'> {
  return {
    advance: (ms) => {
      gateway.offsetMs += ms
    },
    now: () => nowOf(gateway),
    async still(action) {
      gateway.stillAt = nowOf(gateway)
      await action().finally(() => {
        gateway.stillAt = undefined
      })
    },
  }
}

function startGateway(gateway: Gateway, options: ShopOptions): Promise<App.App> {
  const { config, secrets, dataDir, logged } = gateway
  const { answersMaxBytes, refundsMax, orderRetryMs, transferRateMin } = options
  const openServer: AppOptions['openServer'] = async (context) => {
    const database = await openTestServer(context, secrets)
    gateway.ledger = database.ledger
    return database
  }
  return App.start({
    ...(isPostgres && { openServer }),
    openDatabase: (from) => {
      const db = (options.openDatabase ?? openDatabase)(from)
      gateway.db = db
      return db
    },
    config,
    secrets,
    dataDir,
    log: createLog({ write: (line) => void logged.push(line), pretty: false }),
    now: () => nowOf(gateway),
    blockTimeMs: 100,
    refundLookMs: 10,
    // On a busy machine a chain may take longer than buyers want to wait for a price.
    marketTimeoutMs: 60_000,
    rpcTimeoutMs: 60_000,
    // Tests move one clock without the others.
    clockSkewMaxMs: options.clockSkewMaxMs ?? Number.POSITIVE_INFINITY,
    ...(answersMaxBytes === undefined ? {} : { answersMaxBytes }),
    ...(transferRateMin === undefined ? {} : { transferRateMin }),
    ...(options.posting === undefined ? {} : { posting: options.posting }),
    ...(refundsMax === undefined ? {} : { refundsMax }),
    ...(orderRetryMs === undefined ? {} : { orderRetryMs }),
  })
}

/** The configuration of a file's text, whose upstreams are the scripted one or unreachable. */
function configOf(
  text: string,
  rpcUrls: Record<string, string>,
  upstream: URL | string,
  env: ShopOptions['env'] = {},
): Config {
  const { config, faults } = parseConfig(text, {
    file: 'merchants.toml',
    env: { RELAYER_KEYS: account(0).privateKey, ASSISTANT_KEY: 'assistant-s3cret-key', ...env },
    overrides: {
      rpcUrls,
      payout: payee,
      baseUrl: 'http://localhost:4020',
      listen: '127.0.0.1:0',
      upstream: (url) =>
        new URL(url.pathname, url.hostname === 'away.example.com' ? nowhere : upstream),
    },
  })
  if (config === undefined) throw new Error(faults.map(format).join('\n'))
  // On a busy machine a settlement may take longer than the file allows.
  return { ...config, service: { ...config.service, settleWaitSeconds: 120 } }
}

/**
 * Sets how long a buyer waits for its settlement from now on. Use a short time only for an answer
 * that must be pending: on a busy machine a payment that must succeed would fail.
 */
export async function setSettleWait(
  { app, config }: Shop,
  settleWaitSeconds: number,
): Promise<void> {
  const places = await app.reload({ ...config, service: { ...config.service, settleWaitSeconds } })
  if (places.length > 0) throw new Error(`needs a restart: ${places.join()}`)
}

/** Resolves when the end of every delivery is stored: an answer may reach its buyer before that. */
export async function untilEnded({ rows }: Pick<Shop, 'rows'>): Promise<void> {
  await until('every delivery has ended', () => {
    const open = rows("SELECT id FROM payments WHERE delivery = 'delivering'")
    return open.length === 0
  })
}

/**
 * Asks until no other request has the money. PostgreSQL shows others the end of a delivery a moment
 * before the gateway, which releases its claim then, has the answer.
 */
export async function untilFree(ask: () => Promise<Response>): Promise<Response> {
  let response = await ask()
  const isFree = async () => !(await response.clone().text()).includes('payment-in-progress')
  if (await isFree()) return response
  await until('the money is free', async () => {
    response = await ask()
    return isFree()
  })
  return response
}

export type Scheme = 'mpp' | 'mpp-permit2' | 'x402-eip3009' | 'x402-permit2'

export type Terms = {
  /** Default: MPP by EIP-3009 on 8453. */
  scheme?: Scheme
  network?: Network.Id
  /** Index of a demo account; 1 by default. */
  buyer?: number
  /** Pays in place of a demo account. */
  signer?: LocalAccount
  /** The request for the price, which is later paid. */
  init?: RequestInit
} & MppOptions &
  Partial<Omit<X402Options, 'method'>>

/** Requests a price and signs it: the headers that pay for the request. */
export async function sign(url: string, terms: Terms = {}): Promise<Record<string, string>> {
  const { scheme = 'mpp', buyer = 1, init, ...options } = terms
  const network = terms.network ?? (scheme.endsWith('permit2') ? 'eip155:4663' : 'eip155:8453')
  const asked = await ask(url, init)
  const signer = terms.signer ?? account(buyer).local()
  if (scheme === 'x402-eip3009' || scheme === 'x402-permit2') {
    const method = scheme === 'x402-permit2' ? 'permit2' : 'eip3009'
    // When the header is too long, further transfer methods are only in the body.
    const { accepts = asked.required.accepts } = asked.whole
    const required = { ...asked.required, accepts }
    const payment = await payX402(required, signer, { ...options, network, method })
    return { 'payment-signature': payment }
  }
  const challenges = scheme === 'mpp' ? asked.challenges : wholeChallenges(asked)
  const challenge = challenges.find(
    ({ request }) => `eip155:${request.methodDetails.chainId}` === network,
  )
  if (challenge === undefined) throw new Error(`no challenge for ${network}: ${url}`)
  const pay = scheme === 'mpp' ? payMpp : payMppPermit2
  return { authorization: await pay(challenge, signer, options) }
}

/** Requests, signs and pays. */
export async function buy(
  url: string,
  terms: Terms = {},
  headers: Record<string, string> = {},
): Promise<Response> {
  const credential = await sign(url, terms)
  return fetch(url, { ...terms.init, headers: { ...headers, ...credential } })
}

/** A request whose buyer can disconnect: `leave` resolves when the gateway has noticed. */
export function openConnection(
  url: string,
  headers: Record<string, string>,
): { leave(): Promise<void> } {
  const { pathname, search } = new URL(url)
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
  const socket = connect(url, request(pathname + search, lines))
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()))
  socket.resume()
  return {
    leave() {
      socket.end()
      return closed
    },
  }
}
