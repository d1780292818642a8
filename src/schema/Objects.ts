import * as Pattern from './Pattern'
import {
  at,
  type Compiler,
  count,
  fail,
  isOver,
  isTable,
  type Keyword,
  optional,
  type Step,
  sizeOf,
  spend,
  type Table,
} from './Run'

/** The keywords for objects. */

export const objects: Keyword = (schema, compiler) => {
  const required = Array.isArray(schema.required) ? schema.required.map(String) : []
  const least = count(schema.minProperties) ?? 0
  const most = count(schema.maxProperties) ?? Number.POSITIVE_INFINITY
  const described = mapOf(compiler, schema.properties)
  const patterns = Object.entries(isTable(schema.patternProperties) ? schema.patternProperties : {})
  const matched = patterns.map(
    ([pattern, inner]) => [Pattern.compile(pattern), compiler.step(inner)] as const,
  )
  const additional = optional(compiler, schema.additionalProperties)
  const unseen = optional(compiler, schema.unevaluatedProperties)
  const names = optional(compiler, schema.propertyNames)
  const spelling = new Map([...described.keys()].map((name) => [fold(name), name]))
  const dependents = dependentsOf(schema, compiler)
  // A schema with none of these has nothing to say about an object.
  const rules = [required.length, least, described.size, matched.length, dependents.length]
  const isPlain = rules.every((size) => size === 0) && most === Number.POSITIVE_INFINITY
  if (isPlain && !additional && !unseen && !names) return undefined
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
        const right = spelling.get(fold(name))
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

/** Upper case first: some parsers read a long s and the Kelvin sign as letters. */
function fold(name: string): string {
  return name.toUpperCase().toLowerCase()
}

function mapOf(compiler: Compiler, table: unknown): ReadonlyMap<string, Step> {
  if (!isTable(table)) return new Map()
  return new Map(Object.entries(table).map(([name, each]) => [name, compiler.step(each)]))
}
