import * as Json from '../protocol/Json'

/** `reason` completes "name ...". It never repeats the value. */
export type Fault = {
  /** A JSON pointer without its first slash: `messages/0/role`. Empty for the value itself. */
  name: string
  reason: string
}

/** The state of one check, and what the keywords of a schema share. */
export type Run = {
  /** What is left of the budget. */
  units: number
  depth: number
  path: (string | number)[]
  faults: Fault[]
  /** 0 while alternatives are tried, whose faults say nothing. */
  most: number
}

/** Members and entries that a schema has described, for `unevaluatedProperties` and `-Items`. */
export type Seen = Set<string | number> | undefined
/** Whether a value fits; otherwise with a fault. */
export type Step = (value: unknown, run: Run, seen: Seen) => boolean
export type Table = Readonly<Record<string, unknown>>
export type Compiler = { root: unknown; step(schema: unknown): Step }
/** Compiles the rules of some keywords of a schema; undefined when it has none of them. */
export type Keyword = (schema: Table, compiler: Compiler) => Step | undefined

/** The budget of a check is used up. */
export class OverworkError extends Error {}

export function spend(run: Run, units: number): void {
  run.units -= units
  if (run.units < 0) throw new OverworkError()
}

export function isOver({ faults, most }: Run): boolean {
  return faults.length >= most
}

export function fail(run: Run, reason: string, member?: string | number): false {
  if (!isOver(run)) {
    const path = member === undefined ? run.path : [...run.path, member]
    run.faults.push({ name: Json.pointerTo(path), reason })
  }
  return false
}

/** Runs a step for a part of the value. */
export function at(run: Run, part: string | number, step: Step, value: unknown): boolean {
  run.path.push(part)
  const fits = step(value, run, undefined)
  run.path.pop()
  return fits
}

/** Runs a step whose faults do not count. */
export function quietly(run: Run, step: Step, value: unknown, seen: Seen): boolean {
  const { most } = run
  run.most = 0
  const fits = step(value, run, seen)
  run.most = most
  return fits
}

export function stepsOf(compiler: Compiler, list: unknown): readonly Step[] | undefined {
  return Array.isArray(list) ? list.map((each) => compiler.step(each)) : undefined
}

export function optional(compiler: Compiler, schema: unknown): Step | undefined {
  return schema === undefined ? undefined : compiler.step(schema)
}

export function count(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined
}

export function isContainer(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

export function isTable(value: unknown): value is Table {
  return isContainer(value) && !Array.isArray(value)
}

export function sizeOf(value: object): number {
  return Array.isArray(value) ? value.length : Object.keys(value).length
}
