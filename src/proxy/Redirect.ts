import * as Route from './Route'

/** Redirects of upstreams, by RFC 9110 section 15.4. */

/** Most redirects for one answer. This limit also ends loops. */
export const most = 3

const always = [307, 308]
const reading = [301, 302, 303]

/**
 * Target of a redirect of the same request within the configured origin: scheme, host and port.
 * Undefined for any other answer, which is forwarded unchanged. A redirect of an upstream must not
 * send the merchant's headers to another host, nor lead to a private address.
 *
 * 301, 302 and 303 turn a POST into a GET, which is not the request that was paid for. `from` has
 * the configured host, not the resolved address.
 */
export function next(
  answer: Pick<Response, 'status' | 'headers'>,
  from: URL,
  method: string,
  target: Route.Target,
): URL | undefined {
  const { status, headers } = answer
  const isRead = method === 'GET' || method === 'HEAD'
  if (!always.includes(status) && !(isRead && reading.includes(status))) return undefined
  const location = headers.get('location') ?? ''
  const place = location === '' ? null : URL.parse(location, from.href)
  if (place?.origin !== target.origin || place.username !== '' || place.password !== '')
    return undefined
  place.hash = ''
  place.search = Route.withFixed(target, place.search)
  return place
}
