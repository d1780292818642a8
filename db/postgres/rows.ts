import { type Column, getTableColumns, getTableName, type Table } from 'drizzle-orm'
import { storable } from './named'

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
  for (const { key, column } of columnsOf(table)) {
    json[column.name] = jsonOf(storedOf(column, values[key]))
  }
  return json
}

/** The row of a JSON object that `to_jsonb` made of it. Throws when a column is missing. */
export function fromJson<T extends Table>(table: T, json: Json): T['$inferSelect'] {
  const values = json as Readonly<Record<string, unknown>>
  const row: Record<string, unknown> = {}
  for (const { key, column } of columnsOf(table)) {
    const value = values[column.name]
    if (value === undefined) throw new Error(`${getTableName(table)} has no ${column.name}`)
    row[key] = value === null ? null : column.mapFromDriverValue(value)
  }
  return row as T['$inferSelect']
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
  for (const { key, column } of columnsOf(table)) {
    const value = storedOf(column, values[key])
    text += value === null ? ',' : `,${fieldOf(value)}`
  }
  return `(${text.slice(1)})`
}

type Columns = readonly { key: string; column: Column }[]

const columns = new WeakMap<Table, Columns>()

/** In the order of the declaration. Each payment asks for them several times, and drizzle copies them. */
function columnsOf(table: Table): Columns {
  const known = columns.get(table)
  if (known !== undefined) return known
  const made = Object.entries(getTableColumns(table)).map(([key, column]) => ({ key, column }))
  columns.set(table, made)
  return made
}

/** What the column stores for a value. */
function storedOf(column: Column, given: unknown): unknown {
  if (given === null || given === undefined) return column.default ?? null
  return column.mapToDriverValue(given)
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
