import { Elysia } from 'elysia'
import type { Config } from '../config/Config'
import { byMethod, unread } from '../http/methods'
import { pathsBelow } from '../http/url'
import type { Documents, Serve } from './documents'

/** The catalogue for machines. What is sold, below `/m/`, is answered by the gateway itself. */
export function catalogueRoutes(
  documents: Documents,
  { baseUrl, facilitatorUrl }: Pick<Config['service'], 'baseUrl' | 'facilitatorUrl'>,
) {
  const app = new Elysia({ name: 'catalogue' })
  // Each answers preflights and other methods itself, as those below `/m/` do.
  const add = (path: string, serve: Serve) => {
    app.all(path, ({ request }) => serve(request), unread)
  }
  add('/openapi.json', documents.aggregate)
  add('/.well-known/x402', documents.wellKnown)
  add('/llms.txt', documents.llms)
  // Specification x402 v2, section 8: a facilitator lists what it knows of.
  const bases = [facilitatorUrl, `${baseUrl}/facilitator`]
  for (const path of pathsBelow(bases, '/discovery/resources')) add(path, documents.resources)
  const icon = () => new Response(favicon, { headers: faviconHeaders })
  return app.all('/favicon.svg', byMethod({ GET: icon }, { isOpen: false }), unread)
}

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
