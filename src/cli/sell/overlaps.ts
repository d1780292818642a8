import type { Merchant } from '../../config/Config'
import * as Route from '../../gateway/Route'
import { cheaperAround } from '../../gateway/Territory'
import type { Finding } from './models'

const namedMax = 3

/** Routes that forward to the upstream paths of dearer ones, one finding for each. */
export function findOverlaps(merchants: readonly Merchant[]): Finding[] {
  const { all } = Route.compile(merchants)
  const dearer = new Map<Route.Match['route'], Set<string>>()
  for (const match of all)
    for (const { route } of match.target ? cheaperAround(match.target.territory, match) : []) {
      const names = dearer.get(route) ?? new Set()
      dearer.set(route, names.add(nameOf(match)))
    }
  return all.flatMap((match): Finding[] => {
    const names = [...(dearer.get(match.route) ?? [])]
    if (names.length === 0) return []
    const i = merchants.indexOf(match.merchant)
    const j = match.merchant.routes.indexOf(match.route)
    const more = names.length > namedMax ? ` and ${names.length - namedMax} more` : ''
    const message =
      `${nameOf(match)} forwards to paths that cost more at ${names.slice(0, namedMax).join(', ')}${more}: ` +
      'spellings that only the upstream knows get them at the lower price; write tail = "none", or ' +
      'another upstream_path'
    return [{ path: ['merchants', i, 'routes', j, 'path'], message }]
  })
}

function nameOf({ merchant, route }: Route.Match): string {
  return `${merchant.slug}${route.path || '/'}`
}
