import { Type } from '@sinclair/typebox'
import type { Config } from '../config/Config'
import { isToken } from '../http/bearer'
import { type Budget, readBody } from '../http/body'
import { clientKey } from '../http/clientip'
import { assertUnpacked } from '../http/methods'
import * as RateLimit from '../http/ratelimit'
import { searchOf } from '../http/url'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import { type AdminState, adminForm, adminPage } from './admin'
import { findAsset } from './assets'
import { createCataloguePage, type Live } from './catalogue'
import { layout, respond } from './layout'
import { stocksPage } from './stocks'

export type PagesOptions = Live & {
  config: Config
  adminToken: string
  /** Called only for requests with the token. */
  adminState: () => Promise<AdminState>
  /** Whether `GET /api/stock/list` is served. */
  hasMarket: boolean
  rateLimit: RateLimit.RateLimit
  budget: Budget
  /** Address of the client's end of the connection. */
  addressOf(request: Request): string | undefined
  now: () => number
}

const tooMany = 'Too many requests from this address: wait for Retry-After.'
const searchesPerMinute = 120
const adminPerMinute = 30
const formMaxBytes = 4096

/** The form of `POST /admin`. */
export const adminFields = Type.Object({ token: Type.String() })

/** The pages for people: the catalogue, the stock tokens, and the state of operation. */
export function createPages(options: PagesOptions) {
  const { config, rateLimit, now } = options
  const { trustProxy } = config.service
  const catalogue = createCataloguePage(config)

  const limit = (request: Request, what: string, perMinute: number) => {
    const forwarded = request.headers.get('x-forwarded-for')
    const key = clientKey(options.addressOf(request), forwarded, trustProxy)
    const verdict = rateLimit.take(`${what} ${key}`, perMinute, now())
    if (verdict.ok) return
    throw Problem.of('rate-limited', tooMany, { headers: RateLimit.headers(verdict) })
  }

  const admin = async (request: Request, token: string): Promise<Response> => {
    const isRight = isToken(token, options.adminToken)
    const headers = isRight ? {} : { 'www-authenticate': 'Bearer realm="admin"' }
    const main = isRight
      ? adminPage(config, await options.adminState(), now())
      : adminForm('This token is wrong.')
    return respond(request, layout(config, { title: 'Operation', path: '/admin', main }), {
      status: isRight ? 200 : 401,
      isPrivate: true,
      headers,
    })
  }

  const home = (request: Request): Response => {
    const searchParams = new URLSearchParams(searchOf(request.url))
    const text = (searchParams.get('q') ?? '').slice(0, 100)
    // A search of a large catalogue costs more than a cached page.
    if (text !== '') limit(request, 'search', searchesPerMinute)
    const page = Number(searchParams.get('page') ?? 1)
    const main = catalogue(options, { text, page: Number.isSafeInteger(page) ? page : 1 })
    return respond(request, layout(config, { title: 'Catalogue', path: '/', main }))
  }
  const stocks = (request: Request): Response => {
    if (config.stock === undefined)
      throw Problem.of('not-found', 'No stocks are sold here; / lists what is sold.')
    const main = stocksPage(config, config.stock, options.hasMarket)
    return respond(request, layout(config, { title: 'Stocks', path: '/stocks', main }))
  }
  const asset = (request: Request): Response => {
    const found = findAsset(URL.parse(request.url)?.pathname ?? '')
    if (found === undefined)
      throw Problem.of('not-found', 'There is no such file: reload the page that named it.')
    return found
  }
  const operation = async (request: Request): Promise<Response> => {
    const authorization = request.headers.get('authorization')
    if (authorization === null) {
      const page = { title: 'Operation', path: '/admin', main: adminForm() } as const
      return respond(request, layout(config, page), { isPrivate: true })
    }
    limit(request, 'admin', adminPerMinute)
    return admin(request, /^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '')
  }
  const signIn = async (request: Request): Promise<Response> => {
    limit(request, 'admin', adminPerMinute)
    assertUnpacked(request.headers)
    const body = await readBody(request, formMaxBytes, options.budget)
    let form: URLSearchParams
    try {
      form = new URLSearchParams(new TextDecoder().decode(body.bytes))
    } finally {
      body.release()
    }
    return admin(request, Schema.readQuery(adminFields, form).values.token ?? '')
  }
  return { home, stocks, asset, operation, signIn }
}
