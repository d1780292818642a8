import * as Time from './Time'

/** The answer to the payment of a pass. */

type Sold = {
  /** Path of the route that it opens, and its URL without a tail. */
  route: string
  url: string
  requests: number
  periodMs: number
}

const next =
  "Send the request without payment; sign the 402's sign-in-with-x extension and send it as SIGN-IN-WITH-X."

/** `until`: unix ms. */
export function toJson({ route, url, requests, periodMs }: Sold, until: number) {
  const period = Time.toIso(periodMs)
  return { pass: { route, url, requests, period, until: new Date(until).toISOString() }, next }
}

/** JSON Schema of it, with an example. */
export function schemaOf(sold: Sold): Readonly<Record<string, unknown>> {
  const string = { type: 'string' }
  const members = {
    ...{ route: string, url: string, requests: { type: 'integer' }, period: string },
    until: { ...string, format: 'date-time' },
  }
  return {
    type: 'object',
    properties: {
      pass: { type: 'object', properties: members, required: Object.keys(members) },
      next: string,
    },
    required: ['pass', 'next'],
    examples: [toJson(sold, Date.UTC(2026, 10, 29, 20))],
  }
}
