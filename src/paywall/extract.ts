import type { Fault } from '../protocol/Problem'

/** The only credential of a request, still encoded; `none` requests a challenge. */
export type Presented =
  | { kind: 'none' }
  | { kind: 'mpp'; value: string }
  | { kind: 'x402'; value: string }
  | { kind: 'redeem'; token: string }
  | { kind: 'fault'; fault: Fault }

/** The request has no credential. */
export const none: Presented = { kind: 'none' }
const scheme = /^payment(?: |$)/i
const redeemToken = /^[A-Za-z0-9_-]{43}$/

/**
 * Finds the credential in the headers of a request. A server joins repeated headers with commas,
 * and no credential contains one, so a comma means two credentials. `Authorization` of another
 * scheme counts as none.
 */
export function extract(headers: Headers): Presented {
  const authorization = headers.get('authorization')
  const signature = headers.get('payment-signature')
  const legacy = headers.get('x-payment')
  const redeem = headers.get('payment-redeem')
  if (authorization === null && signature === null && legacy === null && redeem === null)
    return none

  const found: Presented[] = []
  if (authorization !== null && scheme.test(authorization))
    found.push({ kind: 'mpp', value: authorization })
  if (signature !== null) found.push({ kind: 'x402', value: signature })
  // Some clients send one value under both the v2 and the v1 name.
  if (legacy !== null && legacy !== signature) found.push({ kind: 'x402', value: legacy })
  if (redeem !== null) found.push({ kind: 'redeem', token: redeem })

  // Before "none": a buyer with a payment behind another scheme must not get a second challenge.
  if (hidesPayment(authorization) || found.length > 1 || found.some(hasComma))
    return fault('multiple-credentials', 'Send exactly one payment credential.')
  const [first] = found
  if (first === undefined) return none
  if (first.kind === 'redeem' && !redeemToken.test(first.token))
    return fault('invalid-redeem-token', 'Payment-Redeem is not a token of this service.')
  return first
}

function hasComma(presented: Presented): boolean {
  if (presented.kind === 'redeem') return presented.token.includes(',')
  return presented.kind !== 'none' && presented.kind !== 'fault' && presented.value.includes(',')
}

/** `Authorization: Bearer x` and `Authorization: Payment y` arrive joined as one value. */
function hidesPayment(authorization: string | null): boolean {
  return authorization !== null && /,\s*payment /i.test(authorization)
}

function fault(code: string, detail: string): Presented {
  return { kind: 'fault', fault: { code, detail } }
}
