import type { Fault } from '../protocol/Problem'
import * as X402Payload from '../protocol/X402Payload'
import type { Presented } from './extract'
import { type Item, offersFor } from './offer/Item'

type X402 = Extract<Presented, { kind: 'x402' }>
type Payload = X402Payload.Parsed | Fault
type Matches = readonly X402Payload.Match[] | Fault

const payloads = new WeakMap<X402, Payload>()
const matched = new WeakMap<X402Payload.Parsed, { item: Item; matches: Matches }>()

/** The x402 payload of a request, parsed once: before its body is read, and when it is sold. */
export function payloadOf(presented: X402): Payload {
  let payload = payloads.get(presented)
  if (payload === undefined) {
    payload = X402Payload.parsePayload(presented.value)
    payloads.set(presented, payload)
  }
  return payload
}

/** The offers of an item that a payload may pay. Compared once, like the payload is parsed once. */
export function matchesOf(payload: X402Payload.Parsed, item: Item): Matches {
  const known = matched.get(payload)
  if (known?.item === item) return known.matches
  const offers = offersFor(item, payload.signed.amountAtomic)
  const matches = X402Payload.matchOffer(payload, offers, item.isByUse === true)
  matched.set(payload, { item, matches })
  return matches
}
