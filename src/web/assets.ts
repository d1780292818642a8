import type { Logo, Service } from '../config/Config'
import { pathOf } from '../http/url'
import admin from './admin/admin.css' with { type: 'text' }
import base from './base.css' with { type: 'text' }
import answers from './browser/script/answers.js' with { type: 'text' }
import compose from './browser/script/compose.js' with { type: 'text' }
import copy from './browser/script/copy.js' with { type: 'text' }
import elements from './browser/script/elements.js' with { type: 'text' }
import outcome from './browser/script/outcome.js' with { type: 'text' }
import stocks from './browser/script/stocks.js' with { type: 'text' }
import tabs from './browser/script/tabs.js' with { type: 'text' }
import answer from './browser/wallet/answer.js' with { type: 'text' }
import kept from './browser/wallet/kept.js' with { type: 'text' }
import order from './browser/wallet/order.js' with { type: 'text' }
import panel from './browser/wallet/panel.js' with { type: 'text' }
import purchase from './browser/wallet/purchase.js' with { type: 'text' }
import signing from './browser/wallet/signing.js' with { type: 'text' }
import wallets from './browser/wallet/wallets.js' with { type: 'text' }
import icon from './icon.svg' with { type: 'text' }
import { type Packed, pack, sendPacked } from './packed'
import style from './style.css' with { type: 'text' }
import * as Theme from './Theme'

/** A file inside the program, under a path that contains the hash of its content. */
type Asset = { path: string; body: Packed; contentType: string; hash: string }

/** One script; the wallet's script uses its names, too. */
const page = [elements, outcome, answers, copy, tabs, compose, stocks]
/** One script with names of its own, in the order in which its parts use each other. */
const wallet = [wallets, kept, signing, purchase, answer, panel, order]

let scripts: ReturnType<typeof makeScripts> | undefined

/** Minified when a page is first read, because a start does not need them. */
function makeScripts() {
  const own = `(() => {\n${wallet.join('\n')}\n})()`
  const script = minified(page.join('\n'), { keepsNames: true })
  return {
    script: asset('script', 'js', script, javascript),
    wallet: asset('wallet', 'js', minified(own, { keepsNames: false }), javascript),
    copy: inline('copy', 'js', minified(copy, { keepsNames: true }).trim(), javascript),
  }
}

type Brand = Pick<Service, 'accent' | 'logo'>

/** A file can be loaded again while the process runs, so each configuration has its own. */
const byService = new WeakMap<Brand, ReturnType<typeof makeAssets>>()

/** The assets of the pages of a service, with its colour and its logo. */
export function assetsOf(service: Brand) {
  const assets = byService.get(service) ?? makeAssets(service)
  byService.set(service, assets)
  return assets
}

function makeAssets(service: Brand) {
  scripts ??= makeScripts()
  return {
    ...scripts,
    style: inline('style', 'css', styleOf(service), 'text/css; charset=utf-8'),
    admin: asset('admin', 'css', base + admin, 'text/css; charset=utf-8'),
    icon: asset('icon', 'svg', icon, 'image/svg+xml'),
    logo: logoAsset(service.logo),
  }
}

function styleOf({ accent }: Brand): string {
  const small = (base + style).replace(/\/\*[\s\S]*?\*\//g, '').replace(/\s*\n\s*/g, '\n')
  return accent === undefined ? small : small + Theme.toCss(Theme.from(accent))
}

function logoAsset(logo: Logo | undefined): Asset | undefined {
  if (logo === undefined) return undefined
  return asset('logo', logo.type === 'image/png' ? 'png' : 'svg', logo.bytes, logo.type)
}

const javascript = 'text/javascript; charset=utf-8'

/** `keepsNames`: another script uses some of its names. */
function minified(text: string, { keepsNames }: { keepsNames: boolean }): string {
  const minify = { whitespace: true, syntax: !keepsNames, identifiers: !keepsNames }
  // The types of Bun 1.4 lack `minify`.
  const options = { loader: 'js', target: 'browser', minify } as const
  return new Bun.Transpiler(options).transformSync(text)
}

/**
 * Permits our scripts and our style by their hashes, and no other inline text or host. Text cannot
 * become markup at run time.
 */
export function securityPolicy(service: Brand): string {
  const { script, wallet, copy, style } = assetsOf(service)
  const scripts = [script, wallet, copy].map(({ hash }) => `'sha256-${hash}'`)
  return [
    "default-src 'none'",
    `script-src ${scripts.join(' ')}`,
    `style-src 'self' 'sha256-${style.hash}'`,
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
export function findAsset(service: Brand, request: Request): Response | undefined {
  const path = pathOf(request.url)
  const found = Object.values(assetsOf(service)).find((each) => each?.path === path)
  if (found === undefined) return undefined
  const headers = {
    'content-type': found.contentType,
    'cache-control': 'public, max-age=31536000, immutable',
    'x-content-type-options': 'nosniff',
    'cross-origin-resource-policy': 'same-origin',
    // An SVG that is opened by its address is a document of this origin, and could have scripts.
    'content-security-policy': "default-src 'none'; sandbox",
  }
  return sendPacked(request, found.body, { headers })
}

/** The icon as a data URL, for a page that contains all of its files. */
export const iconData = `data:image/svg+xml,${encodeURIComponent(icon.trim())}`

/** An asset that a page may also contain, instead of linking it. */
function inline(name: string, extension: string, text: string, contentType: string) {
  return { ...asset(name, extension, text, contentType), text }
}

function asset(
  name: string,
  extension: string,
  body: string | Uint8Array,
  contentType: string,
): Asset {
  const hash = new Bun.CryptoHasher('sha256').update(body).digest('base64')
  const short = Buffer.from(hash, 'base64').toString('hex').slice(0, 16)
  return { path: `/assets/${name}-${short}.${extension}`, body: pack(body), contentType, hash }
}
