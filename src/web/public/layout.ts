import type { Config, Logo, Service } from '../../config/Config'
import { isKnown, tagOf } from '../../http/document'
import { assetsOf, iconData, securityPolicy } from '../assets'
import { type Html, html, htmlDocument, navigationOf } from '../html'
import { packOnce, sendPacked, takesGzip, withVary } from '../packed'

export type Page = {
  /** Comes before the service's title. */
  title: string
  /** Path of the page, for the navigation. */
  path: '/' | '/stocks' | '/admin' | '/problems' | undefined
  main: Html
  /** Whether something can be paid on the page. */
  isPayable?: boolean
  /**
   * Whether the page contains its style and its script, because a first visit waits longer for another
   * file than for its bytes. The script can only copy commands.
   */
  isWhole?: boolean
}

/** A whole HTML document. */
export function layout({ service, stock }: Config, page: Page): string {
  const { title, path, main, isWhole = false } = page
  const links = [
    { path: '/', text: 'Catalogue' },
    ...(stock === undefined ? [] : [{ path: '/stocks', text: 'Stocks' }]),
  ]
  const { copy, logo } = assetsOf(service)
  return htmlDocument(
    html`<meta name="description" content="${service.lead ?? service.guidance}">
<title>${title === service.title ? title : `${title} - ${service.title}`}</title>
${filesOf(service, page)}`,
    html`<header class="bar">
<a class="name" href="/">${logo !== undefined && logoImage(service.logo, logo.path)}${service.title}</a>
${navigationOf('Pages', links, path)}
</header>
<main id="main" tabindex="-1">
${main}
</main>
${footer(service)}
${isWhole && inlined('script', copy.text)}`,
  )
}

/** The icon, the style and the scripts in the head of a page. */
function filesOf(service: Service, { isPayable = false, isWhole = false }: Page): Html {
  const { script, style, icon, wallet, logo } = assetsOf(service)
  const { path: iconPath, contentType } = logo ?? icon
  if (isWhole)
    return html`<link rel="icon" href="${logo?.path ?? iconData}" type="${contentType}">
${inlined('style', style.text)}`
  return html`<link rel="icon" href="${iconPath}" type="${contentType}">
<link rel="stylesheet" href="${style.path}">
<script src="${script.path}" integrity="sha256-${script.hash}" defer></script>
${isPayable && html`<script src="${wallet.path}" integrity="sha256-${wallet.hash}" defer></script>`}`
}

/** An element with a file of the program. It is not escaped, because it has no text of others. */
function inlined(name: 'style' | 'script', text: string): Html {
  return { markup: `<${name}>${text}</${name}>` }
}

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
export function pageHeaders(service: Service) {
  return {
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': securityPolicy(service),
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    // A wallet that opens a window of its own answers to the page that opened it.
    'cross-origin-opener-policy': 'same-origin-allow-popups',
  } as const
}

/** Answers a page, or 304 when the client already has it. */
export function sendPage(
  config: Config,
  request: Request,
  page: Page,
  { status = 200, headers: more }: { status?: number; headers?: Record<string, string> } = {},
): Response {
  const headers = { ...pageHeaders(config.service), ...more }
  return send(request, layout(config, page), { status, headers })
}

/** Answers a text of any type, compressed for who takes it, or 304 when the client already has it. */
export function send(
  request: Request,
  text: string,
  {
    status = 200,
    headers: more,
  }: { status?: number; headers: Readonly<Record<string, string>> & { 'content-type': string } },
): Response {
  const whole = tagOf(text)
  // Each encoding is a representation of its own. RFC 9110 section 8.8.3.3.
  const etag = takesGzip(request) ? whole.replace(/"$/, '.gz"') : whole
  const headers = {
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-cache',
    etag,
    ...more,
  }
  if (status === 200 && isKnown(request, etag))
    return new Response(null, { status: 304, headers: withVary(headers) })
  return sendPacked(request, packOnce(whole, text), { status, headers })
}
