import * as Crypto from '../protocol/Crypto'
import type { Merchant, NetworkConfig, Route, Service } from './Config'
import { passOf } from './entitlements'
import * as Headers from './headers'
import { merchant as keys } from './keys'
import { readKeys } from './kinds'
import { keyOf } from './lines'
import { readNetworkList } from './networks'
import {
  child,
  children,
  field,
  isEmptyList,
  isTable,
  optional,
  record,
  reportKey,
  reportRepeats,
  type Table,
} from './reader'
import { builtinRoutes, readRoute } from './route'
import { readAllowPrivate, readUpstream } from './upstream'
import * as V from './values'

type Context = {
  service: Service
  networks: readonly NetworkConfig[]
  /** The file's tables before `${NAME}` is replaced, in file order. */
  rawMerchants: readonly unknown[]
  unsetNames: ReadonlyMap<number, string>
  mapUpstream: ((url: URL) => URL) | undefined
}

/** Reads every `[[merchants]]`, in file order. */
export function readMerchants(root: Table, context: Context): readonly Merchant[] {
  const tables = children(root, 'merchants')
  const merchants = tables.map((table, i) => readMerchant(table, i, context))
  const slugs = merchants.map(({ slug }) => slug)
  reportRepeats(tables, 'slug', slugs, (line) => {
    return `slug is already that of the merchant on line ${line}: write another`
  })
  return merchants
}

function readMerchant(table: Table, i: number, context: Context): Merchant {
  const { service, networks, mapUpstream } = context
  const mayBePrivate = readAllowPrivate(table)
  const upstream = readUpstream(table, mayBePrivate, mapUpstream)
  const allowPrivate = mayBePrivate || (upstream?.allowPrivate ?? false)
  const slug = keys.slug.read(table, 'slug')
  const offered = readOffered(table, networks)
  const hasChannels = networks.some(({ id, channels }) => channels && offered.includes(id))
  const around = { service, upstream, allowPrivate: mayBePrivate, mapUpstream, hasChannels }
  const routeTables = children(table, 'routes')
  const routes = routeTables.map((route) => readRoute(route, around))
  let hash: string | undefined
  const values = readKeys(table, keys, {
    title: (key) => field(table, key, V.filled, slug),
    upstream: () => upstream?.origin,
    allowPrivate: () => allowPrivate || isAnyLoopback(routes, mapUpstream),
    headers: () => readHeaders(table),
    ownConnections: (key) => !field(table, key, V.flag, true),
    payout: (key) => (table.raw[key] === undefined ? service.payout : readPayout(table)),
    networks: () => offered,
    routes: () => routes,
  })
  const merchant: Merchant = {
    ...values,
    secrets: readSecrets(table),
    get hash() {
      // Computed at the first use, so that a start does not wait for it.
      hash ??= hashOf(context.rawMerchants[i])
      return hash
    },
    outOfService: context.unsetNames.get(i),
  }
  checkOrigin(table, merchant, routeTables)
  checkRoutes(table, merchant, routeTables)
  // Behind all others, whose places in the file are those in the array.
  const at = `${service.baseUrl}/m/${slug}`
  merchant.routes = [...routes, ...routes.flatMap((route) => passOf(route, at))]
  return merchant
}

function readPayout(table: Table) {
  return optional(table, 'payout', V.address) ?? V.zeroAddress
}

function isAnyLoopback(routes: readonly Route[], map: unknown): boolean {
  return map !== undefined && routes.some((route) => route.upstream && V.isLoopback(route.upstream))
}

/** Checks that every route has a source: the binary itself, or one upstream. */
function checkOrigin(table: Table, merchant: Merchant, routes: readonly Table[]): void {
  const isThere = table.raw.upstream !== undefined
  if (merchant.builtin && isThere)
    reportKey(table, 'upstream', 'a builtin merchant has no upstream: remove builtin or upstream')
  if (!merchant.builtin && !isThere && routes.some((route) => route.raw.upstream === undefined))
    reportKey(table, 'upstream', 'upstream is missing; write upstream = "https://api.example.com"')
}

function checkRoutes(table: Table, merchant: Merchant, tables: readonly Table[]): void {
  if (tables.length === 0)
    reportKey(table, 'routes', 'no route is listed; write [[merchants.routes]]')
  const served = merchant.builtin && builtinRoutes[merchant.builtin]
  if (served !== undefined)
    tables.forEach((route, i) => {
      const { path = '', meter } = merchant.routes[i] ?? {}
      if (!served.includes(path))
        reportKey(
          route,
          'path',
          `path is none of builtin ${merchant.builtin}: ${served.join(', ')}`,
        )
      if (meter !== undefined)
        reportKey(route, 'meter', 'a builtin merchant has fixed prices: remove the meter')
    })
  // The longest literal path is selected before the method, so only equal paths are ambiguous.
  const paths = merchant.routes.map(({ path }) => path)
  reportRepeats(tables, 'path', paths, (line) => {
    return `path is already sold by the route on line ${line}: a path has one price`
  })
  for (const pass of merchant.routes.flatMap((route) => passOf(route, ''))) {
    const other = tables[paths.indexOf(pass.path)]
    const message = `path is where the pass of ${pass.passOf || '/'} is sold: write another`
    if (other !== undefined) reportKey(other, 'path', message)
  }
}

/** Keys whose values are public, or are parts of a URL, whose secrets other readers collect. */
const publicKeys = new Set(
  'slug title tag description summary payout networks path price upstream upstream_path'.split(' '),
)

/** All values that came from the environment, in any key. */
function readSecrets({ source, path }: Table): readonly string[] {
  const start = `${keyOf(path)}\u0000`
  const found = [...source.fromEnv].flatMap(([key, parts]) => {
    if (!key.startsWith(start)) return []
    const names = key.slice(start.length).split('\u0000')
    const name = names[0] === 'routes' ? names[2] : names[0]
    return name !== undefined && publicKeys.has(name) ? [] : parts
  })
  return [...new Set(found)]
}

function readHeaders(table: Table): Readonly<Record<string, string>> {
  const headers = record(table, 'headers', Headers.value)
  const inner = child(table, 'headers')
  const seen = new Set<string>()
  for (const name of Object.keys(inner?.raw ?? {})) {
    const fault = Headers.requestNameFault(name)
    const again = seen.has(name.toLowerCase()) ? 'is there twice: remove one of them' : undefined
    const wrong = fault ?? again
    // The name alone: a control character in it must not reach a terminal.
    if (wrong) reportKey(table, ['headers', name], `header ${wrong}`)
    seen.add(name.toLowerCase())
  }
  return headers
}

/** Networks on which a merchant is paid: all mainnets, or those it lists. */
function readOffered(table: Table, networks: readonly NetworkConfig[]): Merchant['networks'] {
  const mayTest = field(table, 'testnet_ok', V.flag, false)
  const ids = readNetworkList(table, 'networks', networks)
  const mainnets = networks.filter((network) => !network.testnet).map((network) => network.id)
  const offered = ids ?? mainnets
  if (isEmptyList(table, 'networks') || (!ids && networks.length > 0 && offered.length === 0)) {
    const example = `networks = ["${networks[0]?.id ?? 'eip155:8453'}"]`
    reportKey(table, 'networks', `networks is empty; write ${example}`)
  }
  ids?.forEach((id, i) => {
    const network = networks.find((candidate) => candidate.id === id)
    if (!network?.testnet || mayTest) return
    const message = 'this network is a testnet, its money is worth nothing; set testnet_ok = true'
    reportKey(table, ['networks', i], message)
  })
  return offered
}

/** sha256 over the table with sorted keys, so that moving a line is no change. */
function hashOf(raw: unknown): string {
  return Crypto.sha256(sortedJson(raw))
}

/**
 * Written by hand, because a start calls it for every merchant, and a replacer of JSON.stringify
 * takes twice as long.
 */
function sortedJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(sortedJson).join(',')}]`
  if (!isTable(value)) return JSON.stringify(value) ?? ''
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${sortedJson(value[key])}`)
  return `{${members.join(',')}}`
}
