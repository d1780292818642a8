import type { Config } from '../config/Config'
import { escaped } from './html'

/**
 * `/robots.txt`: crawlers may read the pages and the documents. They have no reason to ask what is
 * sold, nor the endpoints of programs and of the operator. RFC 9309: the longest match counts.
 */
export function robotsOf({ service }: Config): string {
  return `User-agent: *
Disallow: /m/
Allow: /m/*/openapi.json
Disallow: /api/
Allow: /api/openapi.json
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
export const favicon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">' +
  '<rect width="32" height="32" rx="6" fill="#16324f"/><rect x="6" y="8" width="5" height="18" fill="#f2f5f8"/>' +
  '<path d="M8 11 27 7v5L8 16z" fill="#f2f5f8"/><path d="m14 9.700 4-.8v5l-4 .8z" fill="#e4572e"/></svg>'
