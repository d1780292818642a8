import { decodeJson } from '../../protocol/Header'
import * as Json from '../../protocol/Json'
import { amountOf, type Terms } from './Terms'

/** The charge of an answer that is paid by its use, as the server reports it. */

export type Charge = {
  amountAtomic: bigint
  /** Counted units, by name. */
  units: Readonly<Record<string, number>>
  transaction: string | undefined
}

/** The charge of a `PAYMENT-RESPONSE`; undefined when it names none. */
export function ofResponse(encoded: string): Charge | undefined {
  return Json.readable(() => {
    const json = decodeJson(encoded, 'either')
    const extensions = Json.optional(json, 'extensions', 'object') ?? {}
    const usage = Json.optional(extensions, 'usage', 'object') ?? {}
    return of(json, Json.optional(usage, 'info', 'object') ?? {})
  })
}

/** The charge of a payment as `GET /api/payments/{id}` answers it; undefined while it has none. */
export function ofPayment(payment: Json.JsonObject): Charge | undefined {
  return Json.readable(() => of(payment, payment))
}

function of(json: Json.JsonObject, usage: Json.JsonObject): Charge {
  const units = Object.entries(Json.optional(usage, 'units', 'object') ?? {}).flatMap(
    ([name, value]) => (typeof value === 'number' ? [[name, value] as const] : []),
  )
  return {
    amountAtomic: Json.read(json, 'amount', 'uint'),
    units: Object.fromEntries(units),
    transaction: Json.optional(json, 'transaction', 'text'),
  }
}

/** `0.000918 USDC: 230 input, 180 output`. */
export function describe({ amountAtomic, units }: Charge, terms: Terms): string {
  const counts = Object.entries(units).map(([name, value]) => `${value} ${name}`)
  const amount = amountOf(terms, amountAtomic)
  return counts.length === 0 ? amount : `${amount}: ${counts.join(', ')}`
}
