import type { Fault } from '../protocol/Problem'
import * as X402Payload from '../protocol/X402Payload'
import type { Presented } from './extract'

type Payload = X402Payload.Parsed | Fault

const known = new WeakMap<Presented, Payload>()

/** The x402 payload of a request, parsed once: before its body is read, and when it is sold. */
export function payloadOf(presented: Extract<Presented, { kind: 'x402' }>): Payload {
  let payload = known.get(presented)
  if (payload === undefined) {
    payload = X402Payload.parsePayload(presented.value)
    known.set(presented, payload)
  }
  return payload
}
