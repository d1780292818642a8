import { Elysia } from 'elysia'
import { storageCode } from '../../db/fault'
import type { Log } from '../log'
import * as Problem from '../protocol/Problem'

/** Response headers that a browser may read: every payment header, and when to try again. */
export const exposedHeaders = [
  'WWW-Authenticate',
  'PAYMENT-REQUIRED',
  'PAYMENT-RESPONSE',
  'X-PAYMENT-RESPONSE',
  'Payment-Receipt',
  'Payment-Id',
  'Payment-Token',
  'Payment-Redeem',
  'Payment-Entitlement',
  'Idempotency-Replayed',
  'Retry-After',
  'RateLimit-Limit',
  'RateLimit-Remaining',
  'RateLimit-Reset',
  'X-Request-Id',
  'Allow',
  'ETag',
].join(', ')

/**
 * Headers of every answer that pages of other origins may read. Any origin may, because there are
 * no cookies.
 */
export const corsHeaders = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Expose-Headers': exposedHeaders,
} as const

/**
 * Exposed headers of answers whose head must be short. `*` means every header for requests without
 * cookies. The named headers serve browsers that do not support `*`.
 */
export const shortCorsHeaders = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Expose-Headers': '*, WWW-Authenticate, PAYMENT-REQUIRED, PAYMENT-RESPONSE',
} as const

type Context = { baseUrl: string; requestId: string }

/**
 * The RFC 9457 answer of a problem: never cached, readable by any origin, with the request's id.
 */
export function toResponse(problem: Problem.ProblemError, context: Context): Response {
  const headers = new Headers(corsHeaders)
  headers.set('Content-Type', 'application/problem+json')
  headers.set('Cache-Control', 'no-store')
  headers.set('X-Content-Type-Options', 'nosniff')
  headers.set('X-Request-Id', context.requestId)
  if (problem.status === 503) headers.set('Retry-After', '2')
  for (const [name, value] of Object.entries(problem.headers)) headers.set(name, value)
  const body = JSON.stringify(Problem.toJson(problem, context.baseUrl))
  return new Response(body, { status: problem.status, headers })
}

/**
 * The problem for an unknown error: 500 with an id. The error's text goes to the log only. While
 * the database cannot be written the problem is 503, because the same credential stays valid.
 */
export function unknownError(error: unknown, requestId: string): Problem.ProblemError {
  if (storageCode(error) !== undefined) return unrecordable(error)
  const detail =
    'The service failed. Send the request again; if it fails again, give the operator the request ' +
    'id, under which the log has the error.'
  return Problem.of('internal-error', detail, { cause: error, members: { requestId } })
}

function unrecordable(cause: unknown): Problem.ProblemError {
  const detail =
    'The request cannot be recorded now; send the same request with the same credential again.'
  return Problem.of('not-ready', detail, { cause, headers: { 'Retry-After': '5' } })
}

export type ErrorOptions = {
  baseUrl: string
  log: Log
  /** Returns the id of a request, the same one at every call. */
  requestId(request: Request): string
}

/**
 * Answers a problem for paths without a route, and for every error of the routes that are added
 * after it. Without it Elysia sends the message of any error to the client, in production too.
 */
export function errors(options: ErrorOptions) {
  return new Elysia({ name: 'errors' }).onError({ as: 'global' }, ({ error, code, request }) =>
    answer(options, code === 'NOT_FOUND' ? noRoute() : error, request),
  )
}

function noRoute(): Problem.ProblemError {
  const detail = 'There is nothing at this path; /openapi.json lists what is sold.'
  return Problem.of('not-found', detail)
}

type Answer = Response | Promise<Response>

/**
 * Does the same for one route. The hooks of `errors` cost Elysia 0.2 ms for each route at the
 * start.
 */
export function answersErrors(
  options: ErrorOptions,
): (request: Request, run: () => Answer) => Answer {
  return (request, run) => {
    const failed = (error: unknown) => answer(options, error, request)
    // Elysia would print an error that a handler returns.
    const checked = (given: unknown) => (given instanceof Response ? given : failed(given))
    try {
      const given = run()
      return given instanceof Promise ? given.then(checked, failed) : checked(given)
    } catch (error) {
      return failed(error)
    }
  }
}

function answer(options: ErrorOptions, error: unknown, request: Request): Response {
  const requestId = options.requestId(request)
  const problem = error instanceof Problem.ProblemError ? error : unknownError(error, requestId)
  if (problem.code === 'internal-error' || storageCode(error) !== undefined) {
    options.log.child({ requestId })('request-failed', { error: problem.cause ?? problem })
  }
  return toResponse(problem, { baseUrl: options.baseUrl, requestId })
}
