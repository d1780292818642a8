import { type Column, getTableColumns, getTableName, type Table } from 'drizzle-orm'
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
export function rowsOf<T extends Table, Item>(
  { select }: Selects,
  table: T,
  read: (row: T['$inferSelect']) => Item,
) {
  const text = `SELECT ${columnsIn(table)} FROM ${getTableName(table)}`
  const all = (rest: string) => {
    const found = select(`${text} ${rest}`)
    return async (values?: Values) => (await found(values)).map((row) => read(rowOf(table, row)))
  }
  return {
    all,
    one(rest: string) {
      const found = all(rest)
      return async (values?: Values): Promise<Item | undefined> => (await found(values))[0]
    },
  }
}

/** All columns of a table in a statement, which `rowOf` reads. */
export function columnsIn(table: Table): string {
  const name = getTableName(table)
  return columnsOf(table)
    .map(({ column }) => `${name}."${column.name}"`)
    .join(', ')
}

/** A row as a database gives it, by the names of its columns. Throws when a column is missing. */
export function rowOf<T extends Table>(table: T, found: unknown): T['$inferSelect'] {
  const values = found as Readonly<Record<string, unknown>>
  const row: Record<string, unknown> = {}
  for (const { key, column } of columnsOf(table)) {
    const value = values[column.name]
    if (value === undefined) throw new Error(`${getTableName(table)} has no ${column.name}`)
    row[key] = value === null ? null : column.mapFromDriverValue(value)
  }
  return row as T['$inferSelect']
}

type Columns = readonly { key: string; column: Column }[]

const columns = new WeakMap<Table, Columns>()

/** In the order of the declaration. Each payment asks for them several times, and drizzle copies them. */
export function columnsOf(table: Table): Columns {
  const known = columns.get(table)
  if (known !== undefined) return known
  const made = Object.entries(getTableColumns(table)).map(([key, column]) => ({ key, column }))
  columns.set(table, made)
  return made
}
