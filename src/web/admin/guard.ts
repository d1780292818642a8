import type { Service } from '../../config/Config'
import { loopbackHost } from '../../http/url'
import { idleMs, longestMs } from './sessions'

/** Why a request may not sign in or change anything, as a sentence for the operator. */
export type Fault = string | undefined

type Client = { request: Request; address: string | undefined }

/**
 * How the cookie of a session travels. By TLS it is `Secure`. Without TLS it is sent only between a
 * program and a server on the same machine.
 */
export function createGuard({ baseUrl }: Pick<Service, 'baseUrl'>) {
  const base = new URL(baseUrl)
  const isTls = base.protocol === 'https:'
  // The prefix lets a browser refuse a cookie that came without TLS.
  const name = isTls ? '__Secure-turnpike-admin' : 'turnpike-admin'
  const attributes = `Path=/admin; HttpOnly; SameSite=Strict${isTls ? '; Secure' : ''}`

  return {
    /** Why a token may not be sent by this connection. */
    transport({ request: { headers }, address }: Client): Fault {
      if (isTls) return undefined
      const isForwarded = headers.has('x-forwarded-for') || headers.has('forwarded')
      const isLocal = isLoopbackAddress(address) && loopbackHost.test(headers.get('host') ?? '')
      if (loopbackHost.test(base.host) && isLocal && !isForwarded) return undefined
      return `Signing in needs TLS, because the token and the session would be sent in clear text. Serve ${baseUrl} by https and set base_url to that address, or open this page on the machine of the service at http://localhost.`
    },
    /**
     * Why a form is not one of ours. A form of ours has `Origin: null`, because of its referrer
     * policy, so that `Sec-Fetch-Site` decides: https://fetch.spec.whatwg.org/#append-a-request-origin-header
     */
    origin({ headers }: Request): Fault {
      const site = headers.get('sec-fetch-site')
      const origin = headers.get('origin')
      const isOwn = origin !== null && isOwnOrigin(origin, headers.get('host') ?? '')
      if (site === null && isOwn) return undefined
      const isUnnamed = origin === null || origin === 'null'
      if (site === 'same-origin' && (isOwn || isUnnamed)) return undefined
      return 'This form was not sent by a page of this service, or the browser does not say so. Open the page again and repeat it.'
    },
    /** Values of the cookie that a request has. A browser may send several of one name. */
    cookies({ headers }: Request): readonly string[] {
      return (headers.get('cookie') ?? '')
        .split(';')
        .map((pair) => pair.trim())
        .filter((pair) => pair.startsWith(`${name}=`))
        .slice(0, 4)
        .map((pair) => pair.slice(name.length + 1))
    },
    /** `Set-Cookie` with the value of a new session. */
    setCookie: (value: string) =>
      `${name}=${value}; ${attributes}; Max-Age=${Math.round(longestMs / 1000)}`,
    /** `Set-Cookie` that removes the value. */
    clearCookie: () => `${name}=; ${attributes}; Max-Age=0`,
    minutes: Math.round(idleMs / 60_000),
  }

  function isOwnOrigin(origin: string, host: string): boolean {
    if (origin === base.origin) return true
    const url = URL.parse(origin)
    return url !== null && url.host === host && loopbackHost.test(url.host)
  }
}

function isLoopbackAddress(address = ''): boolean {
  const plain = address.startsWith('::ffff:') ? address.slice(7) : address
  return plain === '::1' || /^127(\.\d{1,3}){3}$/.test(plain)
}
