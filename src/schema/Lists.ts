import {
  at,
  type Compiler,
  count,
  fail,
  isContainer,
  isOver,
  type Keyword,
  optional,
  quietly,
  type Run,
  type Step,
  sizeOf,
  spend,
  stepsOf,
  type Table,
} from './Run'

/** The keywords for arrays. */

export const lists: Keyword = (schema, compiler) => {
  const { items, uniqueItems } = schema
  const least = count(schema.minItems) ?? 0
  const most = count(schema.maxItems) ?? Number.POSITIVE_INFINITY
  // Older drafts wrote the first entries as a list of `items`.
  const first = stepsOf(compiler, Array.isArray(items) ? items : schema.prefixItems) ?? []
  const further = Array.isArray(items) ? schema.additionalItems : items
  const rest = further === undefined ? undefined : compiler.step(further)
  const contains = containsOf(schema, compiler)
  const unseen = optional(compiler, schema.unevaluatedItems)
  const isPlain = least === 0 && most === Number.POSITIVE_INFINITY && first.length === 0
  if (isPlain && !rest && !contains && !unseen && uniqueItems !== true) return undefined
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
  const least = count(schema.minContains) ?? 1
  const most = count(schema.maxContains) ?? Number.POSITIVE_INFINITY
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
