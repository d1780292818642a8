import type { Config } from '../../config/Config'
import { assetsOf } from '../assets'
import { type Html, html, htmlDocument, navigationOf } from '../html'
import type { Session } from './sessions'

export type AdminPath = (typeof pages)[number]['path']

const pages = [
  { path: '/admin', text: 'Overview' },
  { path: '/admin/sales', text: 'Sales' },
  { path: '/admin/funnel', text: 'Funnel' },
  { path: '/admin/payments', text: 'Payments' },
  { path: '/admin/orders', text: 'Orders' },
  { path: '/admin/merchants', text: 'Merchants' },
  { path: '/admin/networks', text: 'Networks' },
  { path: '/admin/channels', text: 'Channels' },
  { path: '/admin/grants', text: 'Grants' },
  { path: '/admin/facilitator', text: 'Facilitator' },
  { path: '/admin/webhooks', text: 'Webhooks' },
  { path: '/admin/configuration', text: 'Configuration' },
] as const

export type AdminPage = {
  /** Comes before the service's title. */
  title: string
  /** The page of the navigation that it belongs to. */
  path: AdminPath | undefined
  main: Html
  /** How the reader lets the page refresh itself; undefined where it cannot. */
  live?: Live | undefined
}

/** `href` turns the refresh on or off. */
export type Live = { isOn: boolean; href: string }

/**
 * The reader of a page: a browser with a session, a program with the token, or an unknown client.
 */
export type AdminReader = Session | 'program' | undefined

/** The title of a page of the navigation. */
export function titleOf(wanted: AdminPath): string {
  return pages.find(({ path }) => path === wanted)?.text ?? ''
}

/** The pages with something to show: those of parts that are not configured are left out. */
function pagesOf(
  { stock, networks, facilitator, webhooks, alerts }: Config,
  current: AdminPath | undefined,
) {
  const unused: readonly AdminPath[] = [
    ...(stock === undefined ? (['/admin/orders'] as const) : []),
    ...(networks.some(({ sponsor }) => sponsor) ? [] : (['/admin/grants'] as const)),
    ...(networks.some(({ channels }) => channels) ? [] : (['/admin/channels'] as const)),
    // By default it settles for the own payouts alone, without keys.
    ...(facilitator.payTo === 'own' && facilitator.apiKeyHashes.length === 0
      ? (['/admin/facilitator'] as const)
      : []),
    ...(webhooks.length + alerts.length === 0 ? (['/admin/webhooks'] as const) : []),
  ]
  return pages.filter(({ path }) => path === current || !unused.includes(path))
}

/** A whole HTML document. It has no script. */
function layout(
  config: Config,
  reader: AdminReader,
  { title, path, main, live }: AdminPage,
): string {
  const { service } = config
  const { icon, admin } = assetsOf(service)
  const session = reader === 'program' ? undefined : reader
  return htmlDocument(
    html`<meta name="robots" content="noindex">
<title>${title} - Operation - ${service.title}</title>
<link rel="icon" href="${icon.path}" type="image/svg+xml">
<link rel="stylesheet" href="${admin.path}">`,
    html`<header class="bar">
<p class="name"><a class="home" href="/admin">${service.title}</a> <span class="area">Operation</span> <a href="/">See the shop</a></p>
${session && signOut(session)}
${reader !== undefined && navigationOf('Operation', pagesOf(config, path), path)}
</header>
<main id="main" tabindex="-1">
${session && notice(session)}
${main}
${live && liveLink(live)}
</main>
<footer><p>All times are UTC. Amounts in USD count 1 stablecoin as 1 USD.</p></footer>`,
  )
}

/** Time between two refreshes, seconds. */
const refreshSeconds = 5

function liveLink({ isOn, href }: Live): Html {
  return isOn
    ? html`<p class="quiet" role="status">This page refreshes itself every ${refreshSeconds} seconds. <a href="${href}">Stop</a></p>`
    : html`<p class="quiet"><a href="${href}">Refresh this page every ${refreshSeconds} seconds for 15 minutes</a></p>`
}

function signOut({ csrf }: Session): Html {
  return html`<form class="out" method="post" action="/admin/sign-out">
<input type="hidden" name="csrf" value="${csrf}">
<button class="plain" name="where" value="here">Sign out</button>
<button class="plain" name="where" value="everywhere">Sign out everywhere</button>
</form>`
}

/** How the last action ended, shown once. */
function notice(session: Session): Html | undefined {
  const { done } = session
  session.done = undefined
  return done && html`<p class="${done.ok ? 'done' : 'fault'}" role="status">${done.text}</p>`
}

/** The pages have no script and no frame, and load nothing from another host. */
const policy =
  "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

/** Headers of every answer below `/admin`. */
export const adminHeaders = {
  'content-security-policy': policy,
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
  vary: 'Cookie, Authorization',
} as const

export function sendAdminPage(
  config: Config,
  reader: AdminReader,
  page: AdminPage,
  {
    status = 200,
    headers = {},
  }: { status?: number; headers?: Readonly<Record<string, string>> } = {},
): Response {
  const type = { 'content-type': 'text/html; charset=utf-8' }
  // A header needs no script. It ends, so that the session of a page that was left open ends.
  const refresh = page.live?.isOn === true ? { refresh: String(refreshSeconds) } : {}
  const all = { ...adminHeaders, ...type, ...refresh, ...headers }
  return new Response(layout(config, reader, page), { status, headers: all })
}

/** 303, so that a reload of the next page does not send a form again. */
export function redirect(location: string, headers: Record<string, string> = {}): Response {
  return new Response(null, { status: 303, headers: { ...adminHeaders, location, ...headers } })
}
