import * as Lines from './lines'
import {
  at,
  child,
  close,
  isWrong,
  openTable,
  type Read,
  readList,
  optional as readOptional,
  record as readRecord,
  readRequired,
  type Table,
} from './reader'
import * as V from './values'

/** JSON Schema, for the reference page. The readers report more than a schema can. */
type Schema = Readonly<Record<string, unknown>>

type Stated = {
  /** In the file: the property in snake case without the unit Atomic or Bytes, or another one. */
  name?: string
  schema: Schema
  isRequired?: boolean
  /** Whether a reload refuses a change of the value. */
  needsRestart?: boolean
}

/** A key of a table, stated once: for its reader, its type and the reference page. */
export type Key<T> = Stated & { read: (table: Table, name: string) => T }

/** A key that the reader of its table reads with others. */
export type Own<T> = Stated & { read?: undefined; own?: () => T }

/** The keys of a table by the property that has the value. */
export type Keys = Readonly<Record<string, Key<unknown> | Own<unknown>>>

/** The values of a table. A key of type never has none. */
export type TableValues<K extends Keys> = {
  -readonly [P in keyof K as K[P] extends Own<never> ? never : P]: K[P] extends Key<infer T>
    ? T
    : K[P] extends Own<infer T>
      ? T
      : never
}

type OwnReaders<K extends Keys> = {
  [P in keyof K as K[P] extends Own<infer T> ? ([T] extends [never] ? never : P) : never]: (
    name: string,
  ) => K[P] extends Own<infer T> ? T : never
}

/** `rpcUrls` is written `rpc_urls`. */
export function keyNameOf(property: string, key: Stated | undefined): string {
  if (key?.name !== undefined) return key.name
  const words = property.replace(/(Atomic|Bytes)$/, '')
  return words.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

/** Fills in the names, so that no reader derives them again. */
export function keys<const K extends Keys>(stated: K): K {
  const named = Object.entries(stated).map(([property, key]) => [
    property,
    { ...key, name: keyNameOf(property, key) },
  ])
  return Object.fromEntries(named) as K
}

/** Reads every key in its order, and reports the other keys of the table. */
export function readKeys<K extends Keys>(
  table: Table,
  keys: K,
  own: OwnReaders<K>,
): TableValues<K> {
  const values = readValues(table, keys, own)
  close(table)
  return values
}

function readValues<K extends Keys>(table: Table, keys: K, own: OwnReaders<K>): TableValues<K> {
  const values: Record<string, unknown> = {}
  const readers: Readonly<Record<string, (name: string) => unknown>> = own
  for (const property in keys) {
    const key = keys[property]
    const name = keyNameOf(property, key)
    table.known.add(name)
    const read = readers[property]
    if (key?.read !== undefined) values[property] = key.read(table, name)
    else if (read !== undefined) values[property] = read(name)
  }
  return values as TableValues<K>
}

/** Makes keys of one kind. A key without a default may be absent. */
function kind<T>(read: Read<T>, type: Schema = { type: 'string' }) {
  function key(description: string): Key<T | undefined>
  function key(description: string, fallback: unknown): Key<T>
  function key(description: string, fallback?: unknown): Key<T | undefined> {
    const value = fallback === undefined ? undefined : read(fallback)
    if (isWrong(value)) throw new Error(`${description} has a default that ${value.wrong}`)
    const schema = { ...type, description, ...(fallback !== undefined && { default: fallback }) }
    return { schema, read: (table, name) => readOptional(table, name, read) ?? value }
  }
  return key
}

export const text = kind(V.text)
export const filled = kind(V.filled)
export const sentence = kind(V.sentence)
export const colour = kind(V.colour)
export const amount = kind(V.amount)
export const price = kind(V.price)
export const wei = kind(V.wei)
export const gwei = kind(V.gwei)
export const size = kind(V.size)
export const baseUrl = kind(V.baseUrl)
export const listen = kind(V.listen)
export const address = kind(V.address)
export const duration = kind(V.duration)
export const withdrawDelay = kind(V.withdrawDelay)
export const pointer = kind(V.pointer)
export const flag = kind(V.flag, { type: 'boolean' })
export const sixDecimals = kind(V.sixDecimals, { type: 'integer', minimum: 6, maximum: 6 })
export const ratio = kind(V.ratio, { type: 'number', minimum: 0 })
export const positive = kind(V.positive, { type: 'number', minimum: 0 })

/** Undefined: off. */
export function amountOrOff(description: string, fallback: string): Key<bigint | undefined> {
  const { schema, read } = kind(V.amountOrOff)(description, fallback)
  return {
    schema,
    read(table, name) {
      const value = read(table, name)
      return value === 'off' ? undefined : value
    },
  }
}

export function integer(minimum: number, maximum: number) {
  return kind(V.integer(minimum, maximum), { type: 'integer', minimum, maximum })
}

/** One of a few words. */
export function oneOf<const T extends string>(words: readonly T[]) {
  return kind(V.oneOf(words), { anyOf: words.map((word) => ({ const: word, type: 'string' })) })
}

/** A key that must be there. `empty` stands for it in a file with faults. */
export function required<T, const E>(
  description: string,
  read: Read<T>,
  example: string,
  empty: E,
): Key<T | E> {
  return {
    schema: { type: 'string', description },
    isRequired: true,
    read: (table, name) => readRequired(table, name, read, example) ?? empty,
  }
}

/** A secret, which may only be in the environment: files are copied, committed and shown. */
export function secret<T, const E>(
  description: string,
  read: Read<T>,
  { name, empty }: { name: string; empty: E },
): Key<T | E> {
  return {
    schema: {
      type: 'string',
      description: `${description} As \`\${NAME}\`, from the environment.`,
    },
    isRequired: true,
    read(table, key) {
      const { fromEnv } = table.source
      const isOpen = table.raw[key] !== undefined && !fromEnv.has(Lines.keyOf(at(table, key)))
      const wrong = `is a secret: write ${key} = "\${${name}}", and set ${name} in the environment`
      const checked: Read<T> = (value) => (isOpen ? { wrong, hide: true } : read(value))
      const found = this.isRequired
        ? readRequired(table, key, checked, `"\${${name}}"`)
        : readOptional(table, key, checked)
      return found ?? empty
    },
  }
}

/** The key with another type on the page than a string. */
export function typed<K extends Stated>(type: Schema, key: K): K {
  return { ...key, schema: { ...type, description: key.schema.description } }
}

/** An array of scalars; empty by default. */
export function list<T>(description: string, read: Read<T>): Key<readonly T[]> {
  return {
    schema: { type: 'array', items: { type: 'string' }, description },
    read: (table, name) => readList(table, name, read) ?? [],
  }
}

export function byName<T>(description: string, read: Read<T>): Key<Readonly<Record<string, T>>> {
  return {
    schema: { ...recordOf({ type: 'string' }), description },
    read: (table, name) => readRecord(table, name, read),
  }
}

/** A nested table; when it is absent, its keys have their defaults. */
export function group<K extends Readonly<Record<string, Key<unknown>>>>(
  inner: K,
): Key<TableValues<K>> {
  return {
    schema: tableOf(inner),
    read(table, name) {
      const found = child(table, name)
      const none = {} as OwnReaders<K>
      return found
        ? readKeys(found, inner, none)
        : readValues(openTable(table.source, table.path, {}), inner, none)
    },
  }
}

/** A nested table; undefined when it is absent. */
export function optionalGroup<K extends Readonly<Record<string, Key<unknown>>>>(
  inner: K,
): Key<TableValues<K> | undefined> {
  return {
    schema: tableOf(inner),
    read(table, name) {
      const found = child(table, name)
      return found && readKeys(found, inner, {} as OwnReaders<K>)
    },
  }
}

/** What the page says of a key that the reader of its table reads with others. */
export function own<T>(schema: Schema, isRequired = false): Own<T> {
  return { schema, isRequired }
}

export function restart<T extends Stated>(key: T): T {
  return { ...key, needsRestart: true }
}

export function tableOf(keys: Keys): Schema {
  const entries = Object.entries(keys).map(([property, key]) => ({
    name: keyNameOf(property, key),
    key,
  }))
  return {
    type: 'object',
    properties: Object.fromEntries(entries.map(({ name, key }) => [name, key.schema])),
    required: entries.filter(({ key }) => key.isRequired).map(({ name }) => name),
    additionalProperties: false,
  }
}

/** A table of any names whose values have one shape. */
export function recordOf(value: Schema): Schema {
  return { type: 'object', patternProperties: { '^(.*)$': value } }
}

/** An array of tables, or of values of one shape. */
export function arrayOf(items: Schema): Schema {
  return { type: 'array', items }
}
