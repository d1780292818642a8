import * as Amount from '../protocol/Amount'
import * as Json from '../protocol/Json'
import * as Meter from './Meter'
import type { Counter } from './Preset'
import type { Quote } from './Quote'
import type { Counts, Usage } from './Usage'

/** The header in which an upstream names the charge, as x402 servers of the reference read it. */
export const overrideHeader = 'settlement-overrides'

/** The charge of an answer. */
export type Charge = {
  /** Never above the ceiling of its request. */
  amountAtomic: bigint
  /** The rule that decided. */
  by: 'usage' | 'header' | 'base' | 'missing' | 'failed'
  /** Charged units, by name. */
  units: Counts
  /** Why there is no usage, for the operator. */
  reason?: string
}

/** The charge of a request that was forwarded and got no answer in time. */
export function ofTimeout(
  { timeouts, baseAtomic }: Meter.Meter,
  { ceilingAtomic }: Pick<Quote, 'ceilingAtomic'>,
): Charge | undefined {
  if (timeouts === 'free' || baseAtomic === 0n) return undefined
  return { amountAtomic: Amount.least(baseAtomic, ceilingAtomic), by: 'base', units: {} }
}

/** The charge of an answer to a request that was quoted. */
export function of(
  meter: Meter.Meter,
  { ceilingAtomic, models }: Pick<Quote, 'ceilingAtomic' | 'models'>,
  usage: Usage,
): Charge {
  const atMost = (amount: bigint) => Amount.least(amount, ceilingAtomic)
  const missing = (reason: string): Charge => ({
    amountAtomic: meter.missing === 'max' ? ceilingAtomic : atMost(meter.baseAtomic),
    by: 'missing',
    units: {},
    reason,
  })
  if (usage.kind === 'failed') {
    // The upstream has worked. A request may be what makes an answer end with an error.
    const amountAtomic = usage.isUsed ? atMost(meter.baseAtomic) : 0n
    return { amountAtomic, by: 'failed', units: {}, reason: usage.reason }
  }
  if (usage.kind === 'named') {
    const amount = parseOverride(usage.header, ceilingAtomic)
    if (amount === undefined) return missing('the upstream names no amount')
    return { amountAtomic: atMost(amount), by: 'header', units: {} }
  }
  if (meter.plan.counters.length === 0)
    return { amountAtomic: atMost(meter.baseAtomic), by: 'base', units: {} }
  if (usage.kind === 'missing') return missing(usage.reason)
  const priced = ratesFor(meter, models, usage.model).map((rates) =>
    price(meter, rates, usage.counts),
  )
  const dearest = priced.reduce((a, b) => (b.amountAtomic > a.amountAtomic ? b : a))
  return { amountAtomic: atMost(dearest.amountAtomic), by: 'usage', units: dearest.units }
}

/**
 * Prices of the models that may have answered. Where the request allows several, the one that the
 * answer names; else those that it allows, and the one that the answer names.
 */
function ratesFor(
  meter: Meter.Meter,
  models: readonly string[],
  answeredBy = '',
): readonly Meter.Rates[] {
  const asked = models.includes(answeredBy) ? [answeredBy] : models
  const found = [...asked, answeredBy].map((model) => Meter.ratesLike(meter, model))
  // A name that the table lacks has the rates of the meter, even when the other one is known.
  const isKnown = asked.length > 0 && found.slice(0, -1).every((rates) => rates.length > 0)
  return isKnown ? found.flat() : [meter.rates, ...found.flat()]
}

function price(
  meter: Meter.Meter,
  rates: Meter.Rates,
  counts: Counts,
): Pick<Charge, 'amountAtomic' | 'units'> {
  const units = distribute(meter.plan.counters, rates, counts)
  let sum = { numerator: meter.baseAtomic, denominator: 1n }
  for (const [unit, count] of Object.entries(units)) {
    const rate = rates[unit]
    if (rate !== undefined) sum = Meter.add(sum, BigInt(count), rate)
  }
  return { amountAtomic: Meter.roundUp(sum), units }
}

/**
 * Assigns each token to the one unit that charges it. A part with a price is subtracted from the
 * number that contains it. A part without a price stays there, or is added to it where the service
 * counts it separately. Parts that overlap, as cached audio does, never take more than the whole.
 */
function distribute(counters: readonly Counter[], rates: Meter.Rates, counts: Counts): Counts {
  const units: Record<string, number> = {}
  const give = (unit: string, count: number): void => {
    let rest = count
    for (const part of counters) {
      if (part.partOf !== unit || !part.isIncluded || !isSplit(counters, rates, part.unit)) continue
      const own = Math.min(counts[part.unit] ?? 0, rest)
      rest -= own
      give(part.unit, own)
    }
    const payer = Meter.pricedUnit(counters, rates, unit)
    if (payer !== undefined && rest > 0) units[payer] = (units[payer] ?? 0) + rest
  }
  for (const { unit, isIncluded } of counters) {
    if (!isIncluded) give(unit, counts[unit] ?? 0)
  }
  return units
}

/** Whether a unit or something that it contains has a price of its own. */
function isSplit(counters: readonly Counter[], rates: Meter.Rates, unit: string): boolean {
  if (Object.hasOwn(rates, unit)) return true
  return counters.some(
    (part) => part.partOf === unit && part.isIncluded && isSplit(counters, rates, part.unit),
  )
}

/**
 * The atomic amount of `{"amount": ...}`: `"1000"` atomic, `"33.33%"` of the ceiling rounded down,
 * or `"$0.05"` rounded up. Undefined for anything else; it may be above the ceiling.
 */
export function parseOverride(header: string | null, ceilingAtomic: bigint): bigint | undefined {
  if (header === null) return undefined
  let amount: unknown
  try {
    const value: unknown = JSON.parse(header)
    amount = Json.isObject(value) ? Json.member(value, 'amount') : undefined
  } catch {
    return undefined
  }
  if (typeof amount !== 'string') return undefined
  if (/^\d{1,40}$/.test(amount)) return BigInt(amount)
  const percent = /^(\d{1,9})(?:\.(\d{1,2}))?%$/.exec(amount)
  if (percent) return (ceilingAtomic * scaled(percent, 2)) / 10_000n
  const dollars = /^\$(\d{1,30})(?:\.(\d{1,18}))?$/.exec(amount)
  if (dollars) return (scaled(dollars, 18) + 10n ** 12n - 1n) / 10n ** 12n
  return undefined
}

function scaled([, whole = '', fraction = '']: RegExpExecArray, decimals: number): bigint {
  return BigInt(whole + fraction.padEnd(decimals, '0'))
}
