import type { Service } from '../config/Config'
import { hasBearer } from '../http/bearer'
import { clientOf } from '../http/client'
import { type Registry, renderMetrics } from '../http/metrics'
import * as RateLimit from '../http/rate-limit'
import * as Problem from '../protocol/Problem'
import type { Parts } from './parts'

/** Requests of one address in a minute: more than a scraper sends, fewer than a guess needs. */
const perMinute = 120

type Options = Pick<Parts, 'adminToken' | 'peerOf' | 'rateLimit' | 'now'> & {
  registry: Registry
  service: Pick<Service, 'metrics' | 'trustProxy'>
}

/** `GET /metrics`, as far as `metrics` of the file permits it. */
export function createMetricsHandler({ service, registry, ...options }: Options) {
  return (request: Request): Promise<Response> => {
    if (service.metrics === 'off') throw Problem.of('not-found', 'There is nothing at this path.')
    if (service.metrics === 'token') assertToken(request, service.trustProxy, options)
    return renderMetrics(registry)
  }
}

function assertToken(
  request: Request,
  trustProxy: number,
  { adminToken, peerOf, rateLimit, now }: Omit<Options, 'service' | 'registry'>,
): void {
  const key = `metrics ${clientOf(request, peerOf(request)(), trustProxy)}`
  RateLimit.assertWithin(rateLimit.take(key, perMinute, now()))
  if (hasBearer(request, adminToken)) return
  throw Problem.of('unauthorized', 'The metrics need Authorization: Bearer ADMIN_TOKEN.', {
    headers: { 'WWW-Authenticate': 'Bearer realm="metrics"' },
  })
}
