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

/** Whether a request's URL is below `/m/`. */
export function isForSale(url: string): boolean {
  return url.startsWith('/m/', pathStart(url))
}
