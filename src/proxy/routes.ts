import { Elysia } from 'elysia'
import type { Documents } from './documents'
import type { Gateway } from './merchant'

/**
 * The gateway's part of the HTTP surface. Nothing is parsed and no path of Elysia's is used: the
 * gateway reads the request's own URL and body.
 */
export function gatewayRoutes(gateway: Gateway, documents: Documents) {
  return new Elysia({ name: 'gateway' })
    .all(
      '/m/*',
      ({ request, server }) => gateway.handle(request, () => server?.requestIP(request)?.address),
      { parse: 'none' },
    )
    .get('/openapi.json', ({ request }) => documents.aggregate(request))
    .get('/.well-known/x402', ({ request }) => documents.wellKnown(request))
}
