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
    for (const { key, column } of columns) {
      const value = values[column.name]
      if (value === undefined) throw new Error(`${getTableName(table)} has no ${column.name}`)
      row[key] = value === null ? null : column.mapFromDriverValue(value)
    }
    return row as T['$inferSelect']
  }
}

/** In the order of the declaration. */
export function columnsOf(table: Table): readonly { key: string; column: Column }[] {
  return Object.entries(getTableColumns(table)).map(([key, column]) => ({ key, column }))
}
