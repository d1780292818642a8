import type { Config } from '../config/Config'
import { isKnown, tagOf } from '../http/etag'
import { assets, securityPolicy } from './assets'
import { type Html, html } from './html'

export type Page = {
  /** Comes before the service's title. */
  title: string
  /** Path of the page, for the navigation. */
  path: '/' | '/stocks' | '/admin' | '/problems' | undefined
  main: Html
}

/** A whole HTML document. */
export function layout({ service, stock }: Config, { title, path, main }: Page): string {
  const links = [
    { href: '/', text: 'Catalogue' },
    ...(stock === undefined ? [] : [{ href: '/stocks', text: 'Stocks' }]),
  ]
  const { script, style, icon, wallet } = assets()
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} - ${service.title}</title>
<link rel="icon" href="${icon.path}" type="image/svg+xml">
<link rel="stylesheet" href="${style.path}">
<script src="${script.path}" integrity="sha256-${script.hash}" defer></script>
<script src="${wallet.path}" integrity="sha256-${wallet.hash}" defer></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
<a class="name" href="/">${service.title}</a>
<nav aria-label="Pages"><ul>${links.map(
    ({ href, text }) =>
      html`<li><a href="${href}"${href === path ? current : undefined}>${text}</a></li>`,
  )}</ul></nav>
</header>
<main id="main" tabindex="-1">
${main}
</main>
<footer>
<p>${service.guidance}</p>
<p>For machines: <a href="/openapi.json">openapi.json</a>, <a href="/llms.txt">llms.txt</a>, <a href="/.well-known/x402">x402</a>. The x402 facilitator is <code>${service.facilitatorUrl}</code>.${service.contact !== undefined && html` Contact: <a href="mailto:${service.contact}">${service.contact}</a>`}</p>
</footer>
</body>
</html>
`.markup
}

const current = html` aria-current="page"`

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

/**
 * Answers a document, or 304 when the client already has it. `isPrivate` forbids every cache to
 * store it.
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
  const etag = tagOf(markup)
  const headers = {
    ...pageHeaders(),
    'cache-control': isPrivate ? 'no-store' : 'no-cache',
    ...(isPrivate ? {} : { etag }),
    ...options.headers,
  }
  if (!isPrivate && isKnown(request, etag)) return new Response(null, { status: 304, headers })
  return new Response(markup, { status, headers })
}
