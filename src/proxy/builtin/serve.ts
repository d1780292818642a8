import type { Merchant, Route } from '../../config/Config'
import type { Fulfilled } from '../../paywall/courier'
import * as Problem from '../../protocol/Problem'
import { toBuyer } from '../headers'
import { type InvalidParam, validateParams } from '../validate'
import { joke } from './jokes'
import * as Stocks from './stocks'

type Builtin = NonNullable<Merchant['builtin']>

/** What the program itself sells from. */
export type Stock = {
  /** Undefined: the file lists none. */
  stocks?: Stocks.Stocks | undefined
  /** Unix ms. */
  now: () => number
}

/** A request for something that the program serves itself: `search` as in the URL. */
export type Wish = { route: Route; search: string; tail: string; body: Uint8Array }

/** Whether this program can deliver what the merchant sells; if not, nothing is offered or charged. */
export function isServed(builtin: Builtin): boolean {
  return builtin === 'catjoke' || builtin === 'chain-stocks'
}

/** Under which its failures are counted; undefined when it cannot be served. */
export function originOf(builtin: Builtin, { stocks }: Pick<Stock, 'stocks'>): string | undefined {
  const isMissing = builtin === 'chain-stocks' && stocks === undefined
  return isMissing ? undefined : `builtin ${builtin}`
}

/** All inputs that the merchant cannot serve. */
export function invalidBuiltin(
  builtin: Builtin | undefined,
  { stocks }: Pick<Stock, 'stocks'>,
  { route, search, tail, body }: Wish,
): readonly InvalidParam[] {
  if (builtin !== 'chain-stocks' || stocks === undefined)
    return validateParams(route, search, tail, body)
  return Stocks.invalidParams(stocks, route, { search, tail, body })
}

/**
 * The answer of a merchant that the program serves itself, or why there is none. Throws ProblemError
 * `not-ready` for one that is not configured.
 */
export async function serveBuiltin(
  builtin: Builtin,
  { stocks, now }: Stock,
  wish: Wish,
): Promise<Fulfilled> {
  if (builtin === 'catjoke') return deliver(joke(new URLSearchParams(wish.search), now()))
  if (stocks === undefined) throw Problem.of('not-ready', 'This merchant is not configured.')
  const answer = await Stocks.answer(stocks, wish.route, wish)
  if (answer !== undefined) return deliver(answer)
  return {
    delivered: false,
    upstreamStatus: undefined,
    code: 'upstream-unreachable',
    detail: 'The network of the stocks gives no answer.',
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
