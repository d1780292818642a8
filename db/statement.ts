import { getTableColumns, type Placeholder, sql } from 'drizzle-orm'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import type { Db } from './open'

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

/**
 * A prepared statement of `orm` that is made when it is first used: writing the SQL of all of them was
 * a third of a cold start. `unused` names those that are left.
 */
export function later<S extends object>(orm: Db['orm'], prepare: () => S): S {
  let made: S | undefined
  const make = () => {
    made ??= prepare()
    unmade.get(orm)?.delete(make)
    return made
  }
  const others = unmade.get(orm) ?? new Set()
  unmade.set(orm, others.add(make))
  return new Proxy({} as S, {
    get(_, name) {
      const statement = made ?? make()
      const method: unknown = Reflect.get(statement, name)
      return typeof method === 'function' ? method.bind(statement) : method
    },
  })
}

const unmade = new WeakMap<Db['orm'], Set<() => unknown>>()

/** Makers of the statements that nobody has used yet, each to be called or not. */
export function unused({ orm }: Db): readonly (() => unknown)[] {
  return [...(unmade.get(orm) ?? [])]
}
