import { Elysia } from 'elysia'
import type { Documents } from './documents'

/** The catalogue for machines. What is sold, below `/m/`, is answered by the gateway itself. */
export function catalogueRoutes(documents: Documents) {
  return new Elysia({ name: 'catalogue' })
    .all('/openapi.json', ({ request }) => documents.aggregate(request), bodiless)
    .all('/.well-known/x402', ({ request }) => documents.wellKnown(request), bodiless)
    .all('/llms.txt', ({ request }) => documents.llms(request), bodiless)
    .all('/discovery/resources', ({ request }) => documents.resources(request), bodiless)
    .all(
      '/facilitator/discovery/resources',
      ({ request }) => documents.resources(request),
      bodiless,
    )
    .get('/favicon.svg', () => new Response(favicon, { headers: faviconHeaders }))
}

/** Nothing that is sent along is read. */
const bodiless = { parse: 'none' } as const

/** A toll bar. Indexers show it beside what they list. */
const favicon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">' +
  '<rect width="32" height="32" rx="6" fill="#16324f"/><rect x="6" y="8" width="5" height="18" fill="#f2f5f8"/>' +
  '<path d="M8 11 27 7v5L8 16z" fill="#f2f5f8"/><path d="m14 9.700 4-.8v5l-4 .8z" fill="#e4572e"/></svg>'

const faviconHeaders = {
  'content-type': 'image/svg+xml',
  'cache-control': 'public, max-age=86400',
  'x-content-type-options': 'nosniff',
}
