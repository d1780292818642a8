/**
 * Where the path begins in a request's URL; -1 when it has none. A request of HTTP/1.0 may come
 * without a host: its URL is then the path alone, which may hold `://` itself.
 */
export function pathStart(url: string): number {
  return url.startsWith('/') ? 0 : url.indexOf('/', url.indexOf('://') + 3)
}
