import type { Merchant, Route } from '../config/Config'
import { ipVersion } from '../net/runtime'
import { fromPercent } from './Fold'
import * as Query from './Query'
import * as Territory from './Territory'

/** Where a route's requests are forwarded to, parsed once. */
export type Target = {
  /** Scheme, host and port of the upstream. */
  origin: string
  /** Host name without brackets or port: the name to resolve. */
  hostname: string
  /** The TLS server name; undefined for an address. */
  serverName: string | undefined
  /** Value of the Host header. */
  host: string
  /** Upstream path before and after the tail; `bare` is the whole path without a tail. */
  prefix: string
  suffix: string
  bare: string
  /** Encoded query pairs that are added unless the buyer has set the name. */
  defaults: readonly Pair[]
  /** Encoded query pairs that replace the buyer's. */
  fixed: readonly Pair[]
  fixedNames: Query.Names
  territory: Territory.Territory
}

type Pair = { name: string; encoded: string }

/** The route that a path selects. */
export type Match = {
  merchant: Merchant
  route: Route
  /** Canonical segments after the route path, still encoded, without a leading slash; may be ''. */
  tail: string
  /** Undefined for merchants that the binary serves itself. */
  target: Target | undefined
}

/** Most nodes are leaves. A map for each would be the larger part of a large catalogue. */
type Node = { children: Map<string, Node> | undefined; entry: Match | undefined }

type Seller = { merchant: Merchant; root: Node }

/** Compiled merchants. */
export type Matcher = {
  bySlug: ReadonlyMap<string, Seller>
  /** Matches without a tail by their canonical path. Most requests need only this map. */
  exact: ReadonlyMap<string, Match>
  /** A match of each route without a tail, in file order. */
  all: readonly Match[]
}

// RFC 3986 pchar without `%`, and the brackets and bar that WHATWG URLs leave unencoded.
const plainPath = /^(?:\/[\w\-.~!$&'()*+,=:@;[\]|]+)+$/
const dotSegment = /\/\.{1,2}(?:[/;]|$)/
const visibleAscii = /^[\x21-\x7e]*$/
const badPercent = /%(?![0-9a-f]{2})/i
const percent = /%[0-9a-f]{2}/gi
const percentAscii = /%[0-7][0-9a-f]/gi
const unreserved = /[\w\-.~]/
// Backslash, C0, DEL, C1, line and paragraph separator.
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is looked for
const forbidden = /[\\\u0000-\u001f\u007f-\u009f\u2028\u2029]/
const decodingRounds = 4

/**
 * The one form of a path that is matched, fingerprinted and forwarded. Undefined when there is
 * none, which is a 400. Takes the pathname of Bun's `request.url`, a WHATWG URL: `..` and `%2e%2e`
 * segments are already collapsed and a backslash is already a slash. Refused here are empty
 * segments, dot segments in any further encoding (`%2e%2e%2f`, `%252e`, `..;`, full-width dots),
 * backslashes, control characters, and bad percent sequences or UTF-8. Encoded unreserved
 * characters are decoded, an encoded slash stays inside its segment, one trailing slash is dropped.
 */
export function canonicalize(pathname: string): string | undefined {
  if (pathname === '/') return pathname
  const path = pathname.endsWith('/') ? pathname.slice(0, -1) : pathname
  if (plainPath.test(path)) return dotSegment.test(path) ? undefined : path
  if (!path.startsWith('/') || !visibleAscii.test(path)) return undefined
  const segments: string[] = []
  for (const raw of path.slice(1).split('/')) {
    const segment = canonicalSegment(raw)
    if (segment === undefined) return undefined
    segments.push(segment)
  }
  const canonical = `/${segments.join('/')}`
  // The forwarded path must equal the matched path, so a URL parser must not change it.
  return new URL(`http://localhost${canonical}`).pathname === canonical ? canonical : undefined
}

function canonicalSegment(raw: string): string | undefined {
  if (raw === '' || badPercent.test(raw)) return undefined
  let decoded: string
  try {
    decoded = decodeURIComponent(raw)
  } catch {
    return undefined
  }
  if (isHostile(decoded)) return undefined
  return raw.replace(percent, (escaped) => {
    const character = fromPercent(escaped)
    return unreserved.test(character) ? character : escaped.toUpperCase()
  })
}

const onlyDots = /^[\s.]+$/

/** Whether an upstream that decodes once more could find a parent directory in the segment. */
function isHostile(segment: string): boolean {
  let text = segment
  for (let round = 0; round < decodingRounds; round++) {
    if (forbidden.test(text)) return true
    for (const part of text.split('/')) {
      // Servlet containers drop `;parameters` before they collapse dots.
      const name = part.split(';', 1)[0]?.normalize('NFKC') ?? ''
      // Some file systems and servers drop trailing blanks and dots of a name.
      if (onlyDots.test(name) && name.includes('.') && (name.length <= 2 || /\s/.test(name)))
        return true
    }
    const next = text.replace(percentAscii, fromPercent)
    if (next === text) return false
    text = next
  }
  return true
}

/** Compiles merchants for `match`. Throws Error when a slug or a route path appears twice. */
export function compile(merchants: readonly Merchant[]): Matcher {
  const bySlug = new Map<string, Seller>()
  const exact = new Map<string, Match>()
  const all: Match[] = []
  const origins: Territory.Origins = new Map()
  for (const merchant of merchants) {
    if (bySlug.has(merchant.slug)) throw new Error(`merchant ${merchant.slug} appears twice`)
    const root: Node = { children: undefined, entry: undefined }
    for (const route of merchant.routes) {
      const path = canonicalize(route.path === '' ? '/' : route.path)
      if (path === undefined)
        throw new Error(`${merchant.slug}${route.path} is not a canonical path`)
      let node = root
      for (const segment of path.split('/').slice(1)) {
        if (segment === '') continue
        node.children ??= new Map()
        const child = node.children.get(segment) ?? { children: undefined, entry: undefined }
        node.children.set(segment, child)
        node = child
      }
      if (node.entry !== undefined) throw new Error(`${merchant.slug}${route.path} appears twice`)
      node.entry = { merchant, route, tail: '', target: targetOf(merchant, route, origins) }
      all.push(node.entry)
      if (path === '/' || route.tail === 'required') continue
      exact.set(`/m/${merchant.slug}${path}`, node.entry)
    }
    bySlug.set(merchant.slug, { merchant, root })
  }
  Territory.findRivals(origins)
  return { bySlug, exact, all }
}

/**
 * Finds the route of a canonical path (`/m/{slug}/...`), in time linear in its segments. Only the
 * longest route counts: when its tail does not fit, no shorter route is sold instead.
 */
export function match(matcher: Matcher, path: string): Match | undefined {
  const found = matcher.exact.get(path)
  if (found !== undefined) return found
  const segments = path.split('/')
  if (segments[1] !== 'm') return undefined
  const seller = matcher.bySlug.get(segments[2] ?? '')
  if (seller === undefined) return undefined
  let node = seller.root
  let entry = node.entry
  let used = 3
  for (let index = 3; index < segments.length; index++) {
    const child = node.children?.get(segments[index] ?? '')
    if (child === undefined) break
    node = child
    if (node.entry === undefined) continue
    entry = node.entry
    used = index + 1
  }
  if (entry === undefined) return undefined
  const { route, target } = entry
  const tail = segments.slice(used).join('/')
  if (tail === '' ? route.tail === 'required' : route.tail === 'none') return undefined
  const exact = target?.territory.shape?.length ?? segments.length - used
  if (exact !== segments.length - used) return undefined
  // A route of every path does not sell the merchant's free document.
  if (used === 3 && tail === 'openapi.json') return undefined
  const isForwarded = tail !== '' && target !== undefined
  if (isForwarded && Territory.isOfAnother(target.territory, entry, pathOf(target, tail)))
    return undefined
  return { merchant: seller.merchant, route, tail, target }
}

function targetOf(
  merchant: Merchant,
  route: Route,
  origins: Territory.Origins,
): Target | undefined {
  const base = route.upstream ?? merchant.upstream
  if (base === undefined) return undefined
  const template = route.upstreamPath.includes('{tail}')
    ? route.upstreamPath
    : `${route.upstreamPath.replace(/\/$/, '')}/{tail}`
  const [before = '', after = ''] = (base.pathname.replace(/\/$/, '') + template).split('{tail}')
  const isWholeSegment = before.endsWith('/') && (after === '' || after.startsWith('/'))
  // Without a tail the path is sent as it is written: some upstreams redirect without its last slash.
  const isWritten = route.tail === 'none' && route.upstreamPath.endsWith('/')
  const bare = (isWholeSegment && !isWritten ? before.slice(0, -1) : before) + after
  const normal = (path: string) => new URL(base.origin + path).pathname
  const fixed = pairs(route.fixedQuery)
  const place = {
    origin: base.origin,
    prefix: normal(before),
    suffix: after === '' ? '' : normal(`/${after}`).slice(1),
    bare: normal(bare),
  }
  const hostname = base.hostname.replace(/^\[|\]$/g, '')
  return {
    ...place,
    hostname,
    serverName: ipVersion(hostname) === 0 ? hostname : undefined,
    host: base.host,
    // Passes are not forwarded, so they take no paths from others.
    territory: Territory.add(
      route.passOf === undefined ? origins : new Map(),
      { merchant, route },
      place,
    ),
    defaults:
      fixed.length === 0
        ? pairs(route.query)
        : pairs(route.query).filter((pair) => !Object.hasOwn(route.fixedQuery, pair.name)),
    fixed,
    fixedNames: fixed.length === 0 ? noNames : Query.namesOf(Object.keys(route.fixedQuery)),
  }
}

const noNames = Query.namesOf([])
const noPairs: readonly Pair[] = []

function pairs(query: Readonly<Record<string, string>>): readonly Pair[] {
  if (Object.keys(query).length === 0) return noPairs
  return Object.entries(query).map(([name, value]) => ({
    name,
    encoded: `${encodeURIComponent(name)}=${encodeURIComponent(value)}`,
  }))
}

/**
 * Upstream URL of a match. `search` is the buyer's query: '' or with its `?`. It is forwarded byte
 * for byte unless the route has query values of its own. Throws Error if the result would leave the
 * configured origin or path, which no canonical path can do.
 */
export function upstreamUrl(target: Target, tail: string, search: string): URL {
  const path = pathOf(target, tail)
  const url = new URL(target.origin + path + queryOf(target, search))
  const inside = tail === '' ? url.pathname === path : url.pathname.startsWith(target.prefix)
  if (url.origin !== target.origin || !inside || url.username !== '' || url.hash !== '')
    throw new Error('the upstream URL would leave the configured origin or path')
  return url
}

/** Whether an upstream path is one that the route of a match sells. */
export function sells({ merchant, route, target }: Match, pathname: string): boolean {
  const path = canonicalize(pathname)
  if (target === undefined || path === undefined) return false
  const { territory } = target
  const isOwn = Territory.contains(territory, route, path)
  return isOwn && !Territory.isOfAnother(territory, { merchant, route }, path)
}

function pathOf({ bare, prefix, suffix }: Target, tail: string): string {
  return tail === '' ? bare : prefix + tail + suffix
}

/** A query of the upstream, '' or with its `?`, with the values that the route fixes. */
export function withFixed(target: Target, search: string): string {
  return queryOf({ ...target, defaults: noPairs }, search)
}

function queryOf(target: Target, search: string): string {
  if (target.defaults.length === 0 && target.fixed.length === 0) return search
  const buyers: string[] = []
  const names = new Set<string>()
  for (const pair of search === '' ? [] : search.slice(1).split('&')) {
    const own = Query.readPair(pair).map(([name]) => name)
    if (own.some((name) => Query.mayChange(target.fixedNames, name))) continue
    buyers.push(pair)
    for (const name of own) names.add(name)
  }
  const missing = target.defaults.filter((pair) => !names.has(pair.name))
  const all = [...buyers, ...missing.map((p) => p.encoded), ...target.fixed.map((p) => p.encoded)]
  return all.length === 0 ? '' : `?${all.join('&')}`
}
