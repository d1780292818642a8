import { Column, getTableColumns, getTableName, type Table } from 'drizzle-orm'
import type { Dialect } from './dialect'

/** Values of the parameters of a statement, by name. */
export type Values = Readonly<Record<string, string | number | null>>

/** Reads whose statements are one text for both databases. */
export type Selects = {
  dialect: Dialect
  /** A statement with parameters such as `$id`. It is prepared at its first use. */
  select<Row = object>(text: string): (values?: Values) => Promise<readonly Row[]>
}

/** Statements that select from one table; `rest` is what follows its name. */
export function rowsOf<Item>({ select }: Selects, table: Table, read: (found: unknown) => Item) {
  const text = `SELECT ${columnsIn(table)} FROM ${getTableName(table)}`
  const all = (rest: string) => {
    const found = select(`${text} ${rest}`)
    return async (values?: Values) => (await found(values)).map(read)
  }
  return {
    all,
    one(rest: string) {
      const found = all(rest)
      return async (values?: Values): Promise<Item | undefined> => (await found(values))[0]
    },
  }
}

/** All columns of a table in a statement, which `decoderOf` reads. */
export function columnsIn(table: Table): string {
  const name = getTableName(table)
  return columnsOf(table)
    .map(({ column }) => `${name}."${column.name}"`)
    .join(', ')
}

/** Reads rows as a database gives them, by the names of their columns. Throws when one is missing. */
export function decoderOf<T extends Table>(table: T) {
  const columns = columnsOf(table)
  return (found: unknown): T['$inferSelect'] => {
    const values = found as Readonly<Record<string, unknown>>
    const row: Record<string, unknown> = {}
    for (const { key, column, fromDriver } of columns) {
      const value = values[column.name]
      if (value === undefined) throw new Error(`${getTableName(table)} has no ${column.name}`)
      row[key] = value === null || fromDriver === undefined ? value : fromDriver(value)
    }
    return row as T['$inferSelect']
  }
}

type WithoutNulls<T> = {
  [Name in keyof T]: null extends T[Name] ? Exclude<T[Name], null> | undefined : T[Name]
}

/** What a read gives of a shape that has undefined in place of NULL. */
export type WithNulls<T> = {
  [Name in keyof T]: undefined extends T[Name] ? Exclude<T[Name], undefined> | null : T[Name]
}

/** A row that has undefined in place of NULL. */
export function withoutNulls<T extends object>(row: T): WithoutNulls<T> {
  const entries = Object.entries(row).map(([name, value]) => [name, value ?? undefined])
  return Object.fromEntries(entries) as WithoutNulls<T>
}

type Known<T> = { [Name in keyof T]: NonNullable<T[Name]> }

/** The values of columns of which all or none are NULL; undefined where they are. */
export function allOf<T extends object>(columns: T): Known<T> | undefined {
  return Object.values(columns).includes(null) ? undefined : (columns as Known<T>)
}

type Convert = (value: unknown) => unknown

export type Columns = readonly {
  /** Its name in a row of this program. */
  key: string
  column: Column
  /** Undefined for a column whose values need no conversion. */
  toDriver: Convert | undefined
  fromDriver: Convert | undefined
}[]

const known = new Map<Table, Columns>()

/** In the order of the declaration. */
export function columnsOf(table: Table): Columns {
  const found = known.get(table)
  if (found !== undefined) return found
  const made = Object.entries(getTableColumns(table)).map(([key, column]) => ({
    key,
    column,
    toDriver: converting(column, 'mapToDriverValue'),
    fromDriver: converting(column, 'mapFromDriverValue'),
  }))
  known.set(table, made)
  return made
}

function converting(
  column: Column,
  name: 'mapToDriverValue' | 'mapFromDriverValue',
): Convert | undefined {
  return column[name] === Column.prototype[name] ? undefined : column[name].bind(column)
}
