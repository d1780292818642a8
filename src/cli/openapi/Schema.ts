import { isTable } from '../../config/reader'
import * as Format from '../../schema/Format'
import * as JsonSchema from '../../schema/JsonSchema'
import * as Pattern from '../../schema/Pattern'
import { brief, isNumber, isScalar, type Table } from './Value'

/**
 * A schema of a specification in the part of JSON Schema that a file can have: without references,
 * of few levels, and never stricter than it was.
 */

const types = ['string', 'number', 'integer', 'boolean', 'array', 'object', 'null']
const levelsMax = 4
/** Schemas within one schema: more are not readable in a file. */
const schemasMax = 120
const valuesMax = 200
const formsMax = 8
const descriptionMax = 160
const sampleMaxCharacters = 1500
/** A longer pattern may take seconds at each start. */
const patternMax = 1000

type Run = { root: Table; note: (text: string) => void; left: number; open: readonly unknown[] }

export function simplify(root: Table, schema: unknown, note: (text: string) => void): Table {
  return read({ root, note, left: schemasMax, open: [] }, schema)
}

function read(run: Run, schema: unknown): Table {
  if (!isTable(schema) || run.open.includes(schema)) return {}
  if (run.open.length > 3 * levelsMax || --run.left < 0) return {}
  const inner = { ...run, open: [...run.open, schema] }
  const result =
    typeof schema.$ref === 'string'
      ? merge([own(inner, schema), read(inner, JsonSchema.valueAt(run.root, schema.$ref))])
      : own(inner, schema)
  run.left = inner.left
  return result
}

const numbers = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf']
const counts = 'minLength maxLength minItems maxItems minProperties maxProperties'.split(' ')

function own(run: Run, schema: Table): Table {
  const result: Record<string, unknown> = {}
  const { description, pattern, format } = schema
  const named = [schema.type].flat(2).filter((name) => types.includes(String(name)))
  if (named.length > 0) result.type = named.length === 1 ? named[0] : [...new Set(named)]
  if (typeof description === 'string') result.description = brief(description, descriptionMax)
  const listed = Array.isArray(schema.enum) ? schema.enum : []
  const values = listed.filter(isScalar)
  if (values.length > 0 && values.length <= valuesMax) {
    result.enum = [...new Set(values)]
    // A file has no null.
    if (listed.includes(null)) Object.assign(result, { enum: undefined })
  }
  if (isScalar(schema.const)) result.const = schema.const
  for (const key of numbers)
    if (isNumber(schema[key]) && (key !== 'multipleOf' || schema[key] > 0))
      result[key] = schema[key]
  for (const key of counts)
    if (Number.isSafeInteger(schema[key]) && Number(schema[key]) >= 0) result[key] = schema[key]
  if (schema.uniqueItems === true) result.uniqueItems = true
  if (typeof format === 'string' && Object.hasOwn(Format.checks, format)) result.format = format
  if (typeof pattern === 'string' && isUsable(pattern, run.note)) result.pattern = pattern
  if (isScalar(schema.default)) result.default = schema.default
  const first = [schema.examples, schema.example].flat().find((each) => each !== undefined)
  if (isScalar(first) && !named.includes('object')) result.examples = [first]
  const forms = formsOf(run, schema)
  const closed = forms.length === 0 ? {} : { additionalProperties: undefined }
  return known(merge([result, { ...objectOf(run, schema), ...closed }, ...forms]))
}

function known(schema: Table): Table {
  return Object.fromEntries(Object.entries(schema).filter(([, value]) => value !== undefined))
}

function objectOf(run: Run, schema: Table): Table {
  const result: Record<string, unknown> = {}
  if (isTable(schema.items)) result.items = deeper(run, schema.items)
  if (isTable(schema.properties)) {
    const all = Object.entries(schema.properties)
    const usable = all.filter(([name]) => !unsafe.includes(name))
    const properties = usable.map(([name, inner]) => [name, deeper(run, inner)])
    if (properties.length > 0 && run.open.length <= 2 * levelsMax)
      result.properties = Object.fromEntries(properties)
    // Only answers have those.
    const readOnly = all.filter(([, inner]) => isTable(inner) && inner.readOnly === true)
    const names = readOnly.map(([name]) => name)
    const required = requiredOf(schema).filter((name) => !names.includes(name))
    if (required.length > 0) result.required = required
    const isWhole = usable.length === all.length && run.left > 0
    if (schema.additionalProperties === false && isWhole && result.properties !== undefined)
      result.additionalProperties = false
  } else if (requiredOf(schema).length > 0) result.required = requiredOf(schema)
  return result
}

/** Names that a TOML parser refuses. */
const unsafe = ['__proto__', 'constructor', 'prototype']

function requiredOf({ required }: Table): string[] {
  return Array.isArray(required)
    ? [...new Set(required.filter((name) => typeof name === 'string'))]
    : []
}

function deeper(run: Run, schema: unknown): Table {
  const level = run.open.filter((each) => isTable(each) && each.$ref === undefined).length
  if (level < levelsMax) return read(run, schema)
  const { type } = isTable(schema) ? schema : {}
  return typeof type === 'string' && types.includes(type) ? { type } : {}
}

/** The forms of a schema. `oneOf` becomes `anyOf`: simplified forms may fit together. */
function formsOf(run: Run, schema: Table): Table[] {
  const all = Array.isArray(schema.allOf) ? schema.allOf.map((form) => read(run, form)) : []
  const alternatives = [schema.anyOf, schema.oneOf].flatMap((list) => {
    if (!Array.isArray(list) || list.length === 0 || list.length > formsMax) return []
    return [anyOf(list.map((form) => read(run, form)))]
  })
  const parts = [...all, ...alternatives]
  // What one part allows another may refuse.
  return parts.map((part) => ({ ...part, additionalProperties: undefined }))
}

const scalars = ['string', 'number', 'integer', 'boolean', 'null']

function anyOf(forms: readonly Table[]): Table {
  const [first = {}, ...others] = forms.filter(({ type }) => type !== 'null')
  const isNullable = forms.length > others.length + 1
  if (others.length === 0) {
    const type = [first.type].flat()
    if (!isNullable || first.type === undefined) return isNullable ? {} : first
    return first.enum === undefined && first.const === undefined
      ? { ...first, type: [...new Set([...type, 'null'])] }
      : {}
  }
  if (forms.some((form) => Object.keys(form).length === 0)) return {}
  const named = forms.flatMap(({ type }) => [type].flat())
  // A query has texts, so the types count and not the forms.
  if (named.every((type) => scalars.includes(String(type)))) return { type: [...new Set(named)] }
  return { anyOf: forms }
}

/** All parts as one schema; of rules that differ the first counts. */
function merge(parts: readonly Table[]): Table {
  const result: Record<string, unknown> = {}
  for (const part of parts)
    for (const [key, value] of Object.entries(part)) {
      const known = result[key]
      if (key === 'properties' && isTable(known) && isTable(value))
        result[key] = { ...value, ...known }
      else if (key === 'required' && Array.isArray(known) && Array.isArray(value))
        result[key] = [...new Set([...known, ...value])]
      else if (known === undefined) result[key] = value
    }
  return result
}

function isUsable(pattern: string, note: (text: string) => void): boolean {
  // Delimiters of other languages would be letters of the text.
  const isDelimited = /^\/.*\/[a-z]*$/.test(pattern)
  // The file would replace the name.
  const isName = pattern.includes('${')
  const isLong = pattern.length > patternMax
  try {
    if (isDelimited || isName || isLong) throw new Pattern.PatternError('is not plain')
    Pattern.compile(pattern)
    return true
  } catch (error) {
    if (!(error instanceof Pattern.PatternError)) throw error
    note(`left out: pattern ${brief(pattern, 60)}, because it ${brief(error.message, 60)}`)
    return false
  }
}

/** The schema of a value in a query or a path, where all values are texts. */
export function ofParameter(schema: Table, isExploded: boolean): Table {
  const { type, anyOf: forms, properties, description, examples, ...rules } = schema
  const named = [type].flat().filter((name) => typeof name === 'string' && name !== 'null')
  // The members of an object are parameters of their own, such as filter[name].
  if (named.includes('object') || forms !== undefined || properties !== undefined) return {}
  const counts = { minItems: undefined, maxItems: undefined, uniqueItems: undefined }
  const isText = named.length === 1 && named[0] === 'string'
  return known({
    type: named.length > 1 ? named : named[0],
    ...rules,
    ...(isExploded ? counts : {}),
    ...(isText && Array.isArray(rules.enum) ? { enum: rules.enum.map(String) } : {}),
  })
}

/** Whether a value fits; a schema that cannot be compiled has none. */
export function fits(schema: Table, value: unknown): boolean {
  try {
    return JsonSchema.compile(schema)(value, 1).length === 0
  } catch {
    return false
  }
}

/** An example value from a schema; undefined where no part of it has one. */
export function sample(
  root: Table,
  schema: unknown,
  open: readonly unknown[] = [],
  budget = { left: schemasMax },
): unknown {
  const found =
    isTable(schema) && typeof schema.$ref === 'string'
      ? JsonSchema.valueAt(root, schema.$ref)
      : schema
  if (!isTable(found) || open.length > levelsMax || open.includes(found)) return undefined
  if (--budget.left < 0) return undefined
  const inner = [...open, found]
  const { examples, example, properties, items, default: usual, allOf } = found
  const own = [Array.isArray(examples) ? examples : [], example, usual].flat()
  const first = own.find((each) => each !== undefined && each !== null)
  if (first !== undefined) return first
  if (isTable(items)) {
    const entry = sample(root, items, inner, budget)
    return entry === undefined ? undefined : [entry]
  }
  const parts = Array.isArray(allOf) ? allOf.map((part) => sample(root, part, inner, budget)) : []
  const members = isTable(properties) ? Object.entries(properties) : []
  const named = members.map(([name, each]) => [name, sample(root, each, inner, budget)] as const)
  const known = Object.fromEntries(named.filter(([, value]) => value !== undefined))
  const whole = Object.assign({}, ...parts.filter(isTable), known)
  if (Object.keys(whole).length > 0) return whole
  return properties === undefined && Array.isArray(found.enum) ? found.enum[0] : undefined
}

/** An example that is short enough for a file: less entries and levels of a long one. */
export function shorten(value: unknown): unknown {
  for (const [entries, level] of [
    [20, 8],
    [3, 5],
    [1, 3],
    [1, 2],
  ] as const) {
    const short = prune(value, entries, level)
    if ((JSON.stringify(short) ?? '').length <= sampleMaxCharacters) return short
  }
  return undefined
}

function prune(value: unknown, entries: number, level: number): unknown {
  if (typeof value === 'string') return value.length > 300 ? `${value.slice(0, 300)}...` : value
  if (typeof value !== 'object' || value === null) return value ?? undefined
  if (level === 0) return undefined
  if (Array.isArray(value)) {
    const list = value.slice(0, entries).map((each) => prune(each, entries, level - 1))
    return list.filter((each) => each !== undefined)
  }
  const members = Object.entries(value).slice(0, 20 * entries)
  const pruned = members.map(([name, each]) => [name, prune(each, entries, level - 1)] as const)
  return Object.fromEntries(
    pruned.filter(([name, each]) => each !== undefined && !unsafe.includes(name)),
  )
}
