/**
 * Index at which the path begins in a request's URL; -1 when it has none. A request of HTTP/1.0 may
 * have no Host field. Then its URL is the path alone, which may contain `://`.
 */
export function pathStart(url: string): number {
  return url.startsWith('/') ? 0 : url.indexOf('/', url.indexOf('://') + 3)
}

/**
 * Query of a request's URL: '' or with its `?`. The URL need not be valid, because its host is the
 * value of the Host header.
 */
export function searchOf(url: string): string {
  const query = url.indexOf('?', Math.max(pathStart(url), 0))
  return query === -1 ? '' : new URL(url.slice(query), 'http://localhost').search
}

/** Path of a request's URL, not decoded. */
export function pathOf(url: string): string {
  const start = pathStart(url)
  if (start === -1) return '/'
  const query = url.indexOf('?', start)
  return query === -1 ? url.slice(start) : url.slice(start, query)
}

/** Percent-encoded letters, digits, `-`, `.`, `_` and `~`: the unreserved ones of RFC 3986. */
const encodedPlain = /%(?:2[de]|3\d|[46][1-9a-f]|[57][\da]|5f|7e)/gi

/**
 * The request with an absolute URL, and with the unreserved characters of its path decoded (RFC
 * 3986 section 6.2.2.2: the same path). Nearly always the same request object.
 */
export function withPlainPath(request: Request): Request {
  const { url } = request
  const path = pathOf(url)
  const plain = path.replace(encodedPlain, (escaped) =>
    String.fromCharCode(Number.parseInt(escaped.slice(1), 16)),
  )
  if (plain === path && !url.startsWith('/')) return request
  // The host has no effect here, and the Host header need not be a valid host.
  return new Request(`http://localhost${plain}${searchOf(url)}`, request)
}

/**
 * Path prefixes under which a path is served: the root and the path of each base URL, without
 * repetition.
 */
export function prefixesOf(baseUrls: readonly string[]): string[] {
  const paths = baseUrls.map((url) => new URL(url).pathname.replace(/\/+$/, ''))
  return [...new Set(['', ...paths])]
}

/** A host name or an address in the form of a URL: IPv6 has brackets. */
export function hostOf(hostname: string): string {
  return hostname.includes(':') && !hostname.startsWith('[') ? `[${hostname}]` : hostname
}

/** Path and query of an absolute URL that Bun has normalised; nothing is decoded. */
export function splitUrl(url: string): [pathname: string, search: string] {
  const start = pathStart(url)
  if (start === -1) return ['/', '']
  const hash = url.indexOf('#', start)
  const end = hash === -1 ? url.length : hash
  const query = url.indexOf('?', start)
  if (query === -1 || query > end) return [url.slice(start, end), '']
  const search = url.slice(query, end)
  // When the Host header is not a valid host, the URL was not normalised.
  return [url.slice(start, query), visible.test(search) ? search : searchOf(url)]
}

const visible = /^[\x21-\x7e]*$/

/** A host of this machine, with or without a port. */
export const loopbackHost = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$/i
