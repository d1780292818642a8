import type { Config, Logo, Service } from '../config/Config'
import { isKnown, tagOf } from '../http/etag'
import { assetsOf, securityPolicy } from './assets'
import { type Html, html } from './html'
import { createPackedCache, sendPacked, takesGzip, withVary } from './packed'

export type Page = {
  /** Comes before the service's title. */
  title: string
  /** Path of the page, for the navigation. */
  path: '/' | '/stocks' | '/admin' | '/problems' | undefined
  main: Html
  /** Whether something can be paid on the page. */
  isPayable?: boolean
}

/** A whole HTML document. */
export function layout(
  { service, stock }: Config,
  { title, path, main, isPayable = false }: Page,
): string {
  const links = [
    { href: '/', text: 'Catalogue' },
    ...(stock === undefined ? [] : [{ href: '/stocks', text: 'Stocks' }]),
  ]
  const { script, style, icon, wallet, logo } = assetsOf(service)
  const { path: iconPath, contentType } = logo ?? icon
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="${service.lead ?? service.guidance}">
<title>${title === service.title ? title : `${title} - ${service.title}`}</title>
<link rel="icon" href="${iconPath}" type="${contentType}">
<link rel="stylesheet" href="${style.path}">
<script src="${script.path}" integrity="sha256-${script.hash}" defer></script>
${isPayable && html`<script src="${wallet.path}" integrity="sha256-${wallet.hash}" defer></script>`}
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
<a class="name" href="/">${logo !== undefined && logoImage(service.logo, logo.path)}${service.title}</a>
<nav aria-label="Pages"><ul>${links.map(
    ({ href, text }) =>
      html`<li><a href="${href}"${href === path ? current : undefined}>${text}</a></li>`,
  )}</ul></nav>
</header>
<main id="main" tabindex="-1">
${main}
</main>
${footer(service)}
</body>
</html>
`.markup
}

const current = html` aria-current="page"`

/** Height of the logo in CSS pixels, and its greatest width. */
const logoHeight = 28
const logoWidthMax = 160

/** The title is beside it. Its size is known before it is loaded, so that nothing moves. */
function logoImage(logo: Logo | undefined, path: string): Html | false {
  if (logo === undefined) return false
  const width = Math.min(logoWidthMax, Math.round((logo.width / logo.height) * logoHeight))
  return html`<img src="${path}" alt="" width="${width}" height="${logoHeight}">`
}

function footer({ guidance, facilitatorUrl, contact }: Service): Html {
  return html`<footer>
<p>${guidance}</p>
<ul class="links">
<li><a href="/openapi.json">openapi.json</a></li>
<li><a href="/llms.txt">llms.txt</a></li>
<li><a href="/.well-known/x402">x402 discovery</a></li>
<li>x402 facilitator <code>${facilitatorUrl}</code></li>
${contact !== undefined && html`<li>Contact <a href="mailto:${contact}">${contact}</a></li>`}
</ul>
</footer>`
}

/** Headers of every page. */
export function pageHeaders() {
  return {
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': securityPolicy(),
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-opener-policy': 'same-origin',
  } as const
}

const packed = createPackedCache()

/**
 * Answers a document, or 304 when the client already has it. `isPrivate` forbids every cache to
 * store it. A private document is not compressed, because the length of a compressed text shows what
 * it has in common with the request (BREACH).
 */
export function respond(
  request: Request,
  markup: string,
  options: {
    status?: number
    isPrivate?: boolean
    headers?: Readonly<Record<string, string>>
  } = {},
): Response {
  const { status = 200, isPrivate = false } = options
  if (isPrivate) {
    const headers = { ...pageHeaders(), 'cache-control': 'no-store', ...options.headers }
    return new Response(markup, { status, headers })
  }
  const whole = tagOf(markup)
  // Each encoding is a representation of its own. RFC 9110 section 8.8.3.3.
  const etag = takesGzip(request) ? whole.replace(/"$/, '.gz"') : whole
  const headers = { ...pageHeaders(), 'cache-control': 'no-cache', etag, ...options.headers }
  if (status === 200 && isKnown(request, etag))
    return new Response(null, { status: 304, headers: withVary(headers) })
  return sendPacked(request, packed(whole, markup), { status, headers })
}
