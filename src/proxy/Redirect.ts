import * as Route from './Route'

/** Redirects of upstreams, by RFC 9110 section 15.4. */

/** Requests that one answer may cost beside the first; loops end here, too. */
export const most = 3

const always = [307, 308]
const reading = [301, 302, 303]

/**
 * Where an answer says that the same request is answered, within the origin that the file names:
 * scheme, host and port. Undefined for any other answer, which stands as it is. An upstream must not
 * lead the merchant's headers to another place, nor us to a private address.
 *
 * 301, 302 and 303 turn a POST into a GET, which is another request than the one that was paid for.
 * `from` has the configured host, not the address that it was resolved to.
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
