import type { Hex } from 'viem'
import type { OnChain } from '../../db/Channel'
import type { Ledger } from '../../db/Ledger'
import { createLedger } from '../../db/sqlite/ledger'
import { type Db, openInMemory } from '../../db/sqlite/open'
import { createRanges } from '../../src/books/ranges'
import { createRecent } from '../../src/books/read'
import type { Config } from '../../src/config/Config'
import { createBudget } from '../../src/http/body'
import { errors } from '../../src/http/problem'
import { createRateLimit } from '../../src/http/rate-limit'
import { createLog } from '../../src/log'
import * as Channel from '../../src/protocol/Channel'
import { createSessions } from '../../src/web/admin/sessions'
import type { AdminSources } from '../../src/web/admin/sources'
import { createAdminPages } from '../../src/web/admin/start'
import { configOf, small } from './config'

export const token = 'a-token-of-the-operator'

export type AdminOptions = {
  config?: Config
  /** The service's `base_url`, when the browser uses another one. */
  baseUrl?: string
  adminToken?: string
  sources?: Partial<AdminSources>
  /** Sessions of an earlier configuration. */
  sessions?: ReturnType<typeof createSessions>
}

/** The pages of the operator alone, over an empty ledger in memory. */
export function adminPages(options: AdminOptions = {}) {
  const base = options.config ?? configOf(small)
  const baseUrl = options.baseUrl ?? 'https://pay.example.com'
  const config = { ...base, service: { ...base.service, baseUrl } }
  const state = { now: Date.parse('2026-11-20T10:30:00Z'), address: '192.0.2.1' }
  const now = () => state.now
  const db = openInMemory({ now })
  const ledger = createLedger(db)
  const logged: string[] = []
  const log = createLog({ write: (line) => void logged.push(line), pretty: false })
  const sessions = options.sessions ?? createSessions(now)
  const sources = { ...sourcesOf(ledger, now), ...options.sources }
  const admin = createAdminPages(config, {
    adminToken: options.adminToken ?? token,
    sessions,
    budget: createBudget(1_000_000),
    rateLimit: createRateLimit(),
    addressOf: () => state.address,
    now,
    log,
    sources,
  })
  const app = routesOf(admin, errors({ baseUrl, log, requestId: () => 'id' }))
  const send = async (path: string, init: RequestInit = {}) =>
    app.fetch(new Request(`http://localhost${path}`, init))
  const get = (path: string, headers: Record<string, string> = {}) => send(path, { headers })
  /** Sends a form of ours as a browser does. */
  const post = (
    path: string,
    fields: Record<string, string>,
    headers: Record<string, string> = {},
  ) =>
    send(path, {
      method: 'POST',
      body: new URLSearchParams(fields).toString(),
      headers: { ...formHeaders, ...headers },
    })
  return {
    state,
    db,
    ledger,
    logged,
    sessions,
    fetch: (request: Request) => app.fetch(request),
    send,
    get,
    post,
    /** Signs in; returns the cookie of the session and the secret of its forms. */
    async signIn(headers: Record<string, string> = {}) {
      const answer = await post('/admin', { token: options.adminToken ?? token }, headers)
      if (answer.status !== 303) throw new Error(`not signed in: ${await answer.text()}`)
      const cookie = cookieOf(answer)
      const text = await (await get('/admin', { cookie })).text()
      return { cookie, csrf: /name="csrf" value="([\w-]{43})"/.exec(text)?.[1] ?? '' }
    },
  }
}

/** Sources of a service in which nothing has happened. */
function sourcesOf(ledger: Ledger, now: () => number): AdminSources {
  const attempts = { attemptsMax: 6, cutAttemptsMax: 12 }
  return {
    networks: () => [],
    merchants: () => [],
    openCircuits: () => [],
    refusedRoutes: () => [],
    otherHost: () => undefined,
    pending: async () => ({ count: 0, oldest: [] }),
    findPayment: async () => undefined,
    refunds: {
      ...ledger.refunds,
      account: undefined,
      canRefund: () => false,
      waitOf: () => undefined,
      stuck: () => [],
    },
    channels: ledger.channels,
    claimsOf: () => undefined,
    heldOrders: () => undefined,
    spentBudgets: async () => [],
    storageFault: () => undefined,
    ranges: createRanges({ sales: ledger.sales, attempts, now }),
    recent: createRecent({ sales: ledger.sales, attempts, now }),
    flushRequests: async () => undefined,
    file: undefined,
    assets: ledger.sales.assets,
    webhooks: ledger.webhooks,
    ledger: ledger.admin,
    actions: {
      pause: async () => ({ ok: true, text: 'paused' }),
      retry: async () => ({ ok: true, text: 'retried' }),
      refund: async () => ({ ok: true, text: 'refunded' }),
      retryRefund: async () => ({ ok: true, text: 'sent again' }),
      testWebhook: async () => ({ ok: true, text: 'tested' }),
      resend: async () => ({ ok: true, text: 'sent again' }),
      claim: async (network) => ({ ok: true, text: `${network} is claimed` }),
      reload: undefined,
      backUp: undefined,
    },
    now,
  }
}

type Admin = ReturnType<typeof createAdminPages>

function routesOf(admin: Admin, app: ReturnType<typeof errors>) {
  return app
    .get('/admin', ({ request }) => admin.overview(request))
    .get('/admin/sales', ({ request }) => admin.sales(request))
    .get('/admin/funnel', ({ request }) => admin.funnel(request))
    .get('/admin/payments', ({ request }) => admin.payments(request))
    .get('/admin/payments.csv', ({ request }) => admin.csv(request))
    .get('/admin/payments/:id', ({ request, params }) => admin.payment(request, params.id))
    .get('/admin/refunds', ({ request }) => admin.refunds(request))
    .get('/admin/orders', ({ request }) => admin.orders(request))
    .get('/admin/merchants', ({ request }) => admin.merchants(request))
    .get('/admin/networks', ({ request }) => admin.networks(request))
    .get('/admin/channels', ({ request }) => admin.channels(request))
    .get('/admin/grants', ({ request }) => admin.grants(request))
    .get('/admin/facilitator', ({ request }) => admin.facilitator(request))
    .get('/admin/webhooks', ({ request }) => admin.webhooks(request))
    .get('/admin/configuration', ({ request }) => admin.configuration(request))
    .get('/admin/actions/:action', ({ request, params }) => admin.confirm(request, params.action))
    .post('/admin/actions/:action', ({ request, params }) => admin.act(request, params.action), {
      parse: 'none',
    })
    .post('/admin', ({ request }) => admin.signIn(request), { parse: 'none' })
    .post('/admin/sign-out', ({ request }) => admin.signOut(request), { parse: 'none' })
}

/** Chromium sends these with a form of a page whose referrer policy is `no-referrer`. */
export const formHeaders = {
  'content-type': 'application/x-www-form-urlencoded',
  origin: 'null',
  'sec-fetch-site': 'same-origin',
  host: 'localhost',
}

/** `name=value` of the cookie that an answer sets. */
export function cookieOf(answer: Response): string {
  return answer.headers.get('set-cookie')?.split(';')[0] ?? ''
}

/** An operator that is signed in at `/admin` of a running service. */
export async function operatorOf(url: string, token: string) {
  const { host: _, ...own } = formHeaders
  const post = (path: string, fields: Record<string, string>, cookie = '') =>
    fetch(url + path, {
      method: 'POST',
      body: new URLSearchParams(fields).toString(),
      headers: { ...own, cookie },
      redirect: 'manual',
    })
  const cookie = cookieOf(await post('/admin', { token }))
  const read = async (path: string) => (await fetch(url + path, { headers: { cookie } })).text()
  const csrf = /name="csrf" value="([\w-]{43})"/.exec(await read('/admin'))?.[1] ?? ''
  const act = async (
    action: string,
    subject: string,
    more: Record<string, string> = {},
  ): Promise<number> =>
    (await post(`/admin/actions/${action}`, { csrf, subject, ...more }, cookie)).status
  return { cookie, post, read, act }
}

/** Whether an answer has the overview. */
export async function isIn(answer: Response): Promise<boolean> {
  return (await answer.text()).includes('What needs attention')
}

/** A payment as the ledger has it, in a transaction of its own; undefined members have defaults. */
export type Inserted = {
  /** When its request came, unix ms. */
  at: number
  payer?: string
  merchant?: string
  route?: string
  amount?: string
  product?: 'gateway' | 'facilitator'
  state?: 'confirmed' | 'broadcast' | 'expired'
  isDelivered?: boolean
  /** Texts that a buyer chooses. */
  text?: string
  /** Charged to this channel, with this base, in place of a transaction. */
  channel?: { id: string; base: bigint }
}

const asset = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'
const relayer = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
let serial = 0

/** Inserts a payment; returns its id and its transaction. */
export function insertPayment(db: Db, options: Inserted): { id: string; hash: string } {
  const { at, merchant = 'shop', route = '/item', amount = '5000', product = 'gateway' } = options
  const { payer = '0x70997970C51812dc3A010C7d01b50e0d17dc79C8', state = 'confirmed' } = options
  const { isDelivered = state === 'confirmed', text = 'text', channel } = options
  const digits = String(++serial).padStart(20, '0')
  const hash = `0x${digits.padStart(64, '0')}`
  const id = `pay_${at.toString(16).padStart(12, '0')}${digits}`
  const isIn = state === 'confirmed'
  if (channel === undefined)
    db.sqlite.run(
      `INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw, gas_limit,
      max_fee_wei, max_tip_wei, state, created_at, first_sent_at, block_number, cost_wei)
     VALUES (?, 'eip155:8453', ?, ?, 'payment', ?, ?, '0x02', '1', '1', '1', ?, ?, ?, ?, ?)`,
      [
        hash,
        relayer,
        // Above the nonces of a chain of a test.
        1_000_000 + serial,
        product,
        asset,
        isIn ? 'mined' : 'sent',
        at,
        at,
        isIn ? 1 : null,
        isIn ? '1000000000000' : null,
      ],
    )
  db.sqlite.run(
    `INSERT INTO payments (id, method, network, chain_id, asset, payer, payee, amount_atomic, nonce,
      valid_after, valid_before, signature, product, protocol, merchant, route, fingerprint, resource,
      bound, received_at, known_block, state, transaction_hash, log_index, block_number, confirmed_at,
      created_at, delivery, attempts, delivered_at, idempotency_key, challenge_id)
     VALUES (?, ?, 'eip155:8453', 8453, ?, ?, ?, ?, ?, '0', '1', '0x', ?, ?, ?, ?,
      'f', ?, 1, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    [
      ...[id, channel ? 'channel' : 'eip3009', asset, payer, payee, amount],
      channel ? Channel.nonceOf(channel.id as Hex, channel.base) : hash,
      ...[product, channel ? 'x402' : 'mpp', merchant, route, text, at, state, channel?.id ?? hash],
      ...(isIn && !channel ? [0, 1] : [null, null]),
      isIn ? at : null,
      at,
      ...(isDelivered ? ['delivered', 1, at] : ['none', 0, null]),
      ...[text, text],
    ],
  )
  if (channel === undefined)
    db.sqlite.run('INSERT INTO transaction_members VALUES (?, 0, ?)', [hash, id])
  return { id, hash }
}

const payee = '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955'

/** Inserts a channel of these payments with what it was charged; returns its id. */
export async function insertChannel(
  { ledger, db }: { ledger: Ledger; db: Db },
  options: { salt: number; charged: bigint; at: number } & Partial<OnChain>,
): Promise<Hex> {
  const { salt, charged, at, ...state } = options
  const config: Channel.Config = {
    payer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
    payerAuthorizer: '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
    receiver: payee,
    receiverAuthorizer: relayer,
    token: asset,
    withdrawDelay: 86_400,
    salt: `0x${salt.toString(16).padStart(64, '0')}`,
  }
  const id = Channel.idOf(config, 8453)
  const none = { balanceAtomic: 1_000_000n, claimedAtomic: 0n, withdrawAt: undefined }
  const onChain = { ...none, refundNonce: 0n, ...state }
  await ledger.channels.insert({ id, network: 'eip155:8453', config }, onChain, at)
  db.sqlite.run(
    'UPDATE channels SET charged_atomic = ?, signed_atomic = ?, signature = ? WHERE id = ?',
    [String(charged), String(charged), '0x01', id],
  )
  return id
}

/** Describes the asset of these payments. */
export async function describeAsset({ sales }: Ledger, now: number, name = 'Base'): Promise<void> {
  const text = { networkName: name, symbol: 'USDC', decimals: 6, coinUsd: '4000' }
  await sales.describe({
    accounts: [relayer],
    assets: [{ network: 'eip155:8453', address: asset, ...text }],
    now,
  })
}
