import { RpcFault } from '../../chain/client'
import type { Route } from '../../config/Config'
import * as Json from '../../protocol/Json'
import { type InvalidParam, validateParams } from '../validate'

/** Data about the listed tokens. Answers are JSON. Reads throw RpcFault when no node answers. */
export type Stocks<Token = object> = {
  find(symbolOrAddress: string): Token | undefined
  quote(token: Token): Promise<unknown>
  token(token: Token): Promise<unknown>
  stocks(): Promise<unknown>
  report(): Promise<unknown>
}

/** A token by name, of the query or, for a POST, of the body, which takes precedence. */
type Named = { symbol: string | undefined; address: string | undefined }

/** All inputs that cannot be served. A token that is not listed is one of them, with its status. */
export function invalidParams(
  stocks: Stocks,
  route: Route,
  { search, tail, body }: { search: string; tail: string; body: Uint8Array },
): readonly InvalidParam[] {
  if (!takesToken(route)) return validateParams(route, search, tail, body)
  const { symbol, address } = nameOf(search, body)
  const bySymbol = symbol === undefined ? undefined : stocks.find(symbol)
  const byAddress = address === undefined ? undefined : stocks.find(address)
  // Replaces an address by its symbol, which the route's schemas require.
  const complete =
    symbol === undefined && address !== undefined ? withSymbol(search, body) : { search, body }
  const faults = validateParams(route, complete.search, tail, complete.body)
  if (faults.length > 0) return faults
  const fault = (name: string, reason: string): InvalidParam => ({
    name,
    in: Object.hasOwn(membersOf(body), name) ? 'body' : 'query',
    reason,
  })
  const unknown = (name: string): InvalidParam => ({
    ...fault(name, 'is not a listed stock'),
    status: 404,
  })
  if (symbol !== undefined && bySymbol === undefined) return [unknown('symbol')]
  if (address !== undefined && byAddress === undefined) return [unknown('address')]
  if (bySymbol === undefined || byAddress === undefined || bySymbol === byAddress) return []
  return [fault('address', 'is not the contract of the symbol')]
}

/**
 * The bought data as JSON. Undefined when no node answers, or when the token is not listed now: it
 * may be listed again.
 */
export async function answer(
  stocks: Stocks,
  route: Route,
  { search, body }: { search: string; body: Uint8Array },
): Promise<unknown> {
  try {
    if (route.path === '/stocks') return await stocks.stocks()
    if (route.path === '/report') return await stocks.report()
    const { symbol, address } = nameOf(search, body)
    const token = stocks.find(address ?? symbol ?? '')
    if (token === undefined) return undefined
    return await (route.path === '/token' ? stocks.token(token) : stocks.quote(token))
  } catch (error) {
    if (error instanceof RpcFault) return undefined
    throw error
  }
}

function takesToken({ path }: Route): boolean {
  return path === '/quote' || path === '/token'
}

function nameOf(search: string, body: Uint8Array): Named {
  const query = new URLSearchParams(search)
  const members = membersOf(body)
  const named = (name: string) => {
    const value = members[name]
    return (typeof value === 'string' && value) || query.get(name) || undefined
  }
  return { symbol: named('symbol'), address: named('address') }
}

/** The same request with a symbol that passes every schema. */
function withSymbol(search: string, body: Uint8Array): { search: string; body: Uint8Array } {
  const query = new URLSearchParams(search)
  query.set('symbol', 'X')
  const members = membersOf(body)
  return {
    search: `?${query}`,
    body:
      body.byteLength === 0 || Object.hasOwn(members, 'symbol')
        ? body
        : new TextEncoder().encode(JSON.stringify({ ...members, symbol: 'X' })),
  }
}

/** Members of a JSON object; none for anything else, which the schema refuses. */
function membersOf(body: Uint8Array): Json.JsonObject {
  if (body.byteLength === 0) return {}
  const read = Json.readBody(body)
  return 'value' in read && Json.isObject(read.value) ? read.value : {}
}
