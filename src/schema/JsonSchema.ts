import * as Json from '../protocol/Json'
import * as Format from './Format'
import * as Pattern from './Pattern'

/**
 * JSON Schema (draft 2020-12, and the forms of older drafts for the same rules) for the input of
 * strangers. The work of a check is limited: with references and alternatives, it can be
 * exponential in the depth of the input. Each step takes units of a budget, and a check whose
 * budget is used up ends with a fault.
 */

/** `reason` completes "name ...". It never repeats the value. */
type Fault = {
  /** A JSON pointer without its first slash: `messages/0/role`. Empty for the value itself. */
  name: string
  reason: string
}

/** The first `most` faults of a value that JSON.parse returned; empty when it fits. */
export type Check = (value: unknown, most: number) => readonly Fault[]

/** The state of one check. */
type Run = {
  /** Units of work that this check may still use. */
  units: number
  depth: number
  path: (string | number)[]
  faults: Fault[]
  /** 0 while alternatives are tried, whose faults say nothing. */
  most: number
}

/** Members and entries that a schema has described, for `unevaluatedProperties` and `-Items`. */
type Seen = Set<string | number> | undefined
/** Whether a value fits; otherwise with a fault. */
type Step = (value: unknown, run: Run, seen: Seen) => boolean
type Table = Readonly<Record<string, unknown>>
type Compiler = { root: unknown; step(schema: unknown): Step }
/** Compiles the rules of some keywords of a schema, which has one of them. */
type Keyword = (schema: Table, compiler: Compiler) => Step

/** The budget of a check is used up. */
class OverworkError extends Error {}

/** Why a schema was refused. The message completes "schema ...". */
export class SchemaError extends Error {
  override readonly name = 'SchemaError'
}

/** About 10 ms. */
const unitsMax = 200_000
/** A reference to itself would overflow the stack before the budget is used up. */
const depthMax = 500

/** Throws SchemaError, and PatternError for a pattern of the schema. */
export function compile(schema: unknown): Check {
  const step = createCompiler(schema).step(schema)
  return (value, most) => {
    const run: Run = { units: unitsMax, depth: 0, path: [], faults: [], most }
    try {
      step(value, run, undefined)
      return run.faults
    } catch (error) {
      if (!(error instanceof OverworkError)) throw error
      return [{ name: '', reason: 'takes too many steps to check' }]
    }
  }
}

function createCompiler(root: unknown): Compiler {
  const known = new Map<object, Step>()
  const tracks = JSON.stringify(root)?.includes('"unevaluated') ?? false
  const compiler: Compiler = {
    root,
    step(schema) {
      if (schema === false) return (_, run) => fail(run, 'is not allowed')
      if (!isTable(schema)) return () => true
      const made = known.get(schema)
      if (made !== undefined) return made
      let steps: readonly Step[] = []
      const step: Step = (value, run, seen) => {
        spend(run, 1)
        if (++run.depth > depthMax) throw new OverworkError()
        const own = tracks ? new Set<string | number>() : undefined
        let fits = true
        for (const each of steps) {
          if (each(value, run, own)) continue
          fits = false
          if (isOver(run)) break
        }
        run.depth--
        if (fits && seen) for (const each of own ?? []) seen.add(each)
        return fits
      }
      // Before its keywords, because one of them may refer to it.
      known.set(schema, step)
      steps = keywords
        .filter(([names]) => names.some((name) => schema[name] !== undefined))
        .map(([, keyword]) => keyword(schema, compiler))
      return step
    },
  }
  return compiler
}

function optional(compiler: Compiler, schema: unknown): Step | undefined {
  return schema === undefined ? undefined : compiler.step(schema)
}

function stepsOf(compiler: Compiler, list: unknown): readonly Step[] {
  return Array.isArray(list) ? list.map((each) => compiler.step(each)) : []
}

/** Pairs of the members of a keyword whose value is an object, with the step of each. */
function membersOf(compiler: Compiler, table: unknown): (readonly [string, Step])[] {
  return Object.entries(isTable(table) ? table : {}).map(([name, schema]) => [
    name,
    compiler.step(schema),
  ])
}

function spend(run: Run, units: number): void {
  run.units -= units
  if (run.units < 0) throw new OverworkError()
}

function isOver({ faults, most }: Run): boolean {
  return faults.length >= most
}

function fail(run: Run, reason: string, member?: string | number): false {
  if (!isOver(run)) {
    const path = member === undefined ? run.path : [...run.path, member]
    run.faults.push({ name: Json.pointerTo(path), reason })
  }
  return false
}

/** Runs a step for a part of the value. */
function at(run: Run, part: string | number, step: Step, value: unknown): boolean {
  run.path.push(part)
  const fits = step(value, run, undefined)
  run.path.pop()
  return fits
}

/** Runs a step whose faults do not count. */
function quietly(run: Run, step: Step, value: unknown, seen: Seen): boolean {
  const { most } = run
  run.most = 0
  const fits = step(value, run, seen)
  run.most = most
  return fits
}

function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

function isTable(value: unknown): value is Table {
  return isContainer(value) && !Array.isArray(value)
}

function sizeOf(value: object): number {
  return Array.isArray(value) ? value.length : Object.keys(value).length
}

/** The limits of a keyword pair such as `minItems` and `maxItems`. */
function limitsOf(least: unknown, most: unknown, leastDefault = 0) {
  return {
    least: typeof least === 'number' ? least : leastDefault,
    most: typeof most === 'number' ? most : Number.POSITIVE_INFINITY,
  }
}

const typeWords: Readonly<Record<string, string>> = {
  array: 'a list',
  boolean: 'true or false',
  integer: 'a whole number',
  null: 'null',
  number: 'a number',
  object: 'an object',
  string: 'a text',
}

const type: Keyword = ({ type }) => {
  const names = [type].flat().map(String)
  const reason = `must be ${names.map((name) => typeWords[name] ?? name).join(' or ')}`
  return (value, run) => names.some((name) => isOfType(value, name)) || fail(run, reason)
}

function isOfType(value: unknown, name: string): boolean {
  if (name === 'integer') return Number.isInteger(value)
  if (name === 'array') return Array.isArray(value)
  if (name === 'null') return value === null
  return name === 'object' ? isTable(value) : typeof value === name
}

const values: Keyword = (schema) => {
  const lists = [
    ...(Object.hasOwn(schema, 'const') ? [[schema.const]] : []),
    ...(Array.isArray(schema.enum) ? [schema.enum] : []),
  ]
  const wanted = lists.map((list) => ({
    plain: new Set(list.filter((each) => !isContainer(each))),
    containers: list.filter(isContainer),
    reason: `must be ${list.length > 1 ? 'one of ' : ''}${list.map((each) => JSON.stringify(each)).join(', ')}`,
  }))
  return (value, run) =>
    wanted.every(
      ({ plain, containers, reason }) =>
        (isContainer(value)
          ? containers.some((each) => isEqual(value, each, run))
          : plain.has(value)) || fail(run, reason),
    )
}

/** Costs as much as the schema's value has parts, not the input's. */
function isEqual(value: unknown, wanted: unknown, run: Run): boolean {
  spend(run, 1)
  if (!isContainer(value) || !isContainer(wanted)) return value === wanted
  if (Array.isArray(value) !== Array.isArray(wanted)) return false
  const names = Object.keys(wanted)
  spend(run, sizeOf(value))
  return (
    Object.keys(value).length === names.length &&
    names.every(
      (name) =>
        Object.hasOwn(value, name) && isEqual((value as Table)[name], (wanted as Table)[name], run),
    )
  )
}

const reference: Keyword = (schema, compiler) =>
  compiler.step(resolve(compiler.root, schema.$ref ?? schema.$dynamicRef ?? schema.$recursiveRef))

/** The schema at a reference such as `#/$defs/name` or `#anchor`. */
function resolve(root: unknown, to: unknown): unknown {
  const missing = () => new SchemaError(`refers to ${String(to)}, which is not in it`)
  if (typeof to !== 'string' || !to.startsWith('#')) throw missing()
  if (to !== '#' && !to.startsWith('#/')) {
    const anchored = anchor(root, to)
    if (anchored === undefined) throw missing()
    return anchored
  }
  const found = valueAt(root, to)
  if (found === undefined) throw missing()
  return found
}

/** The value at a reference such as `#/$defs/name`; undefined where there is none. */
export function valueAt(root: unknown, reference: string): unknown {
  let found = root
  for (const part of reference.split('/').slice(1)) {
    const name = decode(part).replaceAll('~1', '/').replaceAll('~0', '~')
    if (!isContainer(found) || !Object.hasOwn(found, name)) return undefined
    found = (found as Table)[name]
  }
  return found
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

function anchor(schema: unknown, to: string): unknown {
  if (!isContainer(schema)) return undefined
  const { $anchor, $dynamicAnchor, $id } = schema as Table
  if (`#${$anchor}` === to || `#${$dynamicAnchor}` === to || $id === to) return schema
  for (const part of Object.values(schema)) {
    const found = anchor(part, to)
    if (found !== undefined) return found
  }
  return undefined
}

const numbers: Keyword = (schema) => {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = schema
  const rules = [
    rule(minimum, 'at least', (value, limit) => value >= limit),
    rule(maximum, 'at most', (value, limit) => value <= limit),
    rule(exclusiveMinimum, 'above', (value, limit) => value > limit),
    rule(exclusiveMaximum, 'below', (value, limit) => value < limit),
    rule(multipleOf, 'a multiple of', isMultiple),
  ].filter((each) => each !== undefined)
  return (value, run) => {
    if (typeof value !== 'number') return true
    // Decimal fractions are compared as big integers.
    spend(run, multipleOf === undefined ? 0 : 16)
    const broken = rules.find(({ holds }) => !holds(value))
    return broken === undefined || fail(run, broken.reason)
  }
}

function rule(limit: unknown, words: string, holds: (value: number, limit: number) => boolean) {
  if (typeof limit !== 'number') return undefined
  return { reason: `must be ${words} ${limit}`, holds: (value: number) => holds(value, limit) }
}

/** By decimal digits: 0.3 is a multiple of 0.1. */
function isMultiple(value: number, divisor: number): boolean {
  if (Number.isInteger(value) && Number.isInteger(divisor)) return value % divisor === 0
  if (!Number.isFinite(value) || !Number.isFinite(divisor)) return false
  const [dividend, shift] = decimal(value)
  const [digits, places] = decimal(divisor)
  const common = Math.min(shift, places)
  const scaled = digits * 10n ** BigInt(places - common)
  return scaled !== 0n && (dividend * 10n ** BigInt(shift - common)) % scaled === 0n
}

/** The digits of a number, and the power of ten that they are multiplied with. */
function decimal(value: number): [digits: bigint, exponent: number] {
  const [text = '', exponent = '0'] = String(value).split('e')
  const [whole = '', fraction = ''] = text.split('.')
  return [BigInt(whole + fraction), Number(exponent) - fraction.length]
}

/** The rules of a text: its length first, because a pattern costs more. */
const texts: Keyword = ({ minLength, maxLength, pattern, format }) => {
  const { least, most } = limitsOf(minLength, maxLength)
  const regExp = typeof pattern === 'string' ? Pattern.compile(pattern) : undefined
  const isFormat = typeof format === 'string' ? Format.checks[format] : undefined
  const isCounted = least > 0 || most < Number.POSITIVE_INFINITY
  return (value, run) => {
    if (typeof value !== 'string') return true
    if (isCounted) {
      spend(run, value.length / 8)
      const length = lengthOf(value)
      if (length < least) return fail(run, `must have at least ${least} characters`)
      if (length > most) return fail(run, `must have at most ${most} characters`)
    }
    if (!regExp && !isFormat) return true
    spend(run, 12 + value.length / 4)
    if (regExp && !regExp.test(value)) return fail(run, 'does not match its pattern')
    return !isFormat || isFormat(value) || fail(run, `is not a valid ${format}`)
  }
}

/** In code points. */
function lengthOf(text: string): number {
  let length = text.length
  for (let index = 0; index < text.length - 1; index++) {
    if ((text.charCodeAt(index) & 0xfc00) !== 0xd800) continue
    if ((text.charCodeAt(index + 1) & 0xfc00) !== 0xdc00) continue
    length--
    index++
  }
  return length
}

const alternatives: Keyword = (schema, compiler) => {
  const all = stepsOf(compiler, schema.allOf)
  const any = Array.isArray(schema.anyOf) ? stepsOf(compiler, schema.anyOf) : undefined
  const one = Array.isArray(schema.oneOf) ? stepsOf(compiler, schema.oneOf) : undefined
  const not = optional(compiler, schema.not)
  return (value, run, seen) => {
    let fits = true
    for (const step of all) {
      if (!step(value, run, seen)) fits = false
      if (!fits && isOver(run)) return false
    }
    const isFit = (step: Step) => quietly(run, step, value, seen)
    // With `seen` all of them, because each that fits describes members.
    if (any && !(seen ? any.filter(isFit).length > 0 : any.some(isFit)))
      fits = fail(run, 'fits none of its forms')
    if (one && one.filter(isFit).length !== 1) fits = fail(run, 'must fit exactly one of its forms')
    if (not && quietly(run, not, value, undefined)) fits = fail(run, 'has a form that is excluded')
    return fits
  }
}

const condition: Keyword = (schema, compiler) => {
  const when = compiler.step(schema.if)
  const then = compiler.step(schema.then)
  const otherwise = compiler.step(schema.else)
  return (value, run, seen) =>
    (quietly(run, when, value, seen) ? then : otherwise)(value, run, seen)
}

const lists: Keyword = (schema, compiler) => {
  const { items, uniqueItems } = schema
  const { least, most } = limitsOf(schema.minItems, schema.maxItems)
  // Older drafts wrote the first entries as a list of `items`.
  const first = stepsOf(compiler, Array.isArray(items) ? items : schema.prefixItems)
  const rest = optional(compiler, Array.isArray(items) ? schema.additionalItems : items)
  const contains = containsOf(schema, compiler)
  const unseen = optional(compiler, schema.unevaluatedItems)
  return (value, run, seen) => {
    if (!Array.isArray(value)) return true
    if (value.length < least) return fail(run, `must have at least ${least} entries`)
    if (value.length > most) return fail(run, `must have at most ${most} entries`)
    let fits = true
    const length = rest ? value.length : Math.min(first.length, value.length)
    for (let index = 0; index < length; index++) {
      const step = first[index] ?? rest
      if (step && !at(run, index, step, value[index])) fits = false
      if (!fits && isOver(run)) return false
      seen?.add(index)
    }
    if (contains && !contains(value, run, seen)) fits = false
    if (uniqueItems === true && fits && !isUnique(value, run)) fits = false
    for (let index = 0; unseen && fits && index < value.length; index++) {
      if (!seen?.has(index) && !at(run, index, unseen, value[index])) fits = false
      seen?.add(index)
    }
    return fits
  }
}

function containsOf(schema: Table, compiler: Compiler): Step | undefined {
  const contained = optional(compiler, schema.contains)
  if (contained === undefined) return undefined
  const { least, most } = limitsOf(schema.minContains, schema.maxContains, 1)
  return (value, run, seen) => {
    let found = 0
    for (const [index, entry] of (value as unknown[]).entries()) {
      if (!quietly(run, contained, entry, undefined)) continue
      found++
      seen?.add(index)
      if (found > most) break
    }
    if (found < least) return fail(run, `must have at least ${least} entries of its form`)
    return found <= most || fail(run, `must have at most ${most} entries of its form`)
  }
}

/** By a set of canonical texts: comparing each entry with each other one takes seconds. */
function isUnique(entries: readonly unknown[], run: Run): boolean {
  const known = new Set<unknown>()
  for (const [index, entry] of entries.entries()) {
    spend(run, 2)
    // A container is a text that no JSON text is equal to.
    const key = isContainer(entry)
      ? `{${canonical(entry, run)}`
      : typeof entry === 'string'
        ? `"${entry}`
        : entry
    if (known.has(key)) return fail(run, 'is there twice', index)
    known.add(key)
  }
  return true
}

function canonical(value: unknown, run: Run): string {
  if (!isContainer(value)) {
    spend(run, 8 + (typeof value === 'string' ? value.length / 16 : 0))
    return JSON.stringify(value)
  }
  if (Array.isArray(value)) return `[${value.map((each) => canonical(each, run)).join()}]`
  spend(run, 16 * sizeOf(value))
  const names = Object.keys(value).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical((value as Table)[name], run)}`).join()}}`
}

const objects: Keyword = (schema, compiler) => {
  const required = Array.isArray(schema.required) ? schema.required.map(String) : []
  const { least, most } = limitsOf(schema.minProperties, schema.maxProperties)
  const described = new Map(membersOf(compiler, schema.properties))
  const matched = membersOf(compiler, schema.patternProperties).map(
    ([pattern, step]) => [Pattern.compile(pattern), step] as const,
  )
  const additional = optional(compiler, schema.additionalProperties)
  const unseen = optional(compiler, schema.unevaluatedProperties)
  const names = optional(compiler, schema.propertyNames)
  const spelling = new Map([...described.keys()].map((name) => [Json.fold(name), name]))
  const dependents = dependentsOf(schema, compiler)
  return (value, run, seen) => {
    if (!isTable(value)) return true
    let fits = true
    const refuse = (reason: string, name?: string) => {
      fits = fail(run, reason, name)
      return isOver(run)
    }
    spend(run, (required.length + described.size + dependents.length) / 4)
    for (const name of required)
      if (!Object.hasOwn(value, name) && refuse('is required', name)) return false
    const size = sizeOf(value)
    spend(run, 4 * size)
    if (size < least && refuse(`must have at least ${least} members`)) return false
    // Before the names, whose patterns cost more.
    if (size > most) return fail(run, `must have at most ${most} members`)
    for (const [name, step] of described) {
      if (!Object.hasOwn(value, name)) continue
      if (!at(run, name, step, value[name])) fits = false
      if (!fits && isOver(run)) return false
      seen?.add(name)
    }
    for (const name in value) {
      if (names && !at(run, name, names, name)) fits = false
      let isKnown = described.has(name)
      for (const [pattern, step] of matched) {
        spend(run, 12 + name.length / 4)
        if (!pattern.test(name)) continue
        isKnown = true
        if (!at(run, name, step, value[name])) fits = false
        seen?.add(name)
      }
      if (!isKnown && spelling.size > 0) {
        spend(run, 2 + name.length / 8)
        const right = spelling.get(Json.fold(name))
        // Several parsers, such as Go's, ignore case: they would read what was not checked.
        if (right !== undefined) refuse(`must be written ${right}`, name)
      }
      if (!isKnown && additional) {
        if (!at(run, name, additional, value[name])) fits = false
        seen?.add(name)
      }
      if (!fits && isOver(run)) return false
    }
    for (const [name, step] of dependents)
      if (Object.hasOwn(value, name) && !step(value, run, seen)) fits = false
    for (const name in unseen && fits ? value : {}) {
      if (!seen?.has(name) && unseen && !at(run, name, unseen, value[name])) fits = false
      seen?.add(name)
    }
    return fits
  }
}

/** What an object needs when it has a member, by that member. */
function dependentsOf(schema: Table, compiler: Compiler): (readonly [string, Step])[] {
  const { dependentRequired, dependentSchemas, dependencies } = schema
  return [dependentRequired, dependentSchemas, dependencies]
    .flatMap((each) => Object.entries(isTable(each) ? each : {}))
    .map(([name, needs]) => {
      const needed = Array.isArray(needs) ? { required: needs } : needs
      return [name, compiler.step(needed)] as const
    })
}

const words = (text: string) => text.split(' ')

/** In this order: of a long input only the first fault is named. */
const keywords: readonly (readonly [names: readonly string[], keyword: Keyword])[] = [
  [['type'], type],
  [['const', 'enum'], values],
  [words('$ref $dynamicRef $recursiveRef'), reference],
  [words('minimum maximum exclusiveMinimum exclusiveMaximum multipleOf'), numbers],
  [words('minLength maxLength pattern format'), texts],
  [words('allOf anyOf oneOf not'), alternatives],
  [['if'], condition],
  [words('minItems maxItems items prefixItems contains unevaluatedItems uniqueItems'), lists],
  [
    words(
      'required minProperties maxProperties properties patternProperties additionalProperties ' +
        'unevaluatedProperties propertyNames dependentRequired dependentSchemas dependencies',
    ),
    objects,
  ],
]
