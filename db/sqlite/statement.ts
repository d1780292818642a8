import { getTableColumns, type Placeholder, sql } from 'drizzle-orm'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import { sqlite as dialect } from '../dialect'
import type { Selects, Values } from '../select'
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

/** The reads that both databases have. They are done when the call returns. */
export function selectsOf({ orm, sqlite }: Pick<Db, 'orm' | 'sqlite'>): Selects {
  return {
    dialect,
    select<Row>(text: string) {
      const statement = later(orm, () => sqlite.prepare<Row, [Values]>(text))
      return async (values = {}) => statement.all(values)
    },
  }
}

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
