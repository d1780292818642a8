import * as Route from '../Route'

/** Redirects of upstreams, by RFC 9110 section 15.4. */

/** Most redirects for one answer. This limit also ends loops. */
export const most = 3

const always = [307, 308]
const reading = [301, 302, 303]

/**
 * Where the same request goes on: within the configured origin, at a path that the same route
 * sells. Undefined for any other answer, which is forwarded unchanged. The place may be what the
 * buyer asked for, such as `?next=/premium`. It must not be a path of another price, nor one that is
 * not sold. The merchant's headers must not reach another host.
 *
 * 301, 302 and 303 turn a POST into a GET, which is not the request that was paid for. `from` has
 * the configured host, not the resolved address.
 */
export function next(
  answer: Pick<Response, 'status' | 'headers'>,
  from: URL,
  method: string,
  match: Route.Match,
): URL | undefined {
  const { status, headers } = answer
  const isRead = method === 'GET' || method === 'HEAD'
  if (!always.includes(status) && !(isRead && reading.includes(status))) return undefined
  const location = headers.get('location') ?? ''
  const place = location === '' ? null : URL.parse(location, from.href)
  const { target } = match
  if (place === null || place.origin !== target?.origin) return undefined
  if (place.username !== '' || place.password !== '') return undefined
  if (!Route.sells(match, place.pathname)) return undefined
  place.hash = ''
  place.search = Route.withFixed(target, place.search)
  return place
}
