import type { Meter, Rate, Rates } from '../meter/Meter'
import { format, type Pointer } from '../meter/Pointer'
import * as Preset from '../meter/Preset'
import type { Route } from './Config'
import * as keys from './keys'
import { readKeys } from './kinds'
import { child, children, record, reportKey, type Table } from './reader'
import * as V from './values'

/** Reads `[merchants.routes.meter]`. */
export function readMeter(
  table: Table | undefined,
  route: Pick<Route, 'priceAtomic' | 'methods'>,
): Meter | undefined {
  if (table === undefined) return undefined
  const preset = keys.meter.preset.read(table, 'preset')
  const plan = readPlan(table, preset)
  const rates = readUnits(table, plan)
  const values = readKeys(table, keys.meter, { models: () => readModels(table, plan, rates) })
  const meter: Meter = { ...values, plan, priceAtomic: route.priceAtomic, rates }
  checkBase(table, meter)
  checkCounted(table, meter)
  if (plan.request !== undefined && route.methods.some((each) => !keys.withBody.includes(each))) {
    const message = `preset "${preset}" reads bodies: methods must be POST, PUT or PATCH`
    reportKey(table, 'preset', message)
  }
  return meter
}

/** The preset, or the plan that the operator writes. */
function readPlan(table: Table, preset: Preset.Name): Preset.Preset {
  const answer = record(table, 'answer', V.pointer)
  const events = record(table, 'events', V.pointer)
  const partOf = record(table, 'part_of', V.filled)
  const request = child(table, 'request')
  const own = request === undefined ? undefined : readRequest(request)
  const isOwn = Object.keys(answer).length > 0
  for (const key of ['answer', 'events', 'part_of', 'request']) {
    if (table.raw[key] === undefined) continue
    if (preset !== 'none')
      reportKey(table, key, `${key} needs preset = "none"; other presets have their own`)
    else if (!isOwn && key !== 'answer') reportKey(table, key, `${key} needs pointers in answer`)
  }
  if (preset !== 'none' || !isOwn) return Preset.presets[preset]
  const units = Object.keys(answer)
  for (const name of Object.keys(events)) {
    if (!units.includes(name)) reportKey(table, ['events', name], `${name} is no unit of answer`)
  }
  for (const [name, whole] of Object.entries(partOf)) {
    const isFlat = units.includes(name) && units.includes(whole) && !Object.hasOwn(partOf, whole)
    const message = `${name} and ${whole} must be units of answer, ${whole} part of no other`
    if (!isFlat) reportKey(table, ['part_of', name], message)
  }
  const counters = units.map((unit): Preset.Counter => {
    const inAnswer = [answer[unit] ?? []]
    const inEvent = events[unit] === undefined ? inAnswer : [events[unit]]
    const whole = partOf[unit]
    return {
      unit,
      answer: inAnswer,
      event: inEvent,
      isRequired: whole === undefined,
      ...(whole !== undefined && { partOf: whole, isIncluded: true }),
    }
  })
  return { ...Preset.empty, counters, request: own ?? Preset.empty.request }
}

function readRequest(table: Table): Preset.RequestPlan {
  const one = (found: Pointer | undefined) => (found === undefined ? [] : [found])
  const { model, choices, stream, ...rest } = readKeys(table, keys.meterRequest, {})
  const names = rest.maxOutput
  const plan: Preset.RequestPlan = {
    ...Preset.noRequest,
    model: one(model),
    choices,
    stream: one(stream),
    output: [{ path: /^/, names, onStream: rest.onStream.map((at) => ({ at, value: true })) }],
  }
  const parents = new Set(names.map((each) => format(each.slice(0, -1))))
  if (parents.size > 1) reportKey(table, 'max_output', 'max_output must name members of one object')
  return plan
}

const perDefault = 1_000_000

function readUnits(table: Table, plan: Preset.Preset): Rates {
  const rates: Record<string, Rate> = {}
  for (const inner of children(table, 'units')) {
    const { name, price, per } = readKeys(inner, keys.unit, {})
    const fault = unitFault(plan, name)
    if (Object.hasOwn(rates, name))
      reportKey(inner, 'name', `${name} is there twice: remove one of them`)
    else if (fault !== undefined && name !== '') reportKey(inner, 'name', fault)
    rates[name] = { priceScaled: price, per }
  }
  return rates
}

function unitFault({ counters }: Preset.Preset, name: string): string | undefined {
  const known = counters.map(({ unit }) => unit)
  if (known.includes(name)) return undefined
  const names = known.length === 0 ? 'this preset has none' : `known here: ${known.join(', ')}`
  return `${name} is no unit of the preset; ${names}`
}

/** Prices by model; a unit that a model does not name keeps its price of `units`. */
function readModels(table: Table, plan: Preset.Preset, rates: Rates): Meter['models'] {
  const inner = child(table, 'models')
  if (inner === undefined) return {}
  const names = Object.keys(inner.raw)
  return Object.fromEntries(
    names.map((model) => {
      const prices = record(inner, model, V.rate)
      const own: Record<string, Rate> = {}
      for (const [unit, priceScaled] of Object.entries(prices)) {
        const fault = unitFault(plan, unit)
        if (fault !== undefined) reportKey(inner, [model, unit], fault)
        own[unit] = { priceScaled, per: rates[unit]?.per ?? perDefault }
      }
      return [model, { ...rates, ...own }]
    }),
  )
}

function checkBase(table: Table, { baseAtomic, priceAtomic, preset, plan }: Meter): void {
  if (baseAtomic > priceAtomic)
    reportKey(table, 'base', 'base is above price, which is the most that a request can cost')
  if (preset === 'none' && plan.counters.length === 0 && baseAtomic === 0n)
    reportKey(table, 'base', 'base is missing; preset "none" charges it, or the units of answer')
}

/** Reports a counted unit without a price, and a limit that limits nothing. */
function checkCounted(table: Table, meter: Meter): void {
  const { preset, plan, rates, models, limits } = meter
  const names = Object.keys(models)
  if (plan.counters.length === 0) {
    for (const key of ['units', 'models', 'limits']) {
      if (table.raw[key] === undefined) continue
      reportKey(table, key, `${key} has no meaning with preset "${preset}": remove it`)
    }
    return
  }
  if (limits.modelsOnly && names.length === 0) {
    const message = 'models_only needs models: write [merchants.routes.meter.models."ID"]'
    reportKey(table, ['limits', 'models_only'], message)
  }
  const { request } = plan
  const hasModel = request !== undefined && (request.model.length > 0 || request.path !== undefined)
  if (names.length > 0 && !hasModel)
    reportKey(table, 'models', 'models needs model in request, a JSON pointer')
  if (limits.maxOutput !== undefined && request?.output.every((each) => each.names.length === 0)) {
    const message = 'max_output needs max_output in request, JSON pointers'
    reportKey(table, ['limits', 'max_output'], message)
  }
  if (limits.maxChoices !== undefined && request?.choices.length === 0 && preset === 'none') {
    const message = 'max_choices needs choices in request, JSON pointers'
    reportKey(table, ['limits', 'max_choices'], message)
  }
  checkPrices(table, plan, { rates, models, isDefault: !limits.modelsOnly })
}

/** An unpriced unit would be given away, so it is written as "0" or it is a fault. */
function checkPrices(
  table: Table,
  { counters }: Preset.Preset,
  { rates, models, isDefault }: Pick<Meter, 'rates' | 'models'> & { isDefault: boolean },
): void {
  const needed = counters.filter(
    ({ unit, isRequired }) => isRequired || unit === 'input' || unit === 'output',
  )
  const missing = (of: Rates) =>
    needed.map(({ unit }) => unit).filter((unit) => !Object.hasOwn(of, unit))
  for (const [model, own] of Object.entries(models)) {
    const names = missing(own)
    const message = `${model} has no price for ${names.join(', ')}; write "0" for what is free`
    if (names.length > 0) reportKey(table, ['models', model], message)
  }
  const names = isDefault ? missing(rates) : []
  if (names.length === 0) return
  const message =
    `units has no price for ${names.join(', ')}; write units = [{ name = "${names[0]}", ` +
    'price = "0.25" }], or sell only models of the table with models_only = true of limits'
  reportKey(table, 'units', message)
}
