import { Elysia } from 'elysia'
import type { createHealth } from '../http/health'
import { byMethod, unread } from '../http/methods'
import type { Middleware } from '../http/middleware'
import { type Options as ErrorsOptions, errors } from '../http/problem'
import type { Documents } from '../proxy/documents'
import type { createMarketHandlers } from '../stock/market-handlers'
import type { createOrderHandlers } from '../stock/order-handlers'
import type { createAdmin } from '../web/admin/start'
import { sendFavicon } from '../web/assets'
import type { createPages } from '../web/pages'
import { isNavigation } from '../web/people'
import type { createProblemPages } from '../web/problems'

type Answer = Response | Promise<Response>
type Handler = (request: Request) => Answer
type Asked = { request: Request; params: Readonly<Record<string, string>> }

/** What answers the requests under one configuration (app/handlers.ts). */
export type Handlers = {
  middleware: Middleware
  errors: ErrorsOptions
  /** Path prefixes under which the facilitator and the stock desk answer; '' is one of them. */
  facilitatorAt: readonly string[]
  stockAt: readonly string[]
  gateway: Handler
  mcp: Handler
  supported: Handler
  verify: Handler
  settle: Handler
  documents: Documents
  /** Our own endpoints as OpenAPI. */
  apiDocument: Handler
  sponsor: Handler
  /** Undefined without `[stock]`, as `orders` is. */
  market: ReturnType<typeof createMarketHandlers> | undefined
  orders: ReturnType<typeof createOrderHandlers> | undefined
  pages: ReturnType<typeof createPages>
  /** The pages of the operator. */
  admin: ReturnType<typeof createAdmin>
  /** What the codes of problems mean. */
  problems: ReturnType<typeof createProblemPages>
  health: ReturnType<typeof createHealth>
  metrics: Handler
  /** What a payment has cost, by its id. */
  payment: (request: Request, id: string) => Answer
}

/**
 * Every path of the service, top to bottom. Each path answers all methods itself, so that HEAD,
 * OPTIONS and 405 are the same everywhere.
 */
export function createRoutes(on: Handlers): Pick<Elysia, 'fetch' | 'routes'> {
  const app = open(on.middleware)
  const { documents, market, orders, pages, health } = on
  const add = adderOf(app)

  // For sale. These routes make their own problems. In front of all hooks an unpaid 402 takes about
  // 1.05 of the CPU that it takes without Elysia.
  app.all('/m/*', ({ request }) => on.gateway(request), unread)
  app.all('/mcp', ({ request }) => on.mcp(request), unread)
  app.all('/mcp/', ({ request }) => on.mcp(request), unread)

  // The x402 facilitator. Its paths have no slash at their end.
  for (const at of on.facilitatorAt) {
    app.all(`${at}/supported`, ({ request }) => on.supported(request), unread)
    app.all(`${at}/verify`, ({ request }) => on.verify(request), unread)
    app.all(`${at}/settle`, ({ request }) => on.settle(request), unread)
  }

  // The routes below throw problems.
  app.use(errors(on.errors))

  // Documents for machines
  add('/openapi.json', ({ request }) => documents.aggregate(request))
  add('/.well-known/x402', ({ request }) => documents.wellKnown(request))
  add('/api/openapi.json', shared({ GET: ({ request }) => on.apiDocument(request) }))
  add('/llms.txt', ({ request }) => documents.llms(request))
  for (const at of on.facilitatorAt)
    add(`${at}/discovery/resources`, ({ request }) => documents.resources(request))

  // Receipts of answers that were charged after their end
  add(
    '/api/payments/:id',
    shared({ GET: ({ request, params }) => on.payment(request, params.id ?? '') }),
  )

  // The stock desk, and gas for the approve that a purchase needs
  for (const at of on.stockAt) {
    add(`${at}/api/gas/sponsor`, shared({ POST: ({ request }) => on.sponsor(request) }))
    if (market === undefined || orders === undefined) continue
    add(`${at}/api/stock/list`, shared({ GET: ({ request }) => market.list(request) }))
    add(`${at}/api/stock/quote`, shared({ GET: ({ request }) => market.quote(request) }))
    add(`${at}/api/stock/buy`, shared({ POST: ({ request }) => orders.buy(request) }))
    add(`${at}/api/stock/orders`, shared({ GET: ({ request }) => orders.orders(request) }))
    add(
      `${at}/api/stock/order/:id`,
      shared({ GET: ({ request, params }) => orders.order(request, params.id ?? '') }),
    )
  }

  addPages(add, on)
  addAdmin(add, on.admin)

  // Operation
  add('/healthz', own({ GET: health.healthz }))
  add('/readyz', own({ GET: health.readyz }))
  add('/metrics', own({ GET: ({ request }) => on.metrics(request) }))

  return {
    // docs/api.md lists them.
    routes: app.routes,
    // Clients that are not browsers see no difference.
    fetch: (request) =>
      isNavigation(request) ? explained(app.fetch(request), request, pages) : app.fetch(request),
  }
}

function addPages(
  add: ReturnType<typeof adderOf>,
  { pages, problems }: Pick<Handlers, 'pages' | 'problems'>,
): void {
  const merchant = own({ GET: ({ request, params }) => pages.merchant(request, params.slug ?? '') })
  add('/', own({ GET: ({ request }) => pages.home(request) }))
  add('/merchants/:slug', merchant)
  add('/stocks', own({ GET: ({ request }) => pages.stocks(request) }))
  addProblems(add, problems)
  add('/assets/:name', own({ GET: ({ request }) => pages.asset(request) }))
  add('/favicon.svg', own({ GET: sendFavicon }))
}

/** The pages of the operator. */
function addAdmin(add: ReturnType<typeof adderOf>, admin: Handlers['admin']): void {
  add(
    '/admin',
    own({
      GET: ({ request }) => admin.overview(request),
      POST: ({ request }) => admin.signIn(request),
    }),
  )
  add('/admin/payments', own({ GET: ({ request }) => admin.payments(request) }))
  add('/admin/payments.csv', own({ GET: ({ request }) => admin.csv(request) }))
  add(
    '/admin/payments/:id',
    own({ GET: ({ request, params }) => admin.payment(request, params.id ?? '') }),
  )
  add('/admin/orders', own({ GET: ({ request }) => admin.orders(request) }))
  add('/admin/merchants', own({ GET: ({ request }) => admin.merchants(request) }))
  add('/admin/networks', own({ GET: ({ request }) => admin.networks(request) }))
  add('/admin/grants', own({ GET: ({ request }) => admin.grants(request) }))
  add('/admin/facilitator', own({ GET: ({ request }) => admin.facilitator(request) }))
  add('/admin/configuration', own({ GET: ({ request }) => admin.configuration(request) }))
  add(
    '/admin/actions/:action',
    own({
      GET: ({ request, params }) => admin.confirm(request, params.action ?? ''),
      POST: ({ request, params }) => admin.act(request, params.action ?? ''),
    }),
  )
  add('/admin/sign-out', own({ POST: ({ request }) => admin.signOut(request) }))
}

async function explained(
  answer: Answer,
  request: Request,
  { explain }: Handlers['pages'],
): Promise<Response> {
  return explain(request, await answer)
}

function addProblems(add: ReturnType<typeof adderOf>, { list, one }: Handlers['problems']): void {
  add('/problems', own({ GET: ({ request }) => list(request) }))
  add('/problems/:code', own({ GET: ({ request, params }) => one(request, params) }))
}

/** Routes that answer while the service starts. */
export function startingRoutes(middleware: Middleware): Pick<Elysia, 'fetch'> {
  const starting = () =>
    new Response('The service is starting.\n', { status: 503, headers: { 'retry-after': '1' } })
  return open(middleware).all('/*', starting, unread)
}

/** By default Elysia looks for the path behind a host of four characters or more. */
function open({ wrapRoutes }: Middleware) {
  return new Elysia({ strictPath: true, handler: { standardHostname: false } }).wrap(wrapRoutes)
}

/** Returns a function that adds a path with and without a slash at its end. */
function adderOf(app: Elysia) {
  return (path: string, handle: (asked: Asked) => Answer) => {
    for (const each of path === '/' ? [path] : [path, `${path}/`])
      app.all(each, ({ request, params }) => handle({ request, params }), unread)
  }
}

type Methods = Partial<Record<'GET' | 'POST', (asked: Asked) => Answer>>

/** Handlers that pages of other origins may call. */
function shared(methods: Methods) {
  return byMethod(methods, { isOpen: true })
}

function own(methods: Methods) {
  return byMethod(methods, { isOpen: false })
}
