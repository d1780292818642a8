import type { Payment } from '../../../db/Payment'
import * as Time from '../../protocol/Time'
import type { Made } from '../answer/delivery'
import type { Item } from '../offer/Item'

const next =
  "Send the request without payment; sign the 402's sign-in-with-x extension and send it as SIGN-IN-WITH-X."

/** The answer to the payment of a pass. `now`: unix ms. */
export function passOf(
  { resource }: Item,
  { route, requests, periodMs }: NonNullable<Item['opens']>,
  now: number,
  { confirmedAt = now }: Payment,
): Made {
  const pass = {
    route,
    url: resource.url.slice(0, -'/pass'.length),
    requests,
    period: Time.toIso(periodMs),
    until: new Date(confirmedAt + periodMs).toISOString(),
  }
  return {
    delivered: true,
    status: 200,
    headers: new Headers({
      'content-type': 'application/json',
      'cache-control': 'private, no-store',
      'x-content-type-options': 'nosniff',
    }),
    body: new TextEncoder().encode(JSON.stringify({ pass, next })),
  }
}
