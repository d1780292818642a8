import type { Table } from 'drizzle-orm'
import type { Reservation } from '../Channel'
import { type Columns, columnsOf, type Values } from '../select'

/** A value of JSON, as PostgreSQL takes and gives it. */
export type Json =
  | string
  | number
  | boolean
  | null
  | readonly Json[]
  | { readonly [key: string]: Json | undefined }

/**
 * A row as a JSON object of its columns, for `jsonb_populate_record`. Columns that the row leaves out
 * get their default, or null. Bytes are written as `\x` and hex digits.
 */
export function toJson<T extends Table>(
  table: T,
  row: T['$inferInsert'],
): { readonly [column: string]: Json } {
  const values = row as Readonly<Record<string, unknown>>
  const json: Record<string, Json> = {}
  for (const each of columnsOf(table)) {
    json[each.column.name] = jsonOf(storedOf(each, values[each.key]))
  }
  return json
}

/** Values as the text of an array of PostgreSQL, which it reads in a fraction of the time of JSON. */
export function arrayText(values: readonly (string | number | boolean)[]): string {
  return `{${values.map(elementOf).join(',')}}`
}

function elementOf(value: string | number | boolean): string {
  if (typeof value !== 'string') return String(value)
  return `"${storable(value).replace(/[\\"]/g, '\\$&')}"`
}

/** A row as the text of a composite value of its columns, in the order of the table's declaration. */
export function rowText<T extends Table>(table: T, row: T['$inferInsert']): string {
  const values = row as Readonly<Record<string, unknown>>
  let text = ''
  for (const each of columnsOf(table)) {
    const value = storedOf(each, values[each.key])
    text += value === null ? ',' : `,${fieldOf(value)}`
  }
  return `(${text.slice(1)})`
}

/** What the column stores for a value. */
function storedOf({ column, toDriver }: Columns[number], given: unknown): unknown {
  if (given === null || given === undefined) return column.default ?? null
  return toDriver === undefined ? given : toDriver(given)
}

const plain = /^[\w:./-]+$/

function fieldOf(value: unknown): string {
  const text = jsonOf(value)
  return typeof text === 'string' && !plain.test(text) ? elementOf(text) : String(text)
}

function jsonOf(value: unknown): Json {
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`
  if (typeof value === 'bigint') return String(value)
  if (typeof value === 'string') return storable(value)
  return value as Json
}

type Positional = { text: string; names: readonly string[] }

const made = new Map<string, Positional>()

/** A statement with parameters such as `$from`, as PostgreSQL takes it: `$1` and an array. */
export function positional(text: string, values: Values): [text: string, values: unknown[]] {
  const known = made.get(text) ?? toPositional(text)
  made.set(text, known)
  return [known.text, known.names.map((name) => encoded(values[name] ?? null))]
}

function toPositional(text: string): Positional {
  const names: string[] = []
  const replaced = text.replaceAll(/\$([A-Za-z]\w*)/g, (_, name: string) => {
    if (!names.includes(name)) names.push(name)
    return `$${names.indexOf(name) + 1}`
  })
  return { text: replaced, names }
}

function encoded(value: string | number | null): string | number | null {
  return typeof value === 'string' ? storable(value) : value
}

/** A text without what PostgreSQL refuses in texts: NUL, and halves of a surrogate pair. */
function storable(text: string): string {
  return text.toWellFormed().replaceAll('\0', '\ufffd')
}

/** The input of `reserve_channel`. */
export function reservationOf({
  channelId,
  baseAtomic,
  reserved: { maxAtomic, signature, ...request },
}: Reservation): Readonly<Record<string, Json>> {
  const voucher = { atomic: String(maxAtomic), signature: signature.toLowerCase() }
  return {
    id: channelId.toLowerCase(),
    base: String(baseAtomic),
    reserved: { ...request, ...voucher },
  }
}
