import * as Charge from '../../meter/Charge'
import * as Members from '../../meter/Members'
import { format } from '../../meter/Pointer'
import * as Quote from '../../meter/Quote'
import type { Reader } from '../../meter/Reader'
import * as Text from '../../meter/Text'
import * as Json from '../../protocol/Json'
import { type Match, upstreamUrl } from '../Route'

/** The quotes by body: a sale asks for its quote, and the forward asks again. */
const quoted = new WeakMap<Uint8Array, { match: Match; quote: Quote.Quote }>()

/** The most that a request with this body costs; undefined for a route with a fixed price. */
export function quoteFor(match: Match, body: Uint8Array): Quote.Quote | undefined {
  const { route, tail, target } = match
  if (route.meter === undefined || target === undefined) return undefined
  const known = quoted.get(body)
  if (known?.match.route === route && known.match.tail === tail) return known.quote
  const path = upstreamUrl(target, tail, '').pathname
  const quote = Quote.of(route.meter, { path, body: rewriteBody(body, route.rewrite) })
  // Requests without a body share one.
  if (body.byteLength > 0) quoted.set(body, { match, quote })
  return quote
}

/** The body as it is forwarded. */
export function forwardedBody(match: Match, body: Uint8Array): Uint8Array {
  return quoteFor(match, body)?.body ?? rewriteBody(body, match.route.rewrite)
}

/**
 * The cost of an answer. One that was not read to its end costs what `missing` says, because
 * services report the usage at the end; what it used until then, where that is more. Otherwise a
 * buyer would choose what it pays by choosing when it is cut. Undefined for a route with a fixed
 * price.
 */
export function chargeOf(
  match: Match,
  body: Uint8Array,
  reader: Pick<Reader, 'end' | 'soFar'>,
): ((isWhole: boolean) => Charge.Charge) | undefined {
  const { meter } = match.route
  const quote = quoteFor(match, body)
  if (meter === undefined || quote === undefined) return undefined
  return (isWhole) => {
    const usage = reader.end()
    if (isWhole || usage.kind === 'failed' || usage.kind === 'named')
      return Charge.of(meter, quote, usage)
    const missing = Charge.of(meter, quote, unread)
    const used = Charge.of(meter, quote, reader.soFar(Text.tokensOf(body, meter.plan.texts)))
    const { reason } = unread
    return used.amountAtomic > missing.amountAtomic ? { ...used, reason } : missing
  }
}

/** The cost of a request that was not answered in time; undefined where it costs nothing. */
export function costOfTimeout(match: Match, body: Uint8Array): Charge.Charge | undefined {
  const { meter } = match.route
  const quote = quoteFor(match, body)
  return meter && quote && Charge.ofTimeout(meter, quote)
}

const unread = { kind: 'missing', reason: 'the answer was not read to its end' } as const

type Mapping = Readonly<Record<string, Readonly<Record<string, string>>>>

/**
 * Replaces values of top-level members of a JSON object, such as a model's alias by its full id. It
 * edits the text, so that all other bytes stay as the buyer wrote them (big numbers, order,
 * spacing). A body that is not a JSON object, or that a route which reads its body refuses, is
 * returned unchanged.
 */
export function rewriteBody(body: Uint8Array, mapping: Mapping): Uint8Array {
  const names = Object.keys(mapping)
  if (names.length === 0 || body.byteLength === 0) return body
  const read = Json.readBody(body)
  if ('fault' in read || !Json.isObject(read.value)) return body
  const { text, value } = read
  const edits: Members.Edit[] = []
  const wanted = Members.wantedOf(names.map((name) => [name]))
  const members = new Map(Members.find(text, wanted).map((member) => [member.pointer, member]))
  for (const name of names) {
    const given = Json.member(value, name)
    const member = members.get(format([name]))
    const values = mapping[name] ?? {}
    if (member === undefined || typeof given !== 'string' || !Object.hasOwn(values, given)) continue
    edits.push({ start: member.start, end: member.end, text: JSON.stringify(values[given]) })
  }
  return edits.length === 0 ? body : new TextEncoder().encode(Members.apply(text, edits))
}
