import * as Amount from '../protocol/Amount'
import * as Json from '../protocol/Json'
import * as Members from './Members'
import * as Meter from './Meter'
import { format, type Pointer } from './Pointer'
import type { OutputNames, RequestPlan } from './Preset'

/** The ceiling of a request, and its body as it is forwarded. */
export type Quote = {
  ceilingAtomic: bigint
  /** Models that may answer: the requested one, then its fallbacks. */
  models: readonly string[]
  /**
   * The body with its limits and with the members that make the upstream report usage. All other
   * bytes stay the same.
   */
  body: Uint8Array
  /**
   * Why it is not sold. The ceiling is then the price of the route. A payment from before a change
   * of the limits may still be delivered.
   */
  faults: readonly Fault[]
}

/** `reason` completes "name ...". */
export type Fault = { name: string; reason: string }

export type Asked = {
  /** The upstream's path, encoded as it is forwarded. */
  path: string
  /** The body as it is forwarded, without the changes of the quote. */
  body: Uint8Array
}

const wantedByPlan = new WeakMap<RequestPlan, Members.Wanted>()

/** Reads a request before it is paid for. Never throws for the content of a request. */
export function of(meter: Meter.Meter, { path, body }: Asked): Quote {
  const { plan, priceAtomic } = meter
  const request = plan.request
  if (request === undefined) {
    const most = { models: [], inputTokens: undefined, outputTokens: undefined, choices: 1 }
    return { ceilingAtomic: ceilingOf(meter, most), models: [], body, faults: [] }
  }
  const refused = (...faults: readonly Fault[]): Quote => ({
    ceilingAtomic: priceAtomic,
    models: [],
    body,
    faults,
  })
  const text = read(body)
  if (typeof text !== 'string') return refused(text)
  const reading = readMembers(request, text)
  if (reading.faults.length > 0) return refused(...reading.faults)
  const models = modelsOf(meter, request, reading, path)
  const output = outputOf(meter, namesFor(request, path), reading)
  const choices = choicesOf(meter, request, reading)
  const stream = streamOf(request, reading)
  const sets = stream.isStream ? namesFor(request, path).onStream : []
  const edits = [...output.edits, ...place(reading, [...output.sets, ...sets])]
  const edited = edits.length === 0 ? body : new TextEncoder().encode(Members.apply(text, edits))
  const faults = [...models.faults, ...output.faults, ...choices.faults, ...stream.faults]
  if (faults.length > 0) return { ...refused(...faults), body: edited }
  const isText = Members.isText(text, request)
  const ceilingAtomic = ceilingOf(meter, {
    models: models.names,
    // Every token stands for at least one byte, because the vocabularies consist of bytes or fall
    // back to them. The JSON around a text is longer than the tokens that separate messages.
    inputTokens: isText ? body.byteLength + request.overheadTokens : undefined,
    outputTokens: output.most,
    choices: choices.most,
  })
  return { ceilingAtomic, models: models.names, body: edited, faults: [] }
}

function read(body: Uint8Array): string | Fault {
  if (body.byteLength === 0) return { name: 'body', reason: 'is required, a JSON object' }
  const read = Json.readBody(body)
  if ('text' in read && Json.isObject(read.value)) return read.text
  if ('text' in read || read.fault.reason === Json.notJson)
    return { name: 'body', reason: 'must be a JSON object' }
  return { ...read.fault, name: read.fault.name || 'body' }
}

type Reading = ReturnType<typeof readMembers>

/** The members of a request that the meter knows. */
function readMembers(request: RequestPlan, text: string) {
  const wanted = wantedOf(request)
  const found = new Map<string, Members.Member>()
  const faults: Fault[] = []
  for (const member of Members.find(text, wanted)) {
    const name = nameOf(member.pointer)
    const before = found.get(member.folded)
    const right = wanted.members.get(member.folded) ?? []
    const isRead = wanted.parents.has(member.folded)
    if (isRead && !/^(?:\{|null)/.test(text.slice(member.start, member.start + 4)))
      faults.push({ name, reason: 'must be an object or null' })
    // Parsers differ on which one of two members counts, and some ignore case.
    if (before !== undefined && before.pointer === member.pointer) {
      faults.push({ name, reason: 'is there twice' })
    } else if (!right.includes(member.pointer)) {
      faults.push({ name, reason: `must be written ${right.map(nameOf).join(' or ')}` })
    } else if (before !== undefined) {
      faults.push({ name, reason: `is there twice, as ${nameOf(before.pointer)}, too` })
    }
    found.set(member.folded, member)
  }
  const memberAt = (at: Pointer) => found.get(Json.fold(format(at)))
  return {
    text,
    faults,
    /** The member in any spelling. */
    memberAt,
    /** Undefined when the member is missing. */
    valueOf(at: Pointer): unknown {
      const member = memberAt(at)
      if (member === undefined || member.pointer !== format(at)) return undefined
      return JSON.parse(text.slice(member.start, member.end))
    },
  }
}

function wantedOf(request: RequestPlan): Members.Wanted {
  const known = wantedByPlan.get(request)
  if (known !== undefined) return known
  const { model, fallbacks, output, choices, stream } = request
  const outputs = output.flatMap(({ names, onStream }) => [...names, ...onStream.map((s) => s.at)])
  const made = Members.wantedOf([...model, ...fallbacks, ...outputs, ...choices, ...stream])
  wantedByPlan.set(request, made)
  return made
}

/** `generationConfig/maxOutputTokens`. */
function nameOf(pointer: string): string {
  return pointer.slice(1)
}

function namesFor(request: RequestPlan, path: string): OutputNames {
  const found = request.output.find((each) => each.path.test(path))
  return found ?? { path: /^/, names: [], onStream: [] }
}

function modelsOf(
  meter: Meter.Meter,
  request: RequestPlan,
  reading: Reading,
  path: string,
): { names: readonly string[]; faults: readonly Fault[] } {
  const given = new Set<string>()
  const faults: Fault[] = []
  const take = (name: string, value: unknown) => {
    if (typeof value !== 'string') faults.push({ name, reason: 'must be a string' })
    else given.add(value)
  }
  if (request.path !== undefined) {
    const encoded = request.path.exec(path)?.[1]
    const model = encoded === undefined ? undefined : decode(encoded)
    if (model === undefined) faults.push({ name: 'path', reason: 'must name a model and a method' })
    else take('path', model)
  }
  const modelName = nameOf(format(request.model[0] ?? ['path']))
  for (const at of request.model) {
    const value = reading.valueOf(at)
    if (value !== undefined && value !== null) take(nameOf(format(at)), value)
  }
  for (const at of request.fallbacks) {
    const value = reading.valueOf(at)
    if (value === undefined || value === null) continue
    const name = nameOf(format(at))
    if (!Array.isArray(value)) faults.push({ name, reason: 'must be an array' })
    else if (value.length > fallbacksMax)
      faults.push({ name, reason: `must have at most ${fallbacksMax} entries` })
    else for (const each of value) take(name, each)
  }
  const names = [...given]
  if (!meter.limits.modelsOnly || faults.length > 0) return { names, faults }
  const sold = Object.keys(meter.models)
  const isSold = (name: string) => Object.hasOwn(meter.models, name)
  if (names.length > 0 && names.every(isSold)) return { names, faults }
  const reason = `must be a model that is sold here: ${sold.slice(0, namedMax).join(', ')}`
  return { names, faults: [{ name: modelName, reason }] }
}

/** The price of each model is looked up before the request is paid for. */
const fallbacksMax = 100
/** Most models that a fault names. */
const namedMax = 20

function decode(encoded: string): string | undefined {
  try {
    return decodeURIComponent(encoded)
  } catch {
    return undefined
  }
}

type Set = { at: Pointer; value: boolean | number | string }
type Output = {
  most: number | undefined
  edits: readonly Members.Edit[]
  sets: readonly Set[]
  faults: readonly Fault[]
}

/**
 * The output limit under the name that the upstream obeys. The upstream would ignore a limit under
 * another name, and the answer would be longer than the buyer paid for.
 */
function outputOf(meter: Meter.Meter, { names }: OutputNames, reading: Reading): Output {
  const nothing = { edits: [], sets: [], faults: [] }
  const { maxOutput } = meter.limits
  const [main] = names
  if (main === undefined) return { ...nothing, most: undefined }
  const parents = new Map(names.map((at) => [format(at.slice(0, -1)), at.slice(0, -1)]))
  const [, extra] = [...parents].flatMap(([name, at]) => (reading.memberAt(at) ? [name] : []))
  if (extra !== undefined) {
    const reason = 'is there twice, in another spelling, too'
    return { ...nothing, most: undefined, faults: [{ name: nameOf(extra), reason }] }
  }
  const given = names.filter((at) => (reading.valueOf(at) ?? null) !== null)
  const [at, second] = given
  if (at === undefined) {
    const place = placeOf(names, reading)
    const sets = maxOutput === undefined ? [] : [{ at: place, value: maxOutput }]
    return { ...nothing, most: maxOutput, sets }
  }
  const name = nameOf(format(at))
  const fault = (reason: string): Output => ({
    ...nothing,
    most: undefined,
    faults: [{ name, reason }],
  })
  if (second !== undefined) return fault(`and ${nameOf(format(second))} exclude each other`)
  const value = reading.valueOf(at)
  if (!isCount(value)) return fault('must be an integer from 1')
  const isOver = maxOutput !== undefined && value > maxOutput
  const faults = isOver ? fault(`must be at most ${maxOutput}`).faults : []
  const member = reading.memberAt(at)
  const right = main.at(-1)
  if (member === undefined || at.at(-1) === right) return { ...nothing, most: value, faults }
  const renamed = { start: member.nameStart, end: member.nameEnd, text: JSON.stringify(right) }
  // A null under the right name would make the member appear twice.
  const empty = reading.memberAt([...at.slice(0, -1), right ?? ''])
  if (empty === undefined) return { ...nothing, most: value, edits: [renamed], faults }
  const filled = { start: empty.start, end: empty.end, text: String(value) }
  const cleared = { start: member.start, end: member.end, text: 'null' }
  return { ...nothing, most: value, edits: [filled, cleared], faults }
}

/** The first name whose object exists; otherwise the first name. */
function placeOf(names: readonly Pointer[], reading: Reading): Pointer {
  const hasParent = (at: Pointer) =>
    at.length === 1 || reading.memberAt(at.slice(0, -1)) !== undefined
  return names.find(hasParent) ?? names[0] ?? []
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 1
}

function choicesOf(meter: Meter.Meter, request: RequestPlan, reading: Reading) {
  const { maxChoices } = meter.limits
  let most = 1
  for (const at of request.choices) {
    const value = reading.valueOf(at) ?? null
    if (value === null) continue
    const name = nameOf(format(at))
    if (!isCount(value)) return { most, faults: [{ name, reason: 'must be an integer from 1' }] }
    if (maxChoices !== undefined && value > maxChoices)
      return { most, faults: [{ name, reason: `must be at most ${maxChoices}` }] }
    most = Math.max(most, value)
  }
  return { most, faults: [] }
}

/** Some services also take 1 or "true" for true, and would stream without reporting the usage. */
function streamOf(request: RequestPlan, reading: Reading) {
  const values = request.stream.map((at) => ({ at, value: reading.valueOf(at) ?? false }))
  return {
    isStream: values.some(({ value }) => value === true),
    faults: values
      .filter(({ value }) => typeof value !== 'boolean')
      .map(({ at }) => ({ name: nameOf(format(at)), reason: 'must be true, false or null' })),
  }
}

/** Edits that set values, and add the objects that are missing around them. */
function place(reading: Reading, sets: readonly Set[]): Members.Edit[] {
  const { text, memberAt } = reading
  const edits: Members.Edit[] = []
  const inserts = new Map<number, [string, string][]>()
  for (const { at, value } of sets) {
    const json = JSON.stringify(value)
    let depth = at.length
    while (depth > 0 && memberAt(at.slice(0, depth)) === undefined) depth--
    const member = memberAt(at.slice(0, depth))
    const nested = at
      .slice(depth + 1)
      .reduceRight((inner, name) => `{${JSON.stringify(name)}:${inner}}`, json)
    const name = at[depth] ?? ''
    if (depth === at.length && member !== undefined) {
      edits.push({ start: member.start, end: member.end, text: json })
    } else if (member !== undefined && text[member.start] !== '{') {
      // The value is null.
      const object = `{${JSON.stringify(name)}:${nested}}`
      edits.push({ start: member.start, end: member.end, text: object })
    } else {
      const open = member?.start ?? Members.skipBlank(text, 0)
      inserts.set(open, [...(inserts.get(open) ?? []), [name, nested]])
    }
  }
  for (const [open, members] of inserts) edits.push(Members.insert(text, open, members))
  return edits
}

/** The most that a request may use, as far as the request limits it. */
type Most = {
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
function ceilingOf(meter: Meter.Meter, most: Most): bigint {
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
