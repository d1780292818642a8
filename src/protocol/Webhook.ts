/**
 * Webhooks as Standard Webhooks 1.0 describe them.
 * https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
 */

/** Every type of event. Those of orders end in the state that the order has reached. */
export const eventTypes = [
  'payment.confirmed',
  'payment.refunded',
  'delivery.failed',
  'order.settling',
  'order.settled',
  'order.swapping',
  'order.delivered',
  'order.refunding',
  'order.refunded',
  'order.held',
  'order.failed',
  'network.paused',
  'network.resumed',
  'gas.low',
  'gas.refilled',
  'refund.waits',
  'refund.continues',
  'channel.waits',
  'channel.continues',
  'upstream.refuses',
  'upstream.accepts',
  'certificate.fails',
  'certificate.works',
  'budget.spent',
] as const

export type EventType = (typeof eventTypes)[number]

/** What an operator is told about by `[[alerts]]`. */
export const alertKinds = [
  'gas',
  'upstream',
  'undelivered',
  'refund',
  'channel',
  'network',
  'certificate',
  'budget',
] as const

export type AlertKind = (typeof alertKinds)[number]

/** What an endpoint may list: a type, all types of orders, or all types. */
export const patterns = [...eventTypes, 'order.*', '*'] as const

export type Pattern = (typeof patterns)[number]

/** The types that a list of patterns selects. */
export function typesOf(selected: readonly Pattern[]): EventType[] {
  return eventTypes.filter((type) =>
    selected.some(
      (pattern) =>
        pattern === '*' || pattern === type || (pattern === 'order.*' && type.startsWith('order.')),
    ),
  )
}

const prefix = 'whsec_'
/** Bounds of the standard, in bytes. */
const secretMinBytes = 24
const secretMaxBytes = 64

/** The key of a secret, which is `whsec_` and base64 of 24 to 64 bytes; undefined for another text. */
export function parseSecret(text: string): Uint8Array | undefined {
  if (!text.startsWith(prefix)) return undefined
  const base64 = text.slice(prefix.length)
  const key = Buffer.from(base64, 'base64')
  if (key.length < secretMinBytes || key.length > secretMaxBytes) return undefined
  return key.toString('base64') === base64 ? new Uint8Array(key) : undefined
}

type Signed = {
  /** Id of the message, the same for each attempt. */
  id: string
  /** Time of the attempt, unix seconds. */
  timestamp: number
  body: string
}

/** The headers of a message, with one signature for each key. */
export function headersOf(message: Signed, keys: readonly Uint8Array[]): Record<string, string> {
  return {
    'webhook-id': message.id,
    'webhook-timestamp': String(message.timestamp),
    'webhook-signature': keys.map((key) => signatureOf(message, key)).join(' '),
  }
}

function signatureOf({ id, timestamp, body }: Signed, key: Uint8Array): string {
  const hmac = new Bun.CryptoHasher('sha256', key).update(`${id}.${timestamp}.${body}`)
  return `v1,${hmac.digest('base64')}`
}
