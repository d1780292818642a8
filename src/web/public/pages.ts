import type { Config, Route } from '../../config/Config'
import { clientOf } from '../../http/client'
import * as RateLimit from '../../http/rate-limit'
import { searchOf } from '../../http/url'
import * as Problem from '../../protocol/Problem'
import { findAsset } from '../assets'
import { escaped } from '../html'
import { createCataloguePage } from './catalogue'
import { send, sendPage } from './layout'
import { merchantPage, readQuery } from './merchant'
import { orderPage } from './order'
import { forPeople, problemPage } from './people'
import { wantsHtml } from './problems'
import type * as SaleState from './SaleState'
import type { Point } from './Sparkline'
import { stocksPage } from './stocks'

export type PagesOptions = SaleState.Facts & {
  config: Config
  /** Whether `GET /api/stock/list` is served. */
  hasMarket: boolean
  /** Whether the stock desk can take an order now. */
  isDeskReady(): boolean
  /** Answers `GET /api/stock/order/{id}`; undefined without a stock desk. Throws ProblemError. */
  readOrder: ((request: Request, id: string) => Promise<Response>) | undefined
  /** Prices of a stock token in the last day, the oldest first. */
  pricesOf(symbol: string): readonly Point[]
  /** Name of the MCP tool of a route. */
  toolOf(route: Route): string | undefined
  rateLimit: RateLimit.RateLimit
  /** Address of the client's end of the connection. */
  addressOf(request: Request): string | undefined
  now: () => number
}

const searchesPerMinute = 120

/** The pages for people: the catalogue and the stock tokens. */
export function createPages(options: PagesOptions) {
  const { config, rateLimit, now } = options
  const { trustProxy } = config.service
  const catalogue = createCataloguePage(config)

  const limitSearch = (request: Request) => {
    const key = clientOf(request, options.addressOf(request), trustProxy)
    RateLimit.assertWithin(rateLimit.take(`search ${key}`, searchesPerMinute, now()))
  }

  const home = (request: Request): Response => {
    const searchParams = new URLSearchParams(searchOf(request.url))
    const text = (searchParams.get('q') ?? '').slice(0, 100)
    // A search of a large catalogue costs more than a cached page.
    if (text !== '') limitSearch(request)
    const page = Number(searchParams.get('page') ?? 1)
    const main = catalogue(options, { text, page })
    const { title } = config.service
    return sendPage(config, request, { title, path: '/', main, isWhole: true })
  }
  const merchants = new Map(config.merchants.map((merchant) => [merchant.slug, merchant]))
  const merchant = (request: Request, slug: string): Response => {
    const found = merchants.get(slug)
    if (found === undefined) return unknownMerchant(config, request)
    const query = readQuery(new URLSearchParams(searchOf(request.url)))
    if (query.text !== '') limitSearch(request)
    const main = merchantPage(options, options, found, query)
    const { title } = found
    return sendPage(config, request, { title, path: undefined, main, isPayable: true })
  }
  const stocks = (request: Request): Response => {
    if (config.stock === undefined)
      throw Problem.of('not-found', 'No stocks are sold here. The catalogue lists what is sold.')
    const symbol = new URLSearchParams(searchOf(request.url)).get('symbol') ?? undefined
    const { hasMarket, pricesOf } = options
    const state = options.isDeskReady() ? 'available' : 'not-ready'
    const main = stocksPage(config, config.stock, { isLive: hasMarket, state, symbol, pricesOf })
    const page = { title: 'Stocks', path: '/stocks', main, isPayable: hasMarket } as const
    return sendPage(config, request, page)
  }
  /** An order: a page for people, and for programs what the API answers. */
  const order = async (request: Request, id: string): Promise<Response> => {
    const answer = await options.readOrder?.(request, id)
    if (answer === undefined)
      throw Problem.of('not-found', 'No stocks are sold here. The catalogue lists what is sold.')
    answer.headers.append('vary', 'Accept')
    if (!wantsHtml(request)) return answer
    const main = orderPage(config, (await answer.json()) as Record<string, string>)
    const page = { title: `Order ${id}`, path: '/stocks', main } as const
    return sendPage(config, request, page, {
      headers: { vary: 'Accept', 'cache-control': 'no-store' },
    })
  }
  const asset = (request: Request): Response => {
    const found = findAsset(config.service, request)
    if (found === undefined)
      throw Problem.of('not-found', 'There is no such file: reload the page that named it.')
    return found
  }
  const [robots, sitemap] = [robotsOf(config), sitemapOf(config)]
  return {
    home,
    merchant,
    stocks,
    order,
    asset,
    robots: (request: Request) =>
      send(request, robots, { headers: { 'content-type': 'text/plain; charset=utf-8' } }),
    sitemap: (request: Request) =>
      send(request, sitemap, { headers: { 'content-type': 'application/xml' } }),
    favicon: () =>
      new Response(favicon, {
        headers: {
          'content-type': 'image/svg+xml',
          'cache-control': 'public, max-age=86400',
          'x-content-type-options': 'nosniff',
        },
      }),
    /** The answer to a request as a page, where a browser shows it to a person. */
    explain: (request: Request, response: Response) => forPeople(config, request, response),
  }
}

function unknownMerchant(config: Config, request: Request): Response {
  const text = 'No merchant has this address. The catalogue lists all of them.'
  const { title, status, detail, code } = Problem.of('not-found', text)
  const main = problemPage({ title, status, detail, code })
  const page = { title, path: undefined, main }
  return sendPage(config, request, page, { status: 404 })
}

/**
 * `/robots.txt`: crawlers may read the pages and the documents. They have no reason to ask what is
 * sold, nor the endpoints of programs and of the operator. RFC 9309: the longest match counts.
 */
function robotsOf({ service }: Config): string {
  return `User-agent: *
Disallow: /m/
Allow: /m/*/openapi.json
Disallow: /api/
Allow: /api/openapi.json
Disallow: /orders/
Disallow: /mcp
Disallow: /admin
Disallow: /metrics
Disallow: /healthz
Disallow: /readyz

Sitemap: ${service.baseUrl}/sitemap.xml
`
}

/** `/sitemap.xml`: the pages that this configuration has, as sitemaps.org defines it. */
export function sitemapOf({ service, merchants, stock }: Config): string {
  const paths = [
    '/',
    ...(stock === undefined ? [] : ['/stocks']),
    ...merchants.map(({ slug }) => `/merchants/${slug}`),
    '/problems',
  ]
  const urls = paths.map((path) => `<url><loc>${escaped(service.baseUrl + path)}</loc></url>\n`)
  return `<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
${urls.join('')}</urlset>
`
}

/** `/favicon.svg`: a toll bar, which indexers show beside the service. */
const favicon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">' +
  '<rect width="32" height="32" rx="6" fill="#16324f"/><rect x="6" y="8" width="5" height="18" fill="#f2f5f8"/>' +
  '<path d="M8 11 27 7v5L8 16z" fill="#f2f5f8"/><path d="m14 9.700 4-.8v5l-4 .8z" fill="#e4572e"/></svg>'
