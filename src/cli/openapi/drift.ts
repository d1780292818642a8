import type { Config, Merchant, Route } from '../../config/Config'
import type { Warning } from '../../config/warnings'
import { formsOf } from '../../gateway/documents/Catalogue'
import { upstreamOf } from './compose'
import type { Document } from './document'
import * as Operation from './Operation'
import { brief } from './Value'

/** How the routes of a file and the operations of a specification differ. */

type Drift = {
  /** Routes that sell what the specification does not have, or not so. */
  findings: readonly Warning[]
  /** Operations that no route sells. */
  unsold: readonly string[]
}

/** Compares the routes of the merchants that have the upstream of the specification; else of all. */
export function findDrift({ merchants }: Config, document: Document): Drift {
  const { operations } = Operation.list(document, 'api')
  const known = Map.groupBy(operations, (each) => `${each.method} ${each.template}`)
  const server = URL.parse(upstreamOf(document)?.upstream ?? '')
  const origin = server?.origin
  const root = server?.pathname.replace(/\/$/, '') || '/'
  const isOf = (merchant: Merchant, route: Route) =>
    (route.upstream ?? merchant.upstream)?.origin === origin
  const isKnown = merchants.some((each) => each.routes.some((route) => isOf(each, route)))
  const sold = new Set<Operation.Operation>()
  const findings = merchants.flatMap((merchant, i) =>
    merchant.routes.flatMap((route, j) => {
      const isOther = isKnown && !isOf(merchant, route)
      if (merchant.builtin || route.passOf !== undefined || isOther) return []
      const path = ['merchants', i, 'routes', j]
      return differences(route, { known, root, sold }).map(({ key, message }) => ({
        path: [...path, key],
        message: `${merchant.slug}${route.path || '/'} ${message}`,
      }))
    }),
  )
  const unsold = operations.filter((each) => !sold.has(each))
  return { findings, unsold: unsold.map(({ key }) => key) }
}

type Sides = {
  /** By method and path; only fragments differ within one. */
  known: ReadonlyMap<string, readonly Operation.Operation[]>
  /** Path of the server. */
  root: string
  /** Operations that were found at a route. */
  sold: Set<Operation.Operation>
}

function differences(
  route: Route,
  { known, root, sold }: Sides,
): { key: string; message: string }[] {
  const templates = templatesOf(route)
  const open = templates.find((template) => template.endsWith('{tail}'))
  if (open !== undefined) {
    const start = open.slice(0, -'{tail}'.length)
    // What is in front of the paths of a specification is not known for a file.
    for (const each of [...known.values()].flat())
      if (
        start.endsWith('/') &&
        isBelow(each.template, start) &&
        route.methods.includes(each.method)
      )
        sold.add(each)
    return []
  }
  return route.methods.flatMap((method) => {
    const found = templates.flatMap((template) => {
      return known.get(template === root ? `${method} /` : '') ?? find(known, method, template)
    })
    const compared = found.map((each) => ({ each, differs: inputs(route, each) }))
    const [best] = compared.toSorted(
      (a, b) => a.differs.length - b.differs.length || +sold.has(a.each) - +sold.has(b.each),
    )
    if (best === undefined) {
      const asked = `${method} ${templates[0] ?? route.upstreamPath}`
      return [{ key: 'path', message: `asks for ${asked}, which the specification has not` }]
    }
    sold.add(best.each)
    // A route may have several paths at the upstream.
    if (templates.length > 1) for (const each of found) sold.add(each)
    return best.differs
  })
}

/** The upstream paths of a route, with `{}` for each parameter and `{tail}` for any segments. */
function templatesOf(route: Route): string[] {
  return formsOf(route).map(({ segments }) => {
    const tail = segments.map(({ isLiteral, isRest, name, prefix, suffix }) =>
      isRest ? '{tail}' : isLiteral ? name : `${prefix}{}${suffix}`,
    )
    const { upstreamPath } = route
    if (tail.length === 0) return upstreamPath.replace(/\/?\{tail\}/, '') || '/'
    const place = upstreamPath.includes('{tail}') ? upstreamPath : `${upstreamPath}/{tail}`
    return place.replace('{tail}', () => tail.join('/'))
  })
}

/** Paths at the upstream begin with the path of the server, which a file need not name. */
function find(known: Sides['known'], method: string, template: string) {
  const path = template.length > 1 ? template.replace(/\/$/, '') : template
  for (let at = 0; at !== -1; at = path.indexOf('/', at + 1)) {
    const rest = path.slice(at)
    const found = known.get(`${method} ${rest}`) ?? known.get(`${method} ${rest}/`)
    if (found !== undefined) return found
  }
  return []
}

function isBelow(template: string, start: string): boolean {
  for (let at = 0; at !== -1; at = start.indexOf('/', at + 1))
    if (template.startsWith(start.slice(at))) return true
  return false
}

function inputs(route: Route, { key, ...operation }: Operation.Operation) {
  const found: { key: string; message: string }[] = []
  const differs = (place: string, message: string) => found.push({ key: place, message })
  const own = route.params.filter((param) => param.in === 'query')
  const set = Object.keys(route.fixedQuery)
  const others = operation.params.filter((param) => param.in === 'query')
  for (const { name, required } of others) {
    const mine = own.find((param) => param.name === name)
    if (
      required &&
      !set.includes(name) &&
      mine?.required !== true &&
      route.query[name] === undefined
    )
      differs('params', `does not require the parameter ${brief(name, 80)}, which ${key} requires`)
  }
  for (const { name } of own)
    if (!others.some((param) => param.name === name) && route.rewrite[name] === undefined)
      differs('params', `has the parameter ${name}, which ${key} has not`)
  if (operation.bodyRequired && !route.bodyRequired)
    differs('body_required', `does not require a body, which ${key} requires`)
  return found
}
