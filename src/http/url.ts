/**
 * Where the path begins in a request's URL; -1 when it has none. A request of HTTP/1.0 may come
 * without a host: its URL is then the path alone, which may hold `://` itself.
 */
export function pathStart(url: string): number {
  return url.startsWith('/') ? 0 : url.indexOf('/', url.indexOf('://') + 3)
}

/**
 * Query of a request's URL, '' or with its `?`. The URL as a whole need not be one: its host is what
 * the Host header says.
 */
export function searchOf(url: string): string {
  const query = url.indexOf('?', Math.max(pathStart(url), 0))
  return query === -1 ? '' : new URL(url.slice(query), 'http://localhost').search
}

/** Path of a request's URL, as it stands there. */
export function pathOf(url: string): string {
  const start = pathStart(url)
  if (start === -1) return '/'
  const query = url.indexOf('?', start)
  return query === -1 ? url.slice(start) : url.slice(start, query)
}

/** Percent-encoded letters, digits, `-`, `.`, `_` and `~`: the unreserved ones of RFC 3986. */
const encodedPlain = /%(?:2[de]|3\d|[46][1-9a-f]|[57][\da]|5f|7e)/gi

/**
 * The request with an absolute URL, and the plain characters of its path unencoded, which RFC 3986
 * section 6.2.2.2 calls the same path; nearly always the request itself.
 */
export function withPlainPath(request: Request): Request {
  const { url } = request
  const path = pathOf(url)
  const plain = path.replace(encodedPlain, (escaped) =>
    String.fromCharCode(Number.parseInt(escaped.slice(1), 16)),
  )
  if (plain === path && !url.startsWith('/')) return request
  // The host does not matter, and need not be one.
  return new Request(`http://localhost${plain}${searchOf(url)}`, request)
}

/** Whether the path of a request's URL is below `/m/`. */
export function isForSale(url: string): boolean {
  return url.startsWith('/m/', pathStart(url))
}

/** Where a path is served: at the root, and below the path of each base URL, without repetition. */
export function prefixesOf(baseUrls: readonly string[]): string[] {
  const paths = baseUrls.map((url) => new URL(url).pathname.replace(/\/+$/, ''))
  return [...new Set(['', ...paths])]
}

/** A host name or an address as it stands in a URL: IPv6 has brackets. */
export function hostOf(hostname: string): string {
  return hostname.includes(':') && !hostname.startsWith('[') ? `[${hostname}]` : hostname
}

/**
 * Whether a request has several Host fields, which are joined: a proxy before us may have looked at
 * another one. https://www.rfc-editor.org/rfc/rfc9112#section-3.2
 */
export function hasManyHosts(headers: Headers): boolean {
  return headers.get('host')?.includes(',') ?? false
}

/** Path and query of an absolute URL as Bun normalised it; both as they are, nothing decoded. */
export function splitUrl(url: string): [pathname: string, search: string] {
  const start = pathStart(url)
  if (start === -1) return ['/', '']
  const hash = url.indexOf('#', start)
  const end = hash === -1 ? url.length : hash
  const query = url.indexOf('?', start)
  if (query === -1 || query > end) return [url.slice(start, end), '']
  const search = url.slice(query, end)
  // Where the Host header is no host nothing was normalised.
  return [url.slice(start, query), visible.test(search) ? search : searchOf(url)]
}

const visible = /^[\x21-\x7e]*$/
