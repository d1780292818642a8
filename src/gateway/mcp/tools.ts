import type { Config, Route } from '../../config/Config'
import * as Catalogue from '../documents/Catalogue'
import { invalidParams, RpcFault } from './answer'
import * as Tool from './Tool'

/** The tools of a configuration: one for each route. */
export type Tools = {
  find(name: string): Tool.Tool | undefined
  /** The name of a route's tool; undefined for a route that cannot be bought. */
  nameOf(route: Route): string | undefined
  /** A page of the tools that can be bought now. Throws RpcFault for a cursor that is not ours. */
  list(cursor: string | undefined): Page
}

type Page = { tools: ReturnType<typeof Tool.describe>[]; nextCursor?: string }

const pageSize = 100

/** Compiled at the first request. */
export function createTools(
  config: Config,
  isReady: Catalogue.IsReady,
  facilitators?: Catalogue.Facilitators,
): Tools {
  let tools: ReadonlyMap<string, Tool.Tool> | undefined
  const compiled = () => {
    tools ??= Tool.compile(config)
    return tools
  }
  let names: ReadonlyMap<Route, string> | undefined
  return {
    find: (name) => compiled().get(name),
    nameOf(route) {
      names ??= new Map([...compiled().values()].map((tool) => [tool.route, tool.name]))
      return names.get(route)
    },
    list(cursor) {
      const offset = cursor === undefined ? 0 : Number(/^\d{1,9}$/.exec(cursor)?.[0] ?? Number.NaN)
      if (Number.isNaN(offset))
        throw new RpcFault(invalidParams, 'The cursor is not one of this service.')
      // A client lists tools once a session: an outage must not leave it without tools.
      const ids = config.networks.map(({ id }) => id)
      const isListed = Catalogue.readyOrAll(ids, isReady)
      const offered = [...compiled().values()].flatMap((tool) => {
        const networks = tool.networks.filter(({ id }) => isListed(id))
        return networks.length === 0 ? [] : [{ tool, networks }]
      })
      const next = offset + pageSize
      return {
        tools: offered.slice(offset, next).map(({ tool, networks }) => {
          const { merchant, route } = tool
          const listing = { merchant, networks }
          const byUse = Catalogue.networksByUse(config, listing, route, facilitators)
          return Tool.describe(tool, networks, byUse)
        }),
        ...(next < offered.length ? { nextCursor: String(next) } : {}),
      }
    },
  }
}
