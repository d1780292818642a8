import { Elysia } from 'elysia'
import { byMethod, type Handler, type Params, unread } from '../http/methods'
import { answersErrors, errors } from '../http/problem'
import { extract } from '../paywall/credential'
import type { Handlers } from './handlers'
import type { People } from './people'

type Answer = Response | Promise<Response>
type Methods = Parameters<typeof byMethod<Answer>>[0]

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
  // By default Elysia looks for the path behind a host of four characters or more.
  const app = new Elysia({ strictPath: true, handler: { standardHostname: false } }).wrap(
    (routes, request) => wrapRoutes(routes, request, on.gateway),
  )
  const answered = answersErrors(on.errors)
  /** Adds a path with and without a slash at its end. It answers the problems that it throws. */
  const add = (path: string, handle: Handler) => {
    for (const each of path === '/' ? [path] : [path, `${path}/`])
      app.all(
        each,
        ({ request, params }) => answered(request, () => handle(request, params as Params)),
        unread,
      )
  }
  const own = (path: string, methods: Methods) => add(path, byMethod(methods, { isOpen: false }))
  /** For pages of other origins, too. */
  const shared = (path: string, methods: Methods) => add(path, byMethod(methods, { isOpen: true }))
  const { documents, market, orders, people, health } = on

  // For sale. The gateway makes its own problems, and MCP all but that it cannot be loaded.
  app.all('/m/*', ({ request }) => on.gateway(request), unread)
  add('/mcp', on.mcp)

  // The x402 facilitator. Its paths have no slash at their end.
  for (const at of on.facilitatorAt) {
    app.all(`${at}/supported`, ({ request }) => on.supported(request), unread)
    app.all(`${at}/verify`, ({ request }) => on.verify(request), unread)
    app.all(`${at}/settle`, ({ request }) => on.settle(request), unread)
  }

  // The routes below throw problems, which `add` answers.

  // Documents for machines
  add('/openapi.json', documents.aggregate)
  add('/.well-known/x402', documents.wellKnown)
  add('/llms.txt', documents.llms)
  for (const at of on.facilitatorAt) add(`${at}/discovery/resources`, documents.resources)

  // Receipts of answers that were charged after their end
  shared('/api/payments/:id', { GET: (request, { id = '' }) => on.payment(request, id) })

  // The stock desk, and gas for the approve that a purchase needs
  for (const at of on.stockAt) {
    shared(`${at}/api/gas/sponsor`, { POST: on.sponsor })
    if (market === undefined || orders === undefined) continue
    shared(`${at}/api/stock/list`, { GET: market.list })
    shared(`${at}/api/stock/quote`, { GET: market.quote })
    shared(`${at}/api/stock/buy`, { POST: orders.buy })
    shared(`${at}/api/stock/orders`, { GET: orders.orders })
    shared(`${at}/api/stock/order/:id`, {
      GET: (request, { id = '' }) => orders.order(request, id),
    })
  }

  // For people
  type Run = (people: People, request: Request, params: Params) => Answer
  const byPeople =
    (run: Run): Handler =>
    async (request, params) =>
      run(await people(), request, params)
  const page = (path: string, run: Run) => own(path, { GET: byPeople(run) })
  page('/', ({ pages }, request) => pages.home(request))
  page('/merchants/:slug', ({ pages }, request, { slug = '' }) => pages.merchant(request, slug))
  page('/stocks', ({ pages }, request) => pages.stocks(request))
  shared('/orders/:id', {
    GET: byPeople(({ pages }, request, { id = '' }) => pages.order(request, id)),
  })
  page('/problems', ({ problems }, request) => problems.list(request))
  page('/problems/:code', ({ problems }, request, params) => problems.one(request, params))
  page('/robots.txt', ({ pages }, request) => pages.robots(request))
  page('/sitemap.xml', ({ pages }, request) => pages.sitemap(request))
  page('/assets/:name', ({ pages }, request) => pages.asset(request))
  page('/favicon.svg', ({ pages }) => pages.favicon())
  shared('/api/openapi.json', { GET: byPeople(({ apiDocument }, request) => apiDocument(request)) })

  // The pages of the operator
  own('/admin', {
    GET: byPeople(({ admin }, request) => admin.overview(request)),
    POST: byPeople(({ admin }, request) => admin.signIn(request)),
  })
  page('/admin/sales', ({ admin }, request) => admin.sales(request))
  page('/admin/funnel', ({ admin }, request) => admin.funnel(request))
  page('/admin/payments', ({ admin }, request) => admin.payments(request))
  page('/admin/payments.csv', ({ admin }, request) => admin.csv(request))
  page('/admin/payments/:id', ({ admin }, request, { id = '' }) => admin.payment(request, id))
  page('/admin/refunds', ({ admin }, request) => admin.refunds(request))
  page('/admin/orders', ({ admin }, request) => admin.orders(request))
  page('/admin/merchants', ({ admin }, request) => admin.merchants(request))
  page('/admin/networks', ({ admin }, request) => admin.networks(request))
  page('/admin/channels', ({ admin }, request) => admin.channels(request))
  page('/admin/grants', ({ admin }, request) => admin.grants(request))
  page('/admin/facilitator', ({ admin }, request) => admin.facilitator(request))
  page('/admin/webhooks', ({ admin }, request) => admin.webhooks(request))
  page('/admin/configuration', ({ admin }, request) => admin.configuration(request))
  own('/admin/actions/:action', {
    GET: byPeople(({ admin }, request, { action = '' }) => admin.confirm(request, action)),
    POST: byPeople(({ admin }, request, { action = '' }) => admin.act(request, action)),
  })
  own('/admin/sign-out', { POST: byPeople(({ admin }, request) => admin.signOut(request)) })

  // Operation
  own('/healthz', { GET: health.healthz })
  own('/readyz', { GET: health.readyz })
  own('/metrics', { GET: on.metrics })

  // For paths without a route. Added after the routes, because Elysia copies its hooks to each
  // later one.
  app.use(errors(on.errors))
  const fetch = compiledLater(app)
  const explained = async (request: Request, answer: Answer) => {
    const [response, { pages }] = await Promise.all([answer, people()])
    return pages.explain(request, response)
  }

  return {
    // docs/api.md lists them.
    routes: app.routes,
    warm: () => Promise.all([fetch(), people()]),
    // A client that is not a browser gets the same bytes as without pages.
    fetch(request) {
      const answer = fetch()(request)
      return isNavigation(request) ? explained(request, answer) : answer
    },
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

/**
 * Whether a browser opens the address for a person to read. A program drives a browser that presents a
 * payment; it paid for the answer as it is.
 */
function isNavigation({ method, headers }: Request): boolean {
  return (
    headers.get('sec-fetch-mode') === 'navigate' &&
    method === 'GET' &&
    headers.get('accept')?.includes('text/html') === true &&
    extract(headers).kind === 'none'
  )
}
