import { getTableColumns, getTableName, type Placeholder, sql } from 'drizzle-orm'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import { sqlite as dialect } from '../dialect'
import { columnsOf, type Selects, type Values } from '../select'
import type { Db } from './open'

/** A parameter that is written as it is given, without a column's encoder. */
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

/**
 * A prepared statement of `orm` that is made on first use: writing the SQL of all of them was a
 * third of a cold start. `unused` returns the remaining ones.
 */
export function later<S extends Statement>(
  orm: Db['orm'],
  prepare: () => S,
): Pick<S, keyof Statement> {
  let made: S | undefined
  const make = () => {
    made ??= prepare()
    unmade.get(orm)?.delete(make)
    return made
  }
  const others = unmade.get(orm) ?? new Set()
  unmade.set(orm, others.add(make))
  const statement = () => made ?? make()
  return {
    get run() {
      return bound(statement(), 'run')
    },
    get all() {
      return bound(statement(), 'all')
    },
    get get() {
      return bound(statement(), 'get')
    },
  }
}

/** A statement with parameters such as `$id`. */
export function statement<Row = object>({ orm, sqlite }: Connection, text: string) {
  return later(orm, () => sqlite.prepare<Row, [Values]>(text))
}

/** An insert of whole rows. `rest` is what follows the values. */
export function insertInto<T extends SQLiteTable>(db: Connection, table: T, rest = '') {
  const columns = columnsOf(table)
  const names = columns.map(({ column }) => `"${column.name}"`).join(', ')
  const values = columns.map(({ key }) => `$${key}`).join(', ')
  const insert = statement(
    db,
    `INSERT INTO ${getTableName(table)} (${names}) VALUES (${values}) ${rest}`,
  )
  return (row: T['$inferSelect']): void => {
    const given: Record<string, unknown> = row
    const written = columns.map(({ key, column }) => {
      const value = given[key]
      return [key, value === null ? null : column.mapToDriverValue(value)]
    })
    insert.run(Object.fromEntries(written))
  }
}

/** The reads that both databases have. They are done when the call returns. */
export function selectsOf(db: Connection): Selects {
  return {
    dialect,
    select<Row>(text: string) {
      const select = statement<Row>(db, text)
      return async (values = {}) => select.all(values)
    },
  }
}

type Connection = Pick<Db, 'orm' | 'sqlite'>
type Method = (...values: never[]) => unknown
type Statement = { run: Method; all: Method; get: Method }

function bound<S extends Statement, N extends keyof Statement>(statement: S, name: N): S[N] {
  return statement[name].bind(statement) as S[N]
}

const unmade = new WeakMap<Db['orm'], Set<() => unknown>>()

/** Functions that prepare statements before their first use. A call is optional. */
export function unused({ orm }: Db): readonly (() => unknown)[] {
  return [...(unmade.get(orm) ?? [])]
}
