import * as Amount from '../protocol/Amount'
import type { Meter, Rates } from './Meter'

/** The texts of documents about a route's price. */

type Priced = { priceAtomic: bigint; meter: Meter | undefined }

/** `$0.05`, or `up to $0.05`. At least two decimals, without further trailing zeros. */
export function short({ priceAtomic, meter }: Priced): string {
  return `${meter === undefined ? '' : 'up to '}$${Amount.toShort(priceAtomic, 6)}`
}

/** The `price` of `x-payment-info`. A request's own 402 has the price of that request. */
export function toJson({ priceAtomic, meter }: Priced): Record<string, unknown> {
  const amount = Amount.toDecimal(priceAtomic, 6)
  if (meter === undefined) return { mode: 'fixed', currency: 'USD', amount }
  const { baseAtomic, rates, models } = meter
  return {
    mode: 'dynamic',
    currency: 'USD',
    min: Amount.toDecimal(baseAtomic, 6),
    max: amount,
    description: sentence({ priceAtomic, meter }),
    ...(Object.keys(rates).length === 0 ? {} : { units: unitsOf(rates) }),
    ...(Object.keys(models).length === 0
      ? {}
      : { models: Object.fromEntries(Object.entries(models).map(([id, r]) => [id, unitsOf(r)])) }),
  }
}

/** A sentence about the cost of a request; '' for a fixed price. */
export function sentence({ priceAtomic, meter }: Priced): string {
  if (meter === undefined) return ''
  const { preset, baseAtomic, plan, limits } = meter
  const most = `Up to ${Amount.toDecimal(priceAtomic, 6)} USD`
  if (preset === 'header' || plan.counters.length === 0) return `${most} per request.`
  const base = `${Amount.toDecimal(baseAtomic, 6)} USD`
  const output = limits.maxOutput === undefined ? '' : ` of at most ${limits.maxOutput}`
  return `${most} per request: base ${base}, its input, and its output limit${output}.`
}

function unitsOf(rates: Rates): Record<string, { price: string; per: number }> {
  const units = Object.entries(rates).map(([unit, { priceScaled, per }]) => [
    unit,
    { price: Amount.toDecimal(priceScaled, 12).replace(/\.?0+$/, ''), per },
  ])
  return Object.fromEntries(units)
}
