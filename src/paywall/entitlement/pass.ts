import type { Payment } from '../../../db/Payment'
import * as Pass from '../../protocol/Pass'
import type { Made } from '../answer/delivery'
import type { Item } from '../offer/Item'

/** The answer to the payment of a pass. `now`: unix ms. */
export function passOf(
  { resource }: Item,
  { route, requests, periodMs }: NonNullable<Item['opens']>,
  now: number,
  { confirmedAt = now }: Pick<Payment, 'confirmedAt'> = { confirmedAt: now },
): Made {
  const url = resource.url.slice(0, -'/pass'.length)
  const answer = Pass.toJson({ route, url, requests, periodMs }, confirmedAt + periodMs)
  return {
    delivered: true,
    status: 200,
    headers: new Headers({
      'content-type': 'application/json',
      'cache-control': 'private, no-store',
      'x-content-type-options': 'nosniff',
    }),
    body: new TextEncoder().encode(JSON.stringify(answer)),
  }
}
