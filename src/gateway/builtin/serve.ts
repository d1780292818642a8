import type { Merchant } from '../../config/Config'
import { withBody } from '../../config/keys'
import type { Fulfilled } from '../../paywall/answer/delivery'
import * as Problem from '../../protocol/Problem'
import type { Match } from '../Route'
import { toBuyer } from '../upstream/headers'
import { type InvalidParam, missingBody, validateParams } from '../validate'
import { joke } from './jokes'
import * as Stocks from './stocks'

type Builtin = NonNullable<Merchant['builtin']>

/** Data from which the program itself answers; without stocks when the file lists none. */
export type Stock = { stocks?: Stocks.Stocks | undefined; now: () => number }

/** The request: `search` is '' or has its `?`. */
type BuiltinRequest = {
  match: Pick<Match, 'merchant' | 'route' | 'tail'>
  search: string
  body: Uint8Array
}

/**
 * Key under which its failures are counted. Undefined when it cannot be served: then nothing is
 * sold.
 */
export function originOf(builtin: Builtin, { stocks }: Pick<Stock, 'stocks'>): string | undefined {
  const isMissing = builtin === 'chain-stocks' && stocks === undefined
  return isMissing ? undefined : `builtin ${builtin}`
}

/**
 * All invalid inputs, by the route's schemas and by the builtin's own checks. The method is that of
 * the item: HEAD is GET.
 */
export function invalidInputs(
  { stocks }: Pick<Stock, 'stocks'>,
  {
    match: { merchant, route, tail },
    search,
    body,
    item,
  }: BuiltinRequest & { item: { method: string } },
): readonly InvalidParam[] {
  if (route.bodyRequired && body.byteLength === 0 && withBody.some((each) => each === item.method))
    return missingBody(route, search, tail)
  if (merchant.builtin !== 'chain-stocks' || stocks === undefined)
    return validateParams(route, search, tail, body)
  return Stocks.invalidParams(stocks, route, { search, tail, body })
}

/**
 * The answer of a merchant that the program serves itself, or why there is none. Throws
 * ProblemError `not-ready` for a merchant that is not configured.
 */
export async function serveBuiltin(
  { stocks, now }: Stock,
  { match: { merchant, route }, search, body }: BuiltinRequest,
): Promise<Fulfilled> {
  if (merchant.builtin === 'catjoke') return deliver(joke(new URLSearchParams(search), now()))
  if (stocks === undefined) throw Problem.of('not-ready', 'This merchant is not configured.')
  const answer = await Stocks.answer(stocks, route, { search, body })
  if (answer !== undefined) return deliver(answer)
  return {
    delivered: false,
    upstreamStatus: undefined,
    code: 'upstream-unreachable',
    detail: 'The network of the stocks does not answer.',
  }
}

function deliver(json: unknown): Fulfilled {
  return {
    delivered: true,
    status: 200,
    headers: toBuyer(new Headers({ 'content-type': 'application/json' }), { passHeaders: [] }),
    body: new TextEncoder().encode(JSON.stringify(json)),
  }
}
