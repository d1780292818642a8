import * as Amount from '../protocol/Amount'
import * as Meter from './Meter'

/** The most that a request may use, as far as the request limits it. */
export type Most = {
  /** Models that may answer. Any of the table may do so for an unknown name, and without one. */
  models: readonly string[]
  /** Tokens of the input; undefined when the length of the body does not limit them. */
  inputTokens: number | undefined
  /** Output tokens of one answer; undefined when nothing limits them. */
  outputTokens: number | undefined
  choices: number
}

/**
 * The most that a request can cost, never above the price of the route: base, input and output,
 * each at the dearest price that its tokens may have. Rounded up by at most a 32nd, so that
 * requests of nearly the same length share their offers. Signing new offers takes longer than the
 * rest of a 402.
 */
export function of(meter: Meter.Meter, most: Most): bigint {
  const { priceAtomic, baseAtomic, plan } = meter
  if (meter.preset === 'header') return priceAtomic
  if (plan.counters.length === 0) return Amount.least(baseAtomic, priceAtomic)
  const known = most.models.map((model) => Meter.ratesOf(meter, model))
  const isKnown = known.length > 0 && !known.includes(undefined)
  let highest = 0n
  for (const rates of isKnown ? known : [meter.rates, ...Object.values(meter.models)]) {
    if (rates === undefined) continue
    const ceiling = ceilingAt(meter, rates, most)
    if (ceiling === undefined) return priceAtomic
    if (ceiling > highest) highest = ceiling
  }
  return Amount.least(stepUp(highest), priceAtomic)
}

/** Undefined when something that has a price is not limited. */
function ceilingAt(meter: Meter.Meter, rates: Meter.Rates, most: Most): bigint | undefined {
  const { counters } = meter.plan
  const { inputTokens, outputTokens, choices } = most
  const dearest = new Map<string, Meter.Rate>()
  for (const [unit, rate] of Object.entries(rates)) {
    const root = Meter.rootOf(counters, unit)
    const known = dearest.get(root)
    if (known === undefined || Meter.isDearer(rate, known)) dearest.set(root, rate)
  }
  let sum = { numerator: meter.baseAtomic, denominator: 1n }
  for (const [root, rate] of dearest) {
    const count =
      root === 'input'
        ? inputTokens
        : root === 'output'
          ? product(outputTokens, choices)
          : undefined
    if (count === undefined) {
      if (rate.priceScaled > 0n) return undefined
      continue
    }
    sum = Meter.add(sum, BigInt(count), rate)
  }
  return Meter.roundUp(sum)
}

function product(tokens: number | undefined, choices: number): number | undefined {
  const count = tokens === undefined ? undefined : tokens * choices
  return Number.isSafeInteger(count) ? count : undefined
}

/** Binary digits of a ceiling that are kept. */
const digits = 6n

function stepUp(amount: bigint): bigint {
  const length = BigInt(amount.toString(2).length)
  if (length <= digits) return amount > 0n ? amount : 1n
  const shift = length - digits
  return ((amount + (1n << shift) - 1n) >> shift) << shift
}
