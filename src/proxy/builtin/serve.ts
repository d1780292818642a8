import type { Merchant } from '../../config/Config'
import * as Problem from '../../protocol/Problem'
import { toBuyer } from '../headers'
import { joke } from './jokes'

type Builtin = NonNullable<Merchant['builtin']>

/** Whether this program can deliver what the merchant sells; if not, nothing is offered or charged. */
export function isServed(builtin: Builtin): boolean {
  return builtin === 'catjoke'
}

/**
 * The answer of a merchant that the program serves itself. `search` is the buyer's query, `now` unix
 * ms. Throws ProblemError `not-ready` for one that is not served.
 */
export function serveBuiltin(
  builtin: Builtin,
  search: string,
  now: number,
): { status: number; headers: Headers; body: Uint8Array } {
  if (!isServed(builtin)) throw Problem.of('not-ready', 'This merchant is not configured.')
  const answer = joke(new URLSearchParams(search), now)
  return {
    status: 200,
    headers: toBuyer(new Headers({ 'content-type': 'application/json' }), { passHeaders: [] }),
    body: new TextEncoder().encode(JSON.stringify(answer)),
  }
}
