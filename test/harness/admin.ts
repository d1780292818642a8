import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import { createRecent } from '../../src/books/recent'
import type { Config } from '../../src/config/Config'
import { createBudget } from '../../src/http/body'
import { errors } from '../../src/http/problem'
import { createRateLimit } from '../../src/http/ratelimit'
import { createLog } from '../../src/log'
import { createSessions } from '../../src/web/admin/sessions'
import type { Sources } from '../../src/web/admin/sources'
import { createAdmin } from '../../src/web/admin/start'
import { configOf, small } from './config'

export const token = 'a-token-of-the-operator'

export type AdminOptions = {
  config?: Config
  /** Of the service, when the browser does not see `base_url`. */
  baseUrl?: string
  adminToken?: string
  sources?: Partial<Sources>
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
  const attempts = { attemptsMax: 6, cutAttemptsMax: 12 }
  const logged: string[] = []
  const log = createLog({ write: (line) => void logged.push(line), pretty: false })
  const sessions = options.sessions ?? createSessions(now)
  const sources: Sources = {
    networks: () => [],
    merchants: () => [],
    openCircuits: () => [],
    pending: async () => ({ count: 0, oldest: [] }),
    heldOrders: () => undefined,
    spentBudgets: async () => [],
    storageFault: () => undefined,
    recent: createRecent({ sales: ledger.sales, attempts, now }),
    flushRequests: async () => undefined,
    assets: ledger.sales.assets,
    ledger: ledger.admin,
    now,
    ...options.sources,
  }
  const admin = createAdmin(config, {
    adminToken: options.adminToken ?? token,
    sessions,
    budget: createBudget(1_000_000),
    rateLimit: createRateLimit(),
    addressOf: () => state.address,
    now,
    log,
    sources,
  })
  const app = errors({ baseUrl, log, requestId: () => 'id' })
    .get('/admin', ({ request }) => admin.overview(request))
    .get('/admin/payments', ({ request }) => admin.payments(request))
    .get('/admin/payments.csv', ({ request }) => admin.csv(request))
    .get('/admin/payments/:id', ({ request, params }) => admin.payment(request, params.id))
    .post('/admin', ({ request }) => admin.signIn(request), { parse: 'none' })
    .post('/admin/sign-out', ({ request }) => admin.signOut(request), { parse: 'none' })
  const send = async (path: string, init: RequestInit = {}) =>
    app.fetch(new Request(`http://localhost${path}`, init))
  const get = (path: string, headers: Record<string, string> = {}) => send(path, { headers })
  /** As a browser sends a form of ours. */
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

/** Whether an answer has the overview. */
export async function isIn(answer: Response): Promise<boolean> {
  return (await answer.text()).includes('What needs attention')
}
