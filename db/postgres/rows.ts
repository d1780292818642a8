import { getTableColumns, getTableName, type Table } from 'drizzle-orm'
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
  const entries = Object.entries(getTableColumns(table)).map(([key, column]) => {
    const given = values[key] ?? null
    const value = given === null ? (column.default ?? null) : column.mapToDriverValue(given)
    return [column.name, jsonOf(value)] as const
  })
  return Object.fromEntries(entries)
}

/** The row of a JSON object that `to_jsonb` made of it. Throws when a column is missing. */
export function fromJson<T extends Table>(table: T, json: Json): T['$inferSelect'] {
  const values = json as Readonly<Record<string, unknown>>
  const entries = Object.entries(getTableColumns(table)).map(([key, column]) => {
    const value = values[column.name]
    if (value === undefined) throw new Error(`${getTableName(table)} has no ${column.name}`)
    return [key, value === null ? null : column.mapFromDriverValue(value)] as const
  })
  return Object.fromEntries(entries) as T['$inferSelect']
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
  const fields = Object.entries(getTableColumns(table)).map(([key, column]) => {
    const given = values[key] ?? null
    const value = given === null ? (column.default ?? null) : column.mapToDriverValue(given)
    return value === null ? '' : fieldOf(value)
  })
  return `(${fields.join(',')})`
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
