import type { Counter, Name, Preset } from './Preset'

/** How the usage of a route is counted, and its prices. */
export type Meter = {
  preset: Name
  plan: Preset
  /** The price of the route: the upper limit of every ceiling. */
  priceAtomic: bigint
  /** Charged for every answer. */
  baseAtomic: bigint
  /** Rates of a model that the table lacks, when the answer names none of the table either. */
  rates: Rates
  /** Rates by the model's id as the upstream gets it. */
  models: Readonly<Record<string, Rates>>
  /** The charge of an answer without usage: the ceiling or `baseAtomic`. */
  missing: 'max' | 'base'
  /** Whether a request costs `baseAtomic` when its upstream does not answer in time. */
  timeouts: 'free' | 'base'
  limits: Limits
}

/** Rates by unit. */
export type Rates = Readonly<Record<string, Rate>>

/** A price for a number of units. */
export type Rate = {
  /** USD times 10^12, because a token may cost less than the smallest amount that can be paid. */
  priceScaled: bigint
  per: number
}

export type Limits = {
  /** Whether only models of the table are sold. */
  modelsOnly: boolean
  maxOutput: number | undefined
  maxChoices: number | undefined
}

/** Decimals of a rate beyond those of an amount. */
const rateScale = 10n ** 6n

/** The rates that a model has in the table by exactly this name. */
export function ratesOf({ models }: Pick<Meter, 'models'>, model: string): Rates | undefined {
  return Object.hasOwn(models, model) ? models[model] : undefined
}

/**
 * The rates that a model may have by the table: those of its name, else of all names that differ in
 * case, vendor and version only. Services take several names for one model.
 */
export function ratesLike({ models }: Pick<Meter, 'models'>, model: string): readonly Rates[] {
  const own = ratesOf({ models }, model)
  if (own !== undefined) return [own]
  const name = plain(model)
  return Object.entries(models).flatMap(([id, rates]) => (plain(id) === name ? [rates] : []))
}

/** `gpt-5` for `openai/GPT-5-2025-08-07 `. */
function plain(model: string): string {
  // No service has longer names, and the pattern takes the square of the length.
  if (model.length > 256) return model
  const own = model.slice(model.lastIndexOf('/') + 1)
  return own.trim().toLowerCase().replace(version, '')
}

/** A date, a number of at least three digits, or a word for the state of a model. */
const version =
  /[-@:_](?:v\d+|\d{3,}|latest|preview|stable|exp|beta)(?:[-@:._](?:v?\d+|latest|preview|stable|exp|beta))*$/

/** The counter's own unit, or the nearest unit that contains it and has a price. */
export function pricedUnit(
  counters: readonly Counter[],
  rates: Rates,
  unit: string,
): string | undefined {
  return around(counters, unit).find((each) => Object.hasOwn(rates, each))
}

/** The outermost unit that contains this one. */
export function rootOf(counters: readonly Counter[], unit: string): string {
  return around(counters, unit).at(-1) ?? unit
}

/** A unit and those around it. A cycle of an operator's own units ends after each was visited. */
function around(counters: readonly Counter[], unit: string): readonly string[] {
  const found = [unit]
  for (;;) {
    const parent = counters.find((counter) => counter.unit === found.at(-1))?.partOf
    if (parent === undefined || found.includes(parent)) return found
    found.push(parent)
  }
}

/** An exact sum of atomic amounts, which are fractions until it is rounded once. */
export type Sum = { numerator: bigint; denominator: bigint }

export function add(sum: Sum, count: bigint, { priceScaled, per }: Rate): Sum {
  const own = BigInt(per) * rateScale
  return {
    numerator: sum.numerator * own + count * priceScaled * sum.denominator,
    denominator: sum.denominator * own,
  }
}

export function roundUp({ numerator, denominator }: Sum): bigint {
  return (numerator + denominator - 1n) / denominator
}

/** Whether one rate is dearer than another. */
export function isDearer(a: Rate, b: Rate): boolean {
  return a.priceScaled * BigInt(b.per) > b.priceScaled * BigInt(a.per)
}
