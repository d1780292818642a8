import type { Config } from '../config/Config'
import { type Body, type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import * as RateLimit from '../http/rate-limit'
import type { IsPlausible } from '../paywall/usage/plausible'
import * as Problem from '../protocol/Problem'
import type { IncomingRequest } from './incoming'
import { droppedBody, emptyBody, type Sales, sell } from './sale'

/** Limits on the requests and the bodies of a client. */
export type Admission = {
  readonly limits: Pick<Config['service'], 'paidPerMinute' | 'trustProxy' | 'unpaidBodyMaxBytes'>
  readonly rateLimit: RateLimit.RateLimit
  readonly budget: Budget
  readonly isPlausible: IsPlausible
  readonly now: () => number
  /** False while the process stops: nothing new is started. */
  readonly accepts: () => boolean
  readonly sales: Sales
}

/** Sells to a client within its limits. Throws ProblemError. */
export function admit(
  admission: Admission,
  incoming: IncomingRequest,
): Response | Promise<Response> {
  return incoming.presented.kind === 'none' ? open(admission, incoming) : limit(admission, incoming)
}

/**
 * Credentials cost calls to a node, so the number per address is limited, and fewer may be refused.
 */
function limit(admission: Admission, incoming: IncomingRequest): Promise<Response> | Response {
  const { rateLimit, now } = admission
  const { paidPerMinute, trustProxy } = admission.limits
  const key = clientOf(incoming.request, incoming.peer(), trustProxy)
  const refusedPerMinute = Math.ceil(paidPerMinute * refusedShare)
  RateLimit.assertWithin(rateLimit.take(`paid ${key}`, paidPerMinute, now()), 'paid requests')
  RateLimit.assertWithin(rateLimit.peek(`refused ${key}`, refusedPerMinute, now()), 'paid requests')
  const opened = open(admission, incoming)
  if (!(opened instanceof Promise)) return opened
  const answer = opened.finally(() => {
    if (incoming.held === 'until-answer') incoming.peer.hold?.(false)
  })
  if (incoming.presented.kind === 'redeem') return answer
  const refused = () => rateLimit.take(`refused ${key}`, refusedPerMinute, now())
  return answer.then(
    (response) => {
      // A new challenge: the signature was bad, or the simulation failed. This counts against the
      // address, because the named payer may not have signed it. A transaction that fails on chain
      // counts against the payer.
      if (response.status === 402) refused()
      return response
    },
    (error) => {
      // The whole body was searched for a credential that was not checked.
      if (error instanceof Problem.ProblemError && error.code === 'invalid-parameter') refused()
      throw error
    },
  )
}

/** Reads the body, if there is one, and sells. */
function open(admission: Admission, incoming: IncomingRequest): Response | Promise<Response> {
  const { limits, budget, sales } = admission
  const { request, presented } = incoming
  if (!admission.accepts())
    throw Problem.of('not-ready', 'The service is stopping: send the request again.')
  if (!hasBody(request)) return sell(sales, incoming, emptyBody)
  assertUnpacked(request.headers)
  const { bodyMaxBytes } = incoming.match.route
  const sellWith = async ({ bytes, release }: Body) => {
    try {
      return await sell(sales, incoming, bytes)
    } finally {
      // A 402 is refused before there is a promise.
      release()
    }
  }
  const client = clientOf(request, incoming.peer(), limits.trustProxy)
  const pays = presented.kind !== 'none'
  if (pays) {
    return admission
      .isPlausible(presented, incoming.item)
      .then((isPaid) => readBody(request, bodyMaxBytes, budget, { client, isPaid }))
      .then(sellWith)
  }
  // Without a credential the body is only hashed. Without room for it the 402 has no digest.
  const most = Math.min(limits.unpaidBodyMaxBytes, bodyMaxBytes)
  return readBody(request, most, budget, { client, isPaid: false }).then(sellWith, (error) => {
    const isLeftOut = error instanceof Problem.ProblemError && [413, 503].includes(error.status)
    if (isLeftOut) return sell(sales, incoming, droppedBody)
    throw error
  })
}

function hasBody(request: Request): boolean {
  const { method, headers } = request
  if (method === 'GET' || method === 'HEAD') return false
  return headers.has('transfer-encoding') || (headers.get('content-length') ?? '0') !== '0'
}

/** Share of the credentials of an address in a minute that may be refused. */
const refusedShare = 0.1
