import { getTableColumns, type Placeholder, sql } from 'drizzle-orm'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'

/** A parameter that is written as it is given: no column's encoder sees it. */
export function parameter(name: string) {
  return sql`${sql.placeholder(name)}`
}

/** One parameter for each column, by its name: for an insert of whole rows. */
export function placeholders<T extends SQLiteTable>(
  table: T,
): { [Name in keyof T['_']['columns'] & string]: Placeholder<Name> } {
  const names = Object.keys(getTableColumns(table))
  return Object.fromEntries(names.map((name) => [name, sql.placeholder(name)])) as {
    [Name in keyof T['_']['columns'] & string]: Placeholder<Name>
  }
}
