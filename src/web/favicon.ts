/** A toll bar, which indexers show beside the service. */
const favicon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">' +
  '<rect width="32" height="32" rx="6" fill="#16324f"/><rect x="6" y="8" width="5" height="18" fill="#f2f5f8"/>' +
  '<path d="M8 11 27 7v5L8 16z" fill="#f2f5f8"/><path d="m14 9.700 4-.8v5l-4 .8z" fill="#e4572e"/></svg>'

/** `GET /favicon.svg`. */
export function sendFavicon(): Response {
  return new Response(favicon, {
    headers: {
      'content-type': 'image/svg+xml',
      'cache-control': 'public, max-age=86400',
      'x-content-type-options': 'nosniff',
    },
  })
}
