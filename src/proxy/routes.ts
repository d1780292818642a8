import { Elysia } from 'elysia'
import type { Documents } from './documents'

/** The catalogue for machines. What is sold, below `/m/`, is answered by the gateway itself. */
export function catalogueRoutes(documents: Documents) {
  return new Elysia({ name: 'catalogue' })
    .get('/openapi.json', ({ request }) => documents.aggregate(request))
    .get('/.well-known/x402', ({ request }) => documents.wellKnown(request))
}
