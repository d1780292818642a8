import type { Merchant, Route, Service } from '../../config/Config'
import * as X402 from '../../protocol/X402'
import { chargeMs } from '../../settlement/upto/ceilings'
import { takes } from '../offer/ByChannel'

/** Which routes may be paid by what their answers use (x402 scheme `upto`). */

/** Time that a client has between its signature and its request, ms. */
const sendMs = 15_000

/** Longest `timeout_ms` of a merchant whose answers may be paid by use. */
export const timeoutMaxMs = X402.maxTimeoutSeconds * 1000 - chargeMs - sendMs

/** Whether a signature outlives the slowest answer and its settlement. */
export function mayBeByUse({ timeoutMs }: Pick<Merchant, 'timeoutMs'>): boolean {
  return timeoutMs <= timeoutMaxMs
}

/** Whether any request for a route may be paid by its use, on a chain that has the proxy. */
export function isOffered(
  { unsettledMaxAtomic }: Pick<Service, 'unsettledMaxAtomic'>,
  merchant: Pick<Merchant, 'timeoutMs'>,
  route: Pick<Route, 'meter' | 'priceAtomic' | 'schemes'>,
): boolean {
  const isListed = route.meter !== undefined && takes(route, 'upto')
  return isListed && mayBeByUse(merchant) && route.priceAtomic <= unsettledMaxAtomic
}

/** The sentence of documents about such a route. */
export const sentence =
  'By the x402 scheme upto an answer is charged by what it used, and the price is the ceiling.'
