import * as Lines from './lines'
import { nearest } from './nearest'

/** A fault in a file: its place, and the correction. It contains no value of the environment. */
export type Fault = { file: string; line: number; message: string }

/** What reading one file collects. */
export type Source = {
  file: string
  readonly lines: Lines.KeyLines
  /** The first fault of each place: faults that follow from it are not reported. */
  faults: Map<string, Fault>
  /** Places whose text came, in part, from the environment, with those parts: never shown. */
  fromEnv: Map<string, string[]>
  /** Places of a merchant whose environment name is not set: nothing is checked there. */
  unset: Set<string>
  /** Tables that were read to their end, where an unknown key may have belonged. */
  closed: Table[]
}

/** A table of the file while it is read. */
export type Table = {
  source: Source
  path: Lines.Path
  raw: Readonly<Record<string, unknown>>
  /** Keys that were read. All other keys are unknown. */
  known: Set<string>
}

/** Why a value is refused. `hint` is made from the value, and `hide` omits the value itself. */
export type Wrong = { wrong: string; hint?: string; hide?: boolean }

/** Converts a raw value to the program's type. */
export type Read<T> = (value: unknown) => T | Wrong

export function isWrong<T>(result: T | Wrong): result is Wrong {
  return typeof result === 'object' && result !== null && 'wrong' in result
}

/** Adds a fault at a path, unless there already is one. */
export function report(source: Source, path: Lines.Path, message: string): void {
  const key = Lines.keyOf(path)
  if (source.faults.has(key) || source.unset.has(key)) return
  const line = Lines.lineOf(source.lines, path)
  source.faults.set(key, { file: source.file, line, message })
}

/** Adds a fault at a key of a table, or at a path below the table. */
export function reportKey(table: Table, key: string | Lines.Path, message: string): void {
  report(table.source, at(table, ...[key].flat()), message)
}

/** Reports each table that has the value of an earlier one, with the line of that one. */
export function reportRepeats(
  tables: readonly Table[],
  key: string,
  values: readonly unknown[],
  messageOf: (line: number) => string,
): void {
  const firsts = new Map<unknown, Table>()
  tables.forEach((table, i) => {
    const first = firsts.get(values[i])
    if (first === undefined) firsts.set(values[i], table)
    else reportKey(table, key, messageOf(Lines.lineOf(table.source.lines, at(first, key))))
  })
}

export function at(table: Table, ...keys: Lines.Path): Lines.Path {
  return [...table.path, ...keys]
}

/** Short text of a value for a message; empty for tables and arrays. */
function shown(value: unknown): string {
  if (typeof value === 'object' && value !== null) return ''
  const text = JSON.stringify(value) ?? String(value)
  return ` (found ${text.length > 60 ? `${text.slice(0, 57)}...` : text})`
}

/**
 * The path is built only for a fault, or where names are unset, because there are thousands of
 * values.
 */
function convert<T>(source: Source, pathOf: () => Lines.Path, value: unknown, read: Read<T>) {
  if (source.unset.size > 0 && source.unset.has(Lines.keyOf(pathOf()))) return undefined
  const result = read(value)
  if (!isWrong(result)) return result
  const path = pathOf()
  const isSecret = result.hide || source.fromEnv.has(Lines.keyOf(path))
  const hint = result.hint && !isSecret ? `; ${result.hint}` : ''
  const found = isSecret ? '' : shown(value)
  report(source, path, `${label(path)} ${result.wrong}${hint}${found}`)
  return undefined
}

function label(path: Lines.Path): string {
  const last = path.at(-1)
  return typeof last === 'number' ? `${path.at(-2)}[${last}]` : String(last)
}

/** Reads a key that has a default. */
export function field<T>(table: Table, key: string, read: Read<T>, fallback: T): T {
  return optional(table, key, read) ?? fallback
}

/** Reads a key that may be absent. */
export function optional<T>(table: Table, key: string, read: Read<T>): T | undefined {
  table.known.add(key)
  const value = table.raw[key]
  if (value === undefined) return undefined
  return convert(table.source, () => at(table, key), value, read)
}

/** Reads a required key. Undefined when it is missing or wrong, which is reported. */
export function readRequired<T>(
  table: Table,
  key: string,
  read: Read<T>,
  example: string,
): T | undefined {
  if (table.raw[key] === undefined) {
    reportKey(table, key, `${key} is missing; write ${key} = ${example}`)
  }
  return optional(table, key, read)
}

/** Reads an array of scalars; undefined when it is absent. */
export function readList<T>(table: Table, key: string, read: Read<T>): readonly T[] | undefined {
  table.known.add(key)
  const value = table.raw[key]
  if (value === undefined) return undefined
  if (!Array.isArray(value)) {
    reportKey(table, key, `${key} must be an array, such as ${key} = ["..."]`)
    return undefined
  }
  return value.flatMap((item: unknown, i) => {
    const result = convert(table.source, () => at(table, key, i), item, read)
    return result === undefined ? [] : [result]
  })
}

/** Whether a key is an array without elements. Wrong elements count. */
export function isEmptyList(table: Table, key: string): boolean {
  const value = table.raw[key]
  return Array.isArray(value) && value.length === 0
}

/** Reads a table of values of one kind, such as headers; empty when it is absent. */
export function record<T>(table: Table, key: string, read: Read<T>): Readonly<Record<string, T>> {
  const inner = child(table, key)
  if (!inner) return {}
  const entries = Object.keys(inner.raw).flatMap((name): [string, T][] => {
    const result = optional(inner, name, read)
    return result === undefined ? [] : [[name, result]]
  })
  return Object.fromEntries(entries)
}

/** Opens a nested table; undefined when it is absent. */
export function child(table: Table, key: string): Table | undefined {
  table.known.add(key)
  const value = table.raw[key]
  if (value === undefined) return undefined
  if (isTable(value)) return openTable(table.source, at(table, key), value)
  reportKey(table, key, `${key} must be a table, such as ${key} = { ... }`)
  return undefined
}

/** Opens every table of an array of tables. */
export function children(table: Table, key: string): readonly Table[] {
  table.known.add(key)
  const value = table.raw[key]
  if (value === undefined) return []
  const header = `[[${[...table.path.filter((part) => typeof part === 'string'), key].join('.')}]]`
  if (!Array.isArray(value)) {
    reportKey(table, key, `${key} must be an array of tables: write ${header}`)
    return []
  }
  return value.map((item: unknown, i) => {
    if (!isTable(item)) reportKey(table, [key, i], `${key}[${i}] must be a table: write ${header}`)
    return openTable(table.source, at(table, key, i), isTable(item) ? item : {})
  })
}

/** The same, at most so many. `what`: what the tables are, in the plural. */
export function childrenUpTo(
  table: Table,
  key: string,
  { most, what }: { most: number; what: string },
): readonly Table[] {
  const tables = children(table, key)
  const message = `there are ${tables.length} ${what}; at most ${most} are allowed`
  if (tables.length > most) reportKey(table, [key, most], message)
  return tables
}

export function openTable(source: Source, path: Lines.Path, raw: Record<string, unknown>): Table {
  return { source, path, raw, known: new Set() }
}

export function isTable(value: unknown): value is Record<string, unknown> {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  )
}

/** Reports the keys that were not read. Call it after all keys of the table. */
export function close(table: Table): void {
  for (const key of Object.keys(table.raw)) {
    if (!table.known.has(key)) reportKey(table, key, unknown(table, key))
  }
  table.source.closed.push(table)
}

function unknown({ raw, known, source }: Table, key: string): string {
  const near = nearest(key, [...known])
  const owner = source.closed.find((other) => other.known.has(key))
  // A table of a wrong name is more likely than one in a wrong place.
  const isMisspelt = near !== undefined && typeof raw[key] === 'object'
  if (owner && !isMisspelt)
    return `unknown key ${key}; it is a key of ${headerOf(owner.path)}: write it below that line`
  const fix = near ? `did you mean ${near}?` : `known here: ${[...known].sort().join(', ')}`
  return `unknown key ${key}; ${fix}`
}

/** `[service]`, `[networks."eip155:8453"]` or `[[merchants.routes]]`. */
function headerOf(path: Lines.Path): string {
  const names = path.filter((part) => typeof part === 'string')
  const header = names.map((name) => (/^[\w-]+$/.test(name) ? name : `"${name}"`)).join('.')
  return typeof path.at(-1) === 'number' ? `[[${header}]]` : `[${header}]`
}
