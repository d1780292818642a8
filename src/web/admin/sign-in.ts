import { Type } from '@sinclair/typebox'
import { isToken } from '../../http/bearer'
import { type Budget, readBody } from '../../http/body'
import { clientOf } from '../../http/client'
import { assertUnpacked } from '../../http/methods'
import * as RateLimit from '../../http/rate-limit'
import { loopbackHost } from '../../http/url'
import type { Log } from '../../log'
import * as Problem from '../../protocol/Problem'
import { type Html, html } from '../html'
import { redirect } from './layout'
import { longestMs, type Session, type Sessions } from './sessions'

export type SignInOptions = {
  adminToken: string
  sessions: Sessions
  budget: Budget
  rateLimit: RateLimit.RateLimit
  /** Address of the client's end of the connection. */
  addressOf(request: Request): string | undefined
  /** Unix ms. */
  now: () => number
  log: Log
}

type Service = { baseUrl: string; trustProxy: number }

const formMaxBytes = 4096
/** Wrong tokens of one client in a minute. */
const failuresPerMinute = 10
/** Wrong tokens of all clients in a minute. */
const allFailuresPerMinute = 120
/** Requests with a right Bearer token of one client in a minute. */
const readsPerMinute = 120
const formsPerMinute = 60

/** The form of `POST /admin`. */
export const signInFields = Type.Object({ token: Type.String() })

/** The form of `POST /admin/sign-out`. */
export const signOutFields = Type.Object({
  csrf: Type.String(),
  where: Type.Union([Type.Literal('here'), Type.Literal('everywhere')]),
})

/** Why a request is refused, with the status of the answer. */
export type RefusedForm = { status: number; fault: string }

/** A form of a signed-in operator. */
export type SentForm = { form: URLSearchParams; session: Session }

/** Decides which requests may read and change the pages below `/admin`. */
export function createSignIn(service: Service, options: SignInOptions) {
  const { adminToken, sessions, budget, rateLimit, now, log } = options
  const guard = createGuard(service)
  const keyOf = (request: Request) =>
    clientOf(request, options.addressOf(request), service.trustProxy)
  const take = (request: Request, what: string, most: number) =>
    RateLimit.assertWithin(rateLimit.take(`admin ${what} ${keyOf(request)}`, most, now()))
  /**
   * Whether a token is right. Throws ProblemError when too many were wrong: of this client before the
   * comparison, of all clients after it, so that strangers do not keep the operator out.
   */
  const check = (request: Request, token: string): boolean => {
    const client = keyOf(request)
    const key = `admin failed ${client}`
    RateLimit.assertWithin(rateLimit.peek(key, failuresPerMinute, now()))
    if (isToken(token, adminToken)) return true
    rateLimit.take(key, failuresPerMinute, now())
    RateLimit.assertWithin(rateLimit.take('admin failed', allFailuresPerMinute, now()))
    log('admin-refused', { client, reason: 'wrong-token' })
    return false
  }
  const refuse = (request: Request, reason: string, fault: string): RefusedForm => {
    log('admin-refused', { client: keyOf(request), reason })
    return { status: 403, fault }
  }
  const transport = (request: Request) => guard.transport(request, options.addressOf(request))
  const sessionOf = (request: Request): Session | undefined =>
    sessions.find(guard.cookies(request), adminToken)

  return {
    clientOf: keyOf,
    /** Why a client may not sign in on this connection; the form is not shown then. */
    transport,
    sessionOf,
    /** Whether a program has the token; undefined when it presents none. */
    bearer(request: Request): boolean | undefined {
      const authorization = request.headers.get('authorization')
      if (authorization === null) return undefined
      const isRight = check(request, /^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '')
      if (isRight) take(request, 'read', readsPerMinute)
      return isRight
    },
    /** Signs in by the form, or says why not. */
    async signIn(request: Request): Promise<Response | RefusedForm> {
      take(request, 'form', formsPerMinute)
      const unsafe = transport(request)
      if (unsafe !== undefined) return refuse(request, 'no-tls', unsafe)
      const strange = guard.origin(request)
      if (strange !== undefined) return refuse(request, 'origin', strange)
      const form = await readForm(request, budget)
      if (!check(request, form.get('token') ?? ''))
        return { status: 401, fault: 'This token is wrong.' }
      const client = keyOf(request)
      const cookie = sessions.open({ adminToken, previous: guard.cookies(request) })
      log('admin-signed-in', { client })
      return redirect('/admin', { 'set-cookie': guard.setCookie(cookie) })
    },
    /**
     * The form of a signed-in operator, or why it is refused: `undefined` without a session. Nothing
     * is changed by a request that another site could cause.
     */
    async form(request: Request): Promise<SentForm | RefusedForm | undefined> {
      take(request, 'form', formsPerMinute)
      const strange = guard.origin(request)
      if (strange !== undefined) return refuse(request, 'origin', strange)
      const session = sessionOf(request)
      if (session === undefined) return undefined
      const form = await readForm(request, budget)
      if (isToken(form.get('csrf') ?? '', session.csrf)) return { form, session }
      return refuse(request, 'csrf', otherSession)
    },
    /** Ends the session of a request, or all of them. */
    end(request: Request, isEverywhere: boolean): Response {
      if (isEverywhere) sessions.endAll()
      else sessions.end(guard.cookies(request))
      log('admin-signed-out', { client: keyOf(request), everywhere: isEverywhere })
      return redirect('/admin', { 'set-cookie': guard.clearCookie() })
    },
  }
}

const otherSession = 'This form belongs to another session. Open the page again and repeat it.'

/** Reads a form of ours. Throws ProblemError for another body. */
async function readForm(request: Request, budget: Budget): Promise<URLSearchParams> {
  assertUnpacked(request.headers)
  const type = request.headers.get('content-type') ?? ''
  if (!/^application\/x-www-form-urlencoded *(;|$)/i.test(type))
    throw Problem.of('unsupported-media-type', 'A form must be application/x-www-form-urlencoded.')
  const body = await readBody(request, formMaxBytes, budget)
  try {
    return new URLSearchParams(new TextDecoder().decode(body.bytes))
  } finally {
    body.release()
  }
}

/** Why a request may not sign in or change anything, as a sentence for the operator. */
type Fault = string | undefined

/**
 * How the cookie of a session travels. By TLS it is `Secure`. Without TLS it is sent only between a
 * program and a server on the same machine.
 */
function createGuard({ baseUrl }: Service) {
  const base = new URL(baseUrl)
  const isTls = base.protocol === 'https:'
  // The prefix lets a browser refuse a cookie that came without TLS.
  const name = isTls ? '__Secure-turnpike-admin' : 'turnpike-admin'
  const attributes = `Path=/admin; HttpOnly; SameSite=Strict${isTls ? '; Secure' : ''}`

  return {
    /** Why a token may not be sent by this connection. */
    transport({ headers }: Request, address: string | undefined): Fault {
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

/** The form for the token, or the reason why there is none. */
export function signInForm({
  fault,
  unsafe,
  isForm = false,
}: {
  fault?: string | undefined
  unsafe?: string | undefined
  /** Whether the refused request was a form, whose sender may still be signed in. */
  isForm?: boolean
}): Html {
  const reason = fault ?? unsafe
  return html`<div class="gate">
<h1>${isForm ? 'This form was refused' : 'Sign in'}</h1>
${isForm ? html`<p>Nothing was done. You may still be signed in.</p>` : html`<p>This page is for the operator of this service. The token is <code>ADMIN_TOKEN</code>; without that variable it is in the file <code>admin.token</code> of the data directory.</p>`}
${reason !== undefined && html`<p class="fault" role="alert">${reason}</p>`}
${isForm && html`<p><a class="button" href="/admin">Open the page again</a></p>`}
${
  unsafe === undefined &&
  !isForm &&
  html`<form method="post" action="/admin">
<label for="token">Token</label>
<input name="username" value="operator" autocomplete="username" hidden>
<input type="password" id="token" name="token" autocomplete="current-password" required>
<button>Sign in</button>
</form>
<p class="quiet">A session ends after 30 minutes without use, after 12 hours, and when the service restarts.</p>`
}
</div>`
}
