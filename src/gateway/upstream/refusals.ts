import type { Config, Route as RouteConfig } from '../../config/Config'
import type { Log } from '../../log'
import * as Catalogue from '../documents/Catalogue'
import type * as Route from '../Route'
import { forward, type Upstream } from './upstream'

/**
 * Routes whose upstream refuses the credentials of the merchant, such as a wrong or an expired key.
 * Each request there would be charged and not delivered. A buyer may know a request that the
 * upstream refuses, so requests of buyers close no route: they cause a request of our own, which
 * decides.
 */
export type Refusals = ReturnType<typeof createRefusals>

/** Requests in a row that were refused, before the upstream is asked. */
const refusedMin = 3
/** Time between two requests of our own, ms; doubles while they are refused. */
const waitMs = 5_000
const waitMaxMs = 60_000

type State = {
  refused: number
  status: number | undefined
  /** Unix ms; infinite while a request of ours is under way. */
  askAt: number
  waitMs: number
  match: Route.Match
}

export function createRefusals(options: {
  upstream: Upstream
  /** Unix ms. */
  now: () => number
  log: Log
}) {
  const { upstream, now, log } = options
  /** A configuration that is read again has other routes, and they begin open. */
  const states = new WeakMap<RouteConfig, State>()

  const ask = async (state: State) => {
    state.askAt = Number.POSITIVE_INFINITY
    const { merchant, route } = state.match
    const status = await probe(upstream, state.match)
    state.askAt = now() + state.waitMs
    state.waitMs = Math.min(2 * state.waitMs, waitMaxMs)
    state.refused = 0
    // Without an answer nothing is known about the key.
    if (status === undefined || states.get(route) !== state) return
    if (!refusing.has(status)) {
      if (state.status !== undefined) open(state.match)
      return
    }
    if (state.status === undefined)
      log('upstream-refuses', { merchant: merchant.slug, route: route.path, status })
    state.status = status
  }
  const open = ({ merchant, route }: Route.Match) => {
    const closed = states.get(route)?.status !== undefined
    states.delete(route)
    if (closed) log('upstream-accepts', { merchant: merchant.slug, route: route.path })
  }
  return {
    /** Whether nothing is sold. Asks the upstream again when it is time. */
    isClosed(route: RouteConfig): boolean {
      const state = states.get(route)
      if (state?.status === undefined) return false
      if (now() >= state.askAt) void ask(state)
      return true
    },
    /** Status with which the upstream refuses our own request; undefined while the route sells. */
    statusOf: (route: RouteConfig): number | undefined => states.get(route)?.status,
    /** The upstream answered a paid request with this status. */
    note(match: Route.Match, status: number): void {
      if (!refusing.has(status)) {
        open(match)
        return
      }
      let state = states.get(match.route)
      if (state === undefined) {
        state = { refused: 0, status: undefined, askAt: 0, waitMs, match }
        states.set(match.route, state)
      }
      state.refused++
      if (state.refused >= refusedMin && now() >= state.askAt) void ask(state)
    },
  }
}

/** The routes that are closed, with what the operator must know. */
export function refusedOf(
  { merchants }: Pick<Config, 'merchants'>,
  { statusOf }: Refusals,
): { merchant: string; reason: string }[] {
  return merchants.flatMap(({ slug, routes }) =>
    routes.flatMap((route) => {
      const status = statusOf(route)
      if (status === undefined) return []
      const reason = `the upstream answers ${status} to ${route.path}: is its key right?`
      return [{ merchant: slug, reason }]
    }),
  )
}

/** Statuses by which an upstream refuses the one that asks, and not the request. */
export const refusing: ReadonlySet<number> = new Set([401, 403, 407])

/**
 * Asks for the example of a route, as a buyer would, and returns the status; undefined without an
 * answer. The body is empty JSON, so that nothing is done twice, or at all, at an upstream that
 * changes something.
 */
export async function probe(
  upstream: Upstream,
  { merchant, route, target }: Route.Match,
): Promise<number | undefined> {
  const { methods, params, path } = route
  const method = methods.includes('GET') ? 'GET' : (methods[0] ?? 'GET')
  const query = params
    .filter((param) => param.in === 'query' && param.required)
    .map((param): [string, string] => [param.name, `${Catalogue.exampleOf(param)}`])
  const { pathname } = new URL(Catalogue.exampleUrl('http://localhost', merchant, route))
  const hasBody = method !== 'GET'
  try {
    const { status, body } = await forward(upstream, {
      match: {
        merchant,
        route,
        target,
        tail: pathname.slice(`/m/${merchant.slug}${path}/`.length),
      },
      method,
      search: query.length === 0 ? '' : `?${new URLSearchParams(query)}`,
      headers: new Headers(hasBody ? { 'content-type': 'application/json' } : {}),
      body: new TextEncoder().encode(hasBody ? '{}' : ''),
      paymentId: `probe-${crypto.randomUUID()}`,
    })
    if (body instanceof ReadableStream) await body.cancel()
    return status
  } catch {
    return undefined
  }
}
