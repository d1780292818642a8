import admin from './admin/admin.css' with { type: 'text' }
import icon from './icon.svg' with { type: 'text' }
import script from './script.js' with { type: 'text' }
import style from './style.css' with { type: 'text' }
import answer from './wallet/answer.js' with { type: 'text' }
import kept from './wallet/kept.js' with { type: 'text' }
import order from './wallet/order.js' with { type: 'text' }
import panel from './wallet/panel.js' with { type: 'text' }
import purchase from './wallet/purchase.js' with { type: 'text' }
import signing from './wallet/signing.js' with { type: 'text' }
import wallets from './wallet/wallets.js' with { type: 'text' }

/** A file inside the program, under a path that contains the hash of its content. */
export type Asset = { path: string; body: string; contentType: string; hash: string }

type Assets = Readonly<Record<'script' | 'wallet' | 'style' | 'admin' | 'icon', Asset>>

/** One script with names of its own, in the order in which its parts use each other. */
const wallet = [wallets, kept, signing, purchase, answer, panel, order]

let made: Assets | undefined

/** Made when a page is first read, because a start does not need them. */
export function assets(): Assets {
  made ??= {
    script: asset('script', 'js', minified(script), javascript),
    wallet: asset('wallet', 'js', minified(`(() => {\n${wallet.join('\n')}\n})()`), javascript),
    style: asset('style', 'css', style, 'text/css; charset=utf-8'),
    admin: asset('admin', 'css', admin, 'text/css; charset=utf-8'),
    icon: asset('icon', 'svg', icon, 'image/svg+xml'),
  }
  return made
}

const javascript = 'text/javascript; charset=utf-8'

/** Without comments and indentation; names stay, because the scripts share some. */
function minified(text: string): string {
  return new Bun.Transpiler({ loader: 'js', minifyWhitespace: true }).transformSync(text)
}

/**
 * Runs our scripts and nothing else, by their hashes: nothing inline, nothing from another host. Text
 * cannot become markup at run time.
 */
export function securityPolicy(): string {
  const { script, wallet } = assets()
  return [
    "default-src 'none'",
    `script-src 'sha256-${script.hash}' 'sha256-${wallet.hash}'`,
    "style-src 'self'",
    // Icons of wallets are data, and images that were bought are blobs.
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ')
}

/** The asset at a path. Its content never changes, so clients may cache it without a limit. */
export function findAsset(path: string): Response | undefined {
  const found = Object.values(assets()).find((each) => each.path === path)
  if (found === undefined) return undefined
  return new Response(found.body, {
    headers: {
      'content-type': found.contentType,
      'cache-control': 'public, max-age=31536000, immutable',
      'x-content-type-options': 'nosniff',
      'cross-origin-resource-policy': 'same-origin',
    },
  })
}

/** A toll bar, which indexers show beside the service. */
const favicon =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">' +
  '<rect width="32" height="32" rx="6" fill="#16324f"/><rect x="6" y="8" width="5" height="18" fill="#f2f5f8"/>' +
  '<path d="M8 11 27 7v5L8 16z" fill="#f2f5f8"/><path d="m14 9.700 4-.8v5l-4 .8z" fill="#e4572e"/></svg>'

/** `GET /favicon.svg`. */
export function sendFavicon(): Response {
  return new Response(favicon, {
    headers: {
      'content-type': 'image/svg+xml',
      'cache-control': 'public, max-age=86400',
      'x-content-type-options': 'nosniff',
    },
  })
}

function asset(name: string, extension: string, body: string, contentType: string): Asset {
  const hash = new Bun.CryptoHasher('sha256').update(body).digest('base64')
  const short = Buffer.from(hash, 'base64').toString('hex').slice(0, 16)
  return { path: `/assets/${name}-${short}.${extension}`, body, contentType, hash }
}
