import type { Merchant, Route } from '../config/Config'
import { foldPath, foldPaths } from './Fold'
import { segmentsOf } from './Tail'

/**
 * Which paths of an upstream belong to which route, so that no route sells the path of another, in
 * no spelling that an upstream may take for it. Paths are compared in their folded form. What is
 * below the configured path of a route belongs to it, too, also without a tail.
 */

type Sold = { readonly merchant: Merchant; readonly route: Route }

/** The segments of an exact tail: a folded literal, or undefined for any value. */
type Shape = readonly (string | undefined)[]

/** `shape`: undefined where the tail may have any segments. */
type Shaped = Sold & { readonly shape: Shape | undefined }

/** Where a route forwards to. */
type Place = { origin: string; prefix: string; suffix: string; bare: string }

/** The routes whose tails follow one prefix; they differ in what follows the tail. */
type Group = {
  readonly prefix: string
  readonly sales: { readonly suffix: string; readonly all: Shaped[] }[]
  /** Lengths of the prefixes of groups that may share paths with this one. */
  rivals: readonly number[]
}

type Origin = { readonly groups: Map<string, Group>; lengths: readonly number[] }

/** The paths of a route, folded. */
export type Territory = {
  readonly origin: Origin
  readonly group: Group
  /** After the tail. */
  readonly suffix: string
  /** The path without a tail. */
  readonly bare: string
  readonly shape: Shape | undefined
}

/** The territories of a configuration, by the origins of its upstreams. */
export type Origins = Map<string, Origin>

// Of the private use area: neither folding nor a URL changes it.
const mark = '\ue000'
const noLengths: readonly number[] = []

/** Adds a route. Call `findRivals` when all are added. */
export function add(origins: Origins, sold: Sold, place: Place): Territory {
  const origin = origins.get(place.origin) ?? { groups: new Map(), lengths: noLengths }
  origins.set(place.origin, origin)
  const suffix = place.suffix === '' ? '' : foldSuffix(place.suffix)
  const bare = foldPath(place.bare)
  const shape = shapeOf(sold.route)
  const group = register(origin, foldPrefix(place.prefix), suffix, { ...sold, shape })
  return { origin, group, suffix, bare, shape }
}

function shapeOf(route: Route): Shape | undefined {
  if (!route.isTailExact) return undefined
  return segmentsOf(route).map(({ isLiteral, name }) =>
    isLiteral ? namesOf(foldPath(`/${encodeURIComponent(name)}`)).join('/') : undefined,
  )
}

function namesOf(folded: string): string[] {
  return folded.split('/').filter((name) => name !== '')
}

/** A prefix that ends inside a segment has no slash at its end. */
function foldPrefix(prefix: string): string {
  if (prefix.endsWith('/')) return foldPath(prefix.slice(0, -1))
  return foldPath(prefix + mark).replace(`${mark}/`, '')
}

function foldSuffix(suffix: string): string {
  const [, end = ''] = foldPath(`/${mark}${suffix}`).split(mark)
  return end === '/' ? '' : end
}

function register({ groups }: Origin, prefix: string, suffix: string, sold: Shaped): Group {
  const group: Group = groups.get(prefix) ?? { prefix, sales: [], rivals: noLengths }
  groups.set(prefix, group)
  const known = group.sales.find((each) => each.suffix === suffix)
  if (known === undefined) group.sales.push({ suffix, all: [sold] })
  else known.all.push(sold)
  return group
}

/** Finds the rivals of each route. Most have none, and then a request costs no lookup. */
export function findRivals(origins: Origins): void {
  for (const origin of origins.values()) findRivalsAt(origin)
}

function findRivalsAt(origin: Origin): void {
  const { groups } = origin
  origin.lengths = [...new Set([...groups.keys()].map((prefix) => prefix.length))]
  for (const group of groups.values()) {
    const { length } = group.prefix
    const isShaped = group.sales.some(({ all }) => all.length > 1 && all.some(({ shape }) => shape))
    if (group.sales.length > 1 || isShaped) addRival(group, length)
    for (const shorter of origin.lengths) {
      const above = shorter < length ? groups.get(group.prefix.slice(0, shorter)) : undefined
      if (above === undefined) continue
      addRival(above, length)
      if (above.sales.some(({ suffix }) => suffix !== '')) addRival(group, shorter)
    }
  }
}

function addRival(group: Group, length: number): void {
  if (!group.rivals.includes(length)) group.rivals = [...group.rivals, length]
}

/** Whether a path that a route would forward belongs to another route. */
export function isOfAnother(territory: Territory, sold: Sold, path: string): boolean {
  const { group, suffix } = territory
  const { tail } = sold.route
  if (group.rivals.length === 0 && tail === 'optional' && suffix === '') return false
  return foldPaths(path).some((folded) => isTaken(territory, sold, folded))
}

function isTaken(territory: Territory, sold: Sold, folded: string): boolean {
  const { origin, group, suffix, shape } = territory
  const isOwn = isOwnPath(territory, sold.route, folded)
  for (const length of isOwn ? group.rivals : origin.lengths) {
    const other = origin.groups.get(folded.slice(0, length))
    if (other === undefined) continue
    for (const each of other.sales) {
      if (!isBetween(other.prefix, each.suffix, folded)) continue
      const isSame = other === group && each.suffix === suffix
      const isWider = length <= group.prefix.length && each.suffix.length <= suffix.length
      if (isOwn && isWider && !isSame) continue
      const isNarrower = length >= group.prefix.length && each.suffix.length >= suffix.length
      const names = namesOf(folded.slice(length, folded.length - each.suffix.length))
      const isTaker = (one: Shaped) =>
        (!isOwn || !isSame || isMoreExact(one.shape, shape)) &&
        mayBeOf(one.shape, names, shape !== undefined) &&
        takes(one, sold, !isOwn || isNarrower)
      if (each.all.some(isTaker)) return true
    }
  }
  return false
}

/** Whether an upstream path is one of the route. */
export function contains(territory: Territory, route: Route, path: string): boolean {
  return isOwnPath(territory, route, foldPath(path))
}

function isOwnPath(territory: Territory, { tail }: Route, folded: string): boolean {
  const { group, suffix, bare, shape } = territory
  const { prefix } = group
  if (folded === bare) return tail !== 'required'
  if (tail === 'none' || !isBetween(prefix, suffix, folded)) return false
  return mayBeOf(shape, namesOf(folded.slice(prefix.length, folded.length - suffix.length)), true)
}

/** Whether names have a shape. Unless it must be all of them, further names may follow. */
function mayBeOf(shape: Shape | undefined, names: readonly string[], isWhole: boolean): boolean {
  if (shape === undefined) return true
  if (isWhole ? names.length !== shape.length : names.length < shape.length) return false
  return shape.every((literal, at) => literal === undefined || literal === names[at])
}

/** Of two shapes that a path has, whether the first says more of it. */
function isMoreExact(one: Shape | undefined, other: Shape | undefined): boolean {
  if (one === undefined || other === undefined) return one !== undefined && other === undefined
  const literals = (shape: Shape) => shape.filter((literal) => literal !== undefined).length
  return one.length === other.length && literals(one) > literals(other)
}

function isBetween(prefix: string, suffix: string, folded: string): boolean {
  // Without a tail the two share a slash.
  if (prefix.length + suffix.length > folded.length + 1) return false
  return folded.startsWith(prefix) && folded.endsWith(suffix)
}

/** The routes of lower prices whose tails reach the paths of `sold`, or that share its path. */
export function cheaperAround({ origin, group, suffix }: Territory, sold: Sold): Sold[] {
  const { prefix } = group
  return origin.lengths.flatMap((length) => {
    const around = length > prefix.length ? undefined : origin.groups.get(prefix.slice(0, length))
    if (around === undefined) return []
    const sales = around.sales.filter((each) => suffix.endsWith(each.suffix))
    return sales.flatMap((each) => {
      const isSame = around === group && each.suffix === suffix
      return each.all.filter(
        (one) =>
          one.route.priceAtomic < sold.route.priceAtomic &&
          (isSame ? mayAnswerAlike(one, sold) : one.route.tail !== 'none'),
      )
    })
  })
}

/** Whether two routes at one upstream path may forward the same request. */
function mayAnswerAlike(one: Sold, other: Sold): boolean {
  const requestOf = ({ merchant, route }: Sold) => {
    const { fixedQuery, rewrite, params, body, meter } = route
    return [merchant.headers, fixedQuery, rewrite, params, body, meter]
  }
  const tails = [one.route.tail, other.route.tail]
  if (tails.includes('none') && tails.includes('required')) return false
  const isMethod = one.route.methods.some((method) => other.route.methods.includes(method))
  return isMethod && Bun.deepEquals(requestOf(one), requestOf(other))
}

/**
 * Whether a path that two routes may sell is not sold by `sold`. In one merchant the route with the
 * more exact path has it. Merchants may sell the same paths of one origin, but not below the price.
 */
function takes(one: Sold, sold: Sold, isExact: boolean): boolean {
  if (one.route === sold.route) return false
  if (isExact && one.merchant === sold.merchant) return true
  const { priceAtomic, meter } = sold.route
  return one.route.priceAtomic > (meter?.baseAtomic ?? priceAtomic)
}
