import { Elysia } from 'elysia'
import type { Documents } from '../gateway/documents/documents'
import type { createHealth } from '../http/health'
import { byMethod, unread } from '../http/methods'
import type { Middleware } from '../http/middleware'
import { answersErrors, type Options as ErrorsOptions, errors } from '../http/problem'
import type { createMarketHandlers, createOrderHandlers } from '../stock/handlers'
import type { createAdmin } from '../web/admin/start'
import { sendFavicon } from '../web/favicon'
import { isNavigation } from '../web/public/navigation'
import type { createPages } from '../web/public/pages'
import type { createProblemPages } from '../web/public/problems'
import type { createApiDocument } from './openapi'

type Answer = Response | Promise<Response>
type Handler = (request: Request) => Answer
type Asked = { request: Request; params: Readonly<Record<string, string>> }

/** The handlers of the requests under one configuration (app/handlers.ts). */
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
  sponsor: Handler
  /** Undefined without `[stock]`, as `orders` is. */
  market: ReturnType<typeof createMarketHandlers> | undefined
  orders: ReturnType<typeof createOrderHandlers> | undefined
  /** Loaded at the first call, or by `app.ts#warmUp`. */
  people: () => Promise<People>
  health: ReturnType<typeof createHealth>
  metrics: Handler
  /** What a payment has cost, by its id. */
  payment: (request: Request, id: string) => Answer
}

/** The pages and documents that only people read. */
export type People = {
  pages: ReturnType<typeof createPages>
  /** The pages of the operator. */
  admin: ReturnType<typeof createAdmin>
  /** What the codes of problems mean. */
  problems: ReturnType<typeof createProblemPages>
  /** Our own endpoints as OpenAPI. */
  apiDocument: ReturnType<typeof createApiDocument>
}

export type Routes = Pick<Elysia, 'fetch' | 'routes'> & {
  /** Loads and compiles ahead of the first requests. */
  warm(): unknown
}

/**
 * Every path of the service, top to bottom. Each path answers all methods itself, so that HEAD,
 * OPTIONS and 405 are the same everywhere.
 */
export function createRoutes(on: Handlers): Routes {
  const { wrapRoutes } = on.middleware
  const app = open().wrap((routes, request) => wrapRoutes(routes, request, on.gateway))
  const { documents, market, orders, people, health } = on
  const add = adderOf(app, answersErrors(on.errors))

  // For sale. These routes make their own problems.
  app.all('/m/*', ({ request }) => on.gateway(request), unread)
  app.all('/mcp', ({ request }) => on.mcp(request), unread)
  app.all('/mcp/', ({ request }) => on.mcp(request), unread)

  // The x402 facilitator. Its paths have no slash at their end.
  for (const at of on.facilitatorAt) {
    app.all(`${at}/supported`, ({ request }) => on.supported(request), unread)
    app.all(`${at}/verify`, ({ request }) => on.verify(request), unread)
    app.all(`${at}/settle`, ({ request }) => on.settle(request), unread)
  }

  // The routes below throw problems, which `add` answers.

  // Documents for machines
  add('/openapi.json', ({ request }) => documents.aggregate(request))
  add('/.well-known/x402', ({ request }) => documents.wellKnown(request))
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

  addPages(add, people)
  addAdmin(add, people)

  // Operation
  add('/healthz', own({ GET: health.healthz }))
  add('/readyz', own({ GET: health.readyz }))
  add('/metrics', own({ GET: ({ request }) => on.metrics(request) }))

  // For paths without a route. Added after the routes, because Elysia copies its hooks to each
  // later one.
  app.use(errors(on.errors))
  const fetch = compiledLater(app)

  return {
    // docs/api.md lists them.
    routes: app.routes,
    warm: () => Promise.all([fetch(), people()]),
    // A client that is not a browser gets the same bytes as without pages.
    fetch: (request) =>
      isNavigation(request) ? explained(fetch()(request), request, people) : fetch()(request),
  }
}

/**
 * The `fetch` of an app, which Elysia compiles when it is first read. Elysia then also collects
 * garbage, which would take longer than the rest of the first request. So `Bun.gc` is replaced
 * during that read.
 */
function compiledLater(app: Pick<Elysia, 'fetch'>): () => Elysia['fetch'] {
  let compiled: Elysia['fetch'] | undefined
  return () => {
    if (compiled !== undefined) return compiled
    const { gc } = Bun
    Bun.gc = () => 0
    try {
      compiled = app.fetch
    } finally {
      Bun.gc = gc
    }
    return compiled
  }
}

/** The pages, and the description of our own endpoints. */
function addPages(add: ReturnType<typeof adderOf>, people: Handlers['people']): void {
  const on = (run: (pages: People['pages'], asked: Asked) => Answer) =>
    own({ GET: async (asked) => run((await people()).pages, asked) })
  add(
    '/',
    on((pages, { request }) => pages.home(request)),
  )
  add(
    '/merchants/:slug',
    on((pages, { request, params }) => pages.merchant(request, params.slug ?? '')),
  )
  add(
    '/stocks',
    on((pages, { request }) => pages.stocks(request)),
  )
  addProblems(add, people)
  add(
    '/robots.txt',
    on((pages, { request }) => pages.robots(request)),
  )
  add(
    '/sitemap.xml',
    on((pages, { request }) => pages.sitemap(request)),
  )
  add(
    '/assets/:name',
    on((pages, { request }) => pages.asset(request)),
  )
  add('/favicon.svg', own({ GET: sendFavicon }))
  add(
    '/api/openapi.json',
    shared({ GET: async ({ request }) => (await people()).apiDocument(request) }),
  )
}

/** The pages of the operator. */
function addAdmin(add: ReturnType<typeof adderOf>, people: Handlers['people']): void {
  type Run = (admin: People['admin'], asked: Asked) => Answer
  const on = (run: Run) => async (asked: Asked) => run((await people()).admin, asked)
  const read = (
    name:
      | 'payments'
      | 'csv'
      | 'orders'
      | 'merchants'
      | 'networks'
      | 'grants'
      | 'facilitator'
      | 'configuration',
  ) => own({ GET: on((admin, { request }) => admin[name](request)) })
  add(
    '/admin',
    own({
      GET: on((admin, { request }) => admin.overview(request)),
      POST: on((admin, { request }) => admin.signIn(request)),
    }),
  )
  add('/admin/payments', read('payments'))
  add('/admin/payments.csv', read('csv'))
  add(
    '/admin/payments/:id',
    own({ GET: on((admin, { request, params }) => admin.payment(request, params.id ?? '')) }),
  )
  add('/admin/orders', read('orders'))
  add('/admin/merchants', read('merchants'))
  add('/admin/networks', read('networks'))
  add('/admin/grants', read('grants'))
  add('/admin/facilitator', read('facilitator'))
  add('/admin/configuration', read('configuration'))
  add(
    '/admin/actions/:action',
    own({
      GET: on((admin, { request, params }) => admin.confirm(request, params.action ?? '')),
      POST: on((admin, { request, params }) => admin.act(request, params.action ?? '')),
    }),
  )
  add('/admin/sign-out', own({ POST: on((admin, { request }) => admin.signOut(request)) }))
}

async function explained(
  answer: Answer,
  request: Request,
  people: Handlers['people'],
): Promise<Response> {
  const [response, { pages }] = await Promise.all([answer, people()])
  return pages.explain(request, response)
}

function addProblems(add: ReturnType<typeof adderOf>, people: Handlers['people']): void {
  const on = (run: (problems: People['problems'], asked: Asked) => Answer) =>
    own({ GET: async (asked) => run((await people()).problems, asked) })
  add(
    '/problems',
    on((problems, { request }) => problems.list(request)),
  )
  add(
    '/problems/:code',
    on((problems, { request, params }) => problems.one(request, params)),
  )
}

/** Answers while the service starts. Without a router, because compiling one would delay the start. */
export function startingRoutes({ wrapRoutes }: Middleware): Pick<Elysia, 'fetch'> {
  const starting = () =>
    new Response('The service is starting.\n', { status: 503, headers: { 'retry-after': '1' } })
  return { fetch: (request) => wrapRoutes(starting, request)(request) }
}

/** By default Elysia looks for the path behind a host of four characters or more. */
function open() {
  return new Elysia({ strictPath: true, handler: { standardHostname: false } })
}

/** Returns a function that adds a path with and without a slash at its end. */
function adderOf(app: Elysia, answered: ReturnType<typeof answersErrors>) {
  return (path: string, handle: (asked: Asked) => Answer) => {
    const answer = ({ request, params }: Asked) =>
      answered(request, () => handle({ request, params }))
    for (const each of path === '/' ? [path] : [path, `${path}/`]) app.all(each, answer, unread)
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
